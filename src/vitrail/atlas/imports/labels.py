"""A user's own labels, a table of concept and text, as concepts and documents (C).

A row is a text with one concept or several; a text may stand in many rows, and its concepts are joined. Rows without
a concept are texts too: they say what the corpus is like without it. Names are compared without case and spacing.
The result does not depend on the order of the rows: concepts are sorted by name, examples by the hash of their text.
"""

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, get_args

from pydantic import Field, model_validator

from vitrail.atlas.concepts.own import OwnConcept
from vitrail.atlas.imports.rows import read_rows
from vitrail.atlas.library import Kind
from vitrail.corpus import Document, document_id
from vitrail.errors import CorpusError, nearest
from vitrail.settings import Settings

MAX_EXAMPLES = 64
"""Examples given to the fit of one concept; a hundred more change little."""


SHOWN = 60
"""Characters of a wrong cell that a message shows."""


class LabelColumns(Settings):
    """How a table of labels is read. Of the last four, those that are there are used."""

    concept: str = "concept"
    """Column of the concept's name; in JSONL and Parquet it may hold a list."""
    text: str = "text"
    """Column of the text."""
    separator: str = Field(default=";", min_length=1)
    """What stands between several concepts in one cell."""
    kind: str = "kind"
    """Column of the concept's kind: content, tone, demographic or alignment."""
    description: str = "description"
    """Column of the concept's description."""
    source: str = "source"
    """Column of the text's source."""
    domain: str = "domain"
    """Column of the text's domain."""

    @model_validator(mode="after")
    def _are_two(self) -> "LabelColumns":
        if self.concept == self.text:
            raise ValueError(f"concept and text are both the column '{self.text}'; name two columns")
        return self


@dataclass(frozen=True)
class OwnLabels:
    """What a table of labels holds.

    Attributes:
        concepts: by name, each with up to `MAX_EXAMPLES` examples.
        documents: the texts, by id, each once.
        carried: names of the concepts of each document, sorted.
        counts: `rows`, `texts`, `labels`, `unlabelled_texts`, `rows_without_text`, `repeated_rows`.
    """

    concepts: tuple[OwnConcept, ...]
    documents: tuple[Document, ...]
    carried: tuple[tuple[str, ...], ...]
    counts: Mapping[str, int]


def read_labels(path: Path, columns: LabelColumns) -> OwnLabels:
    """Read a table of labels.

    Args:
        path: CSV, TSV, JSONL or Parquet.
        columns: what its columns are called.

    Returns:
        concepts and documents.

    Raises:
        CorpusError: the file cannot be read, a column is missing (the nearest is named), a kind is none, or no row
            has both text and concept.
    """
    table = _Table(path, columns)
    for number, row in read_rows(path):
        table.add(number, row)
    return table.result()


@dataclass
class _Concept:
    """What rows say of one concept."""

    spellings: Counter[str] = field(default_factory=Counter)
    kinds: Counter[str] = field(default_factory=Counter)
    descriptions: Counter[str] = field(default_factory=Counter)
    documents: set[str] = field(default_factory=set)


