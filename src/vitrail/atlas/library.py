"""The library of concepts: one card each, in `concepts.parquet` (design §8).

Known concepts come from the atlas; a trained model adds cards of its discovered ones. Names are compared
without case. A wrong name gets the nearest ones in the error.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import pyarrow as pa
import pyarrow.parquet as pq

from vitrail.errors import ArtifactError, ConceptNotFound, meant, nearest

LIBRARY_NAME = "concepts.parquet"
CLUSTERS_NAME = "clusters.parquet"
"""Which clusters of tags there were, and what became of each."""

MAX_DIGITS = 12
"""Of a number that stands for a concept."""
SLIP = 0.85
"""How alike a name must be to what was typed (`difflib`) to be taken for a slip of the pen."""

Head = Literal["known", "discovered"]
Kind = Literal["content", "tone", "demographic", "alignment"]
"""What a concept speaks of: subject matter, manner, groups of people, or how an assistant should behave (§4.2.3)."""

SCHEMA = pa.schema(
    [
        ("concept_id", pa.int32()),
        ("head", pa.string()),
        ("name", pa.string()),
        ("description", pa.string()),
        ("kind", pa.string()),
        ("words", pa.list_(pa.string())),
        ("lift", pa.list_(pa.float32())),
        ("path", pa.list_(pa.string())),
        ("num_chunks", pa.int64()),
        ("threshold", pa.float32()),
        ("is_automatic", pa.bool_()),
    ]
)


@dataclass(frozen=True)
class Label:
    """A concept that a chunk carries.

    Attributes:
        concept_id: row of the library.
        score: z-scored cosine plus lexical evidence; above the concept's threshold.
        spans: characters `[start, stop)` of the chunk where its member tags stand, in order.
    """

    concept_id: int
    score: float
    spans: tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class Card:
    """What a reader needs to know of a concept.

    Attributes:
        concept_id: row of its head, 0..C-1 or 0..M-1.
        head: "known" or "discovered".
        name: unique within its head, recognised at once.
        description: one line.
        kind: which head it belongs to: content, tone, demographic or alignment; other words in foreign libraries.
        words: characteristic words, most characteristic first.
        lift: how many times likelier each word is in the concept's chunks than anywhere.
        path: place in the taxonomy, from the root; empty if there is none.
        num_chunks: labelled chunks among those the atlas was built from.
        threshold: lowest annotator score of a label.
        is_automatic: named by a program, not by a person.
    """

    concept_id: int
    head: Head
    name: str
    description: str
    kind: str
    words: tuple[str, ...]
    lift: tuple[float, ...]
    path: tuple[str, ...]
    num_chunks: int
    threshold: float
    is_automatic: bool


class ConceptLibrary:
    """Cards by head and id, and by name."""

    def __init__(self, cards: Sequence[Card]):
        """Hold cards.

        Args:
            cards: in any order; ids must be unique within a head.

        Raises:
            ArtifactError: two cards share a head and an id.
        """
        self.cards = tuple(sorted(cards, key=lambda card: (card.head != "known", card.concept_id)))
        self._by_id: Mapping[tuple[str, int], Card] = {(card.head, card.concept_id): card for card in self.cards}
        if len(self._by_id) != len(self.cards):
            raise ArtifactError("concept library: two cards share one head and id; build the atlas again")

    @property
    def num_known(self) -> int:
        """C, how many known concepts there are."""
        return sum(card.head == "known" for card in self.cards)

    def card(self, head: str, concept_id: int) -> Card:
        """One card by id.

        Args:
            head: "known" or "discovered".
            concept_id: its row.

        Returns:
            the card.

        Raises:
            ConceptNotFound: no such card; the message names the range.
        """
        try:
            return self._by_id[head, concept_id]
        except KeyError:
            count = sum(card.head == head for card in self.cards)
            raise ConceptNotFound(f"no {head} concept {concept_id}; the library has {count} of them") from None

    def find(self, name: str, head: str = "known") -> Card:
        """One card by name, whatever its case, or by number.

        Args:
            name: the whole name, or `#ID`.
            head: "known" or "discovered".

        Returns:
            the card.

        Raises:
            ConceptNotFound: no such name; the nearest ones are suggested.
        """
        card = self._by_name.get((head, _folded(name)))
        if card is None and name[:1] == "#" and name[1:].isdecimal() and len(name[1:]) <= MAX_DIGITS:
            return self.card(head, int(name[1:]))
        if card is None:
            raise ConceptNotFound(f"no {head} concept is called '{name}'{self._hint(name, head)}")
        return card

    def search(self, query: str, limit: int = 10) -> list[Card]:
        """Cards that fit a query: called so first, then in the name, in the words, in the description.

        Args:
            query: words; each that matches counts.
            limit: cards returned at most.

        Returns:
            the best first.
        """
        wanted = _folded(query)
        scored = [(-_fit(card, wanted), i) for i, card in enumerate(self.cards)]
        return [self.cards[i] for score, i in sorted(scored) if score < 0][:limit]

    def save(self, path: Path) -> None:
        """Write the cards.

        Args:
            path: the Parquet file.
        """
        rows = [
            {**asdict(card), **{k: list(getattr(card, k)) for k in ("words", "lift", "path")}} for card in self.cards
        ]
        pq.write_table(pa.Table.from_pylist(rows, schema=SCHEMA), path, compression="zstd")

    @classmethod
    def load(cls, path: Path) -> "ConceptLibrary":
        """Read a library.

        Args:
            path: the Parquet file, or a directory that holds `concepts.parquet`.

        Returns:
            the library.

        Raises:
            ArtifactError: missing or damaged.
        """
        file = path / LIBRARY_NAME if path.is_dir() else path
        if not file.is_file():
            raise ArtifactError(f"{file}: no concept library there; build an atlas first (vitrail atlas build)")
        try:
            with pq.ParquetFile(file) as stored:
                _require_columns(stored.schema_arrow)
                table = stored.read(SCHEMA.names).cast(SCHEMA)
            return cls([_card(row) for row in table.to_pylist()])
        except (pa.ArrowException, OSError, ValueError, TypeError) as error:
            problem = " ".join(str(error).split())
            raise ArtifactError(f"{file}: not a concept library ({problem}); build the atlas again") from error

    @cached_property
    def _by_name(self) -> Mapping[tuple[str, str], Card]:
        return {(card.head, _folded(card.name)): card for card in reversed(self.cards)}

    def _hint(self, name: str, head: str) -> str:
        """What a wrong name may have meant: a slip of the pen, else what speaks of it, else what looks like it."""
        names = [card.name for card in self.cards if card.head == head]
        related = [card.name for card in self.search(name, 50) if card.head == head][:3]
        slip = nearest(name, names, cutoff=SLIP)
        return slip or meant(related) or nearest(name, names) or "; `vitrail atlas search` lists them"


def _require_columns(schema: pa.Schema) -> None:
    missing = [name for name in SCHEMA.names if name not in schema.names]
    if missing:
        raise ValueError(f"no column '{missing[0]}'")


def _card(row: Mapping[str, Any]) -> Card:
    empty = [key for key, value in row.items() if value is None and key not in ("words", "lift", "path")]
    if empty:
        raise ValueError(f"a card without '{empty[0]}'")
    if row["head"] not in ("known", "discovered"):
        raise ValueError(f"unknown head '{row['head']}'")
    lists = {key: tuple(row[key] or ()) for key in ("words", "lift", "path")}
    return Card(**{**row, **lists})


def _folded(text: str) -> str:
    return " ".join(text.casefold().split())


def _fit(card: Card, query: str) -> float:
    name = _folded(card.name)
    called_so = 16.0 if query == name else 8.0 if query in name.split(", ") else 0.0
    return called_so + sum(_match(card, word) for word in query.split())


def _match(card: Card, word: str) -> float:
    if word in _folded(card.name).replace(",", " ").split():
        return 8.0
    if word in _folded(card.name):
        return 5.0
    if word in card.words:
        return 2.0
    return 1.0 if word in _folded(card.description) else 0.0
