"""A user's own labels, a table of concept and text, as concepts and texts (C).

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
from vitrail.corpus import document_id
from vitrail.errors import CorpusError, nearest
from vitrail.settings import Settings

MAX_EXAMPLES = 64
"""Examples given to the fit of one concept; a hundred more change little."""


SHOWN = 60
"""Characters of a wrong cell that a message shows."""


class LabelColumns(Settings):
    """How a table of labels is read. Of the last two, those that are there are used."""

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
        texts: those of all rows, each once, in the order of their hashes.
    """

    concepts: tuple[OwnConcept, ...]
    texts: tuple[str, ...]


def read_labels(path: Path, columns: LabelColumns) -> OwnLabels:
    """Read a table of labels.

    Args:
        path: CSV, TSV, JSONL or Parquet.
        columns: what its columns are called.

    Returns:
        concepts and texts.

    Raises:
        CorpusError: the file cannot be read, a column is missing (the nearest is named), a kind is none, or no row
            has both text and concept.
    """
    table = _Table(path, columns)
    for number, row in read_rows(path, columns.model_dump(exclude={"separator"}).values()):
        table.add(number, row)
    return table.result()


@dataclass
class _Concept:
    """What rows say of one concept."""

    spellings: Counter[str] = field(default_factory=Counter)
    kinds: Counter[str] = field(default_factory=Counter)
    descriptions: Counter[str] = field(default_factory=Counter)
    texts: set[str] = field(default_factory=set)


class _Table:
    """The rows so far."""

    def __init__(self, path: Path, columns: LabelColumns) -> None:
        self._path, self._columns = path, columns
        self._concepts: dict[str, _Concept] = defaultdict(_Concept)
        self._texts: set[str] = set()
        self._first_row: tuple[int, Mapping[str, Any]] | None = None
        self._has_concept_column = False

    def add(self, number: int, row: Mapping[str, Any]) -> None:
        self._first_row = self._first_row or (number, row)
        self._has_concept_column |= self._columns.concept in row
        if self._columns.text not in row:
            raise self._no_column(self._columns.text, number, row)
        text = row[self._columns.text]
        # A line of JSONL may lack the key: no concept. `result` refuses a table where no row has it.
        names = self._names(row.get(self._columns.concept), number)
        if not isinstance(text, str | None):
            raise CorpusError(
                f"{self._path}: line {number}: '{self._columns.text}' holds {_short(text)}, which is no text; --text "
                "names another column"
            )
        if not text or not text.strip():
            return
        text = text.replace("\r\n", "\n").replace("\r", "\n")
        self._texts.add(text)
        for name in names:
            concept = self._concepts[_folded(name)]
            concept.texts.add(text)
            concept.spellings[name] += 1
            self._describe(concept, row, number)

    def result(self) -> OwnLabels:
        if self._first_row is not None and not self._has_concept_column:
            raise self._no_column(self._columns.concept, *self._first_row)
        if not self._concepts:
            raise CorpusError(
                f"{self._path}: no row has both a text and a concept; fill the column '{self._columns.concept}'"
            )
        concepts = tuple(self._own(self._concepts[key]) for key in sorted(self._concepts))
        return OwnLabels(concepts, tuple(sorted(self._texts, key=_hash)))

    def _own(self, concept: _Concept) -> OwnConcept:
        values = {
            "name": _commonest(concept.spellings),
            "kind": _commonest(concept.kinds) or "content",
            "description": _commonest(concept.descriptions),
            "examples": tuple(sorted(concept.texts, key=_hash)[:MAX_EXAMPLES]),
        }
        return OwnConcept.parse(values, where=str(self._path))

    def _no_column(self, column: str, number: int, row: Mapping[str, Any]) -> CorpusError:
        hint = nearest(column, row) or f"; there are {', '.join(list(row)[:12])}"
        where = f" in line {number}" if ".jsonl" in self._path.suffixes else ""  # elsewhere all rows have one head
        return CorpusError(f"{self._path}: no column '{column}'{where}{hint}; --concept and --text name others")

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


def _hash(text: str) -> str:
    """What texts are put in order by: a fair sample comes first, the same whatever else the table holds."""
    return document_id(text, "")


def _folded(name: str) -> str:
    return " ".join(name.casefold().split())


def _short(value: Any) -> str:
    shown = repr(value)
    return shown if len(shown) <= SHOWN else shown[:SHOWN] + "…"


def _plain(value: Any) -> str:
    return "" if value is None else " ".join(str(value).split())