class _Table:
    """The rows so far."""

    def __init__(self, path: Path, columns: LabelColumns) -> None:
        self._path, self._columns = path, columns
        self._concepts: dict[str, _Concept] = defaultdict(_Concept)
        self._documents: dict[str, Document] = {}
        self._counts: Counter[str] = Counter(rows=0, rows_without_text=0, repeated_rows=0)

    def add(self, number: int, row: Mapping[str, Any]) -> None:
        self._counts["rows"] += 1
        text = self._cell(row, self._columns.text, number)
        names = self._names(self._cell(row, self._columns.concept, number), number)
        if not isinstance(text, str | None):
            raise CorpusError(
                f"{self._path}: line {number}: '{self._columns.text}' holds {_short(text)}, which is no text; --text "
                "names another column"
            )
        if not text or not text.strip():
            self._counts["rows_without_text"] += 1
            return
        document = self._document(text, row)
        known = self._documents.setdefault(document.id, document)
        self._documents[document.id] = min(known, document, key=lambda one: one.domain)  # whichever row came first
        for name in names:
            concept = self._concepts[_folded(name)]
            self._counts["repeated_rows"] += document.id in concept.documents
            concept.documents.add(document.id)
            concept.spellings[name] += 1
            self._describe(concept, row, number)

    def result(self) -> OwnLabels:
        if not self._concepts:
            raise CorpusError(
                f"{self._path}: no row has both a text and a concept; fill the column '{self._columns.concept}'"
            )
        carried: dict[str, list[str]] = {key: [] for key in self._documents}
        concepts = []
        for key in sorted(self._concepts):
            concept = self._concepts[key]
            name = _commonest(concept.spellings)
            concepts.append(self._own(name, concept))
            for one in concept.documents:
                carried[one].append(name)
        ids = sorted(self._documents)
        counts = {
            **self._counts,
            "concepts": len(concepts),
            "texts": len(ids),
            "labels": sum(map(len, carried.values())),
            "unlabelled_texts": sum(not names for names in carried.values()),
        }
        documents = tuple(self._documents[key] for key in ids)
        return OwnLabels(tuple(concepts), documents, tuple(tuple(carried[key]) for key in ids), counts)

    def _own(self, name: str, concept: _Concept) -> OwnConcept:
        examples = tuple(self._documents[key].text for key in sorted(concept.documents)[:MAX_EXAMPLES])
        values = {"name": name, "description": _commonest(concept.descriptions), "examples": examples}
        return OwnConcept.parse({**values, "kind": _commonest(concept.kinds) or "content"}, where=str(self._path))

    def _cell(self, row: Mapping[str, Any], column: str, number: int) -> Any:
        if column not in row:
            hint = nearest(column, row) or f"; there are {', '.join(list(row)[:12])}"
            raise CorpusError(
                f"{self._path}: no column '{column}' in line {number}{hint}; --concept and --text name others"
            )
        return row[column]

    def _names(self, cell: Any, number: int) -> list[str]:
        if cell is None:
            return []
        values: Sequence[Any] = cell.split(self._columns.separator) if isinstance(cell, str) else cell
        values = values if isinstance(values, list) else [values]
        if any(not isinstance(value, str | int) for value in values):
            raise CorpusError(
                f"{self._path}: line {number}: '{self._columns.concept}' holds {_short(cell)}; "
                "write a name, or a list of names"
            )
        return list(dict.fromkeys(name for value in values if (name := " ".join(str(value).split()))))

    def _document(self, text: str, row: Mapping[str, Any]) -> Document:
        text = text.replace("\r\n", "\n").replace("\r", "\n")
        source = _plain(row.get(self._columns.source)) or self._path.name
        return Document(document_id(text, source), text, source, _plain(row.get(self._columns.domain)))

    def _describe(self, concept: _Concept, row: Mapping[str, Any], number: int) -> None:
        if kind := _plain(row.get(self._columns.kind)).lower():
            if kind not in get_args(Kind):
                raise CorpusError(
                    f"{self._path}: line {number}: kind '{kind}'"
                    f"{nearest(kind, get_args(Kind)) or ''}; known: {', '.join(get_args(Kind))}"
                )
            concept.kinds[kind] += 1
        if description := _plain(row.get(self._columns.description)):
            concept.descriptions[description] += 1


def _commonest(counts: Counter[str]) -> str:
    """The most frequent value, the first in alphabetical order among equals; empty without any."""
    return min(counts, key=lambda value: (-counts[value], value), default="")


def _folded(name: str) -> str:
    return " ".join(name.casefold().split())


def _short(value: Any) -> str:
    shown = repr(value)
    return shown if len(shown) <= SHOWN else shown[:SHOWN] + "…"


def _plain(value: Any) -> str:
    return "" if value is None else " ".join(str(value).split())
