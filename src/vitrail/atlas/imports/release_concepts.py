"""The concepts of a release, numbered anew: its ids may be anything, ours are 0 to C-1."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, get_args

import numpy as np
from jaxtyping import Float32, Int64

from vitrail.atlas.concepts.own import plain_line
from vitrail.atlas.imports.release_tables import ReleaseTable
from vitrail.atlas.library import Card, ConceptLibrary, Kind
from vitrail.errors import CorpusError

MAX_WORDS = 24


@dataclass(frozen=True)
class ReleaseConcepts:
    """Concepts of a release.

    Attributes:
        ids: the release's ids in our order: numbers by size, texts by alphabet.
        place: release id → ours.
        cards: without counts and thresholds.
        stated: chunks that the release says carry each concept; None where it does not say.
    """

    ids: Sequence[Any]
    place: Mapping[Any, int]
    cards: Sequence[Card]
    stated: Sequence[int | None]

    def library(self, num_chunks: Int64[np.ndarray, " C"], thresholds: Float32[np.ndarray, " C"]) -> ConceptLibrary:
        """The library, with what the labels tell.

        Args:
            num_chunks: chunks that carry each concept.
            thresholds: lowest score of each.

        Returns:
            the library.
        """
        told = zip(self.cards, num_chunks.tolist(), thresholds.tolist(), strict=True)
        return ConceptLibrary([replace(card, num_chunks=count, threshold=low) for card, count, low in told])


def read_concepts(table: ReleaseTable) -> ReleaseConcepts:
    """Read the table of concepts.

    Args:
        table: of the release.

    Returns:
        the concepts.

    Raises:
        CorpusError: no concept, an id that is missing or there twice, or a kind that is none.
    """
    rows = [row for batch in table.batches() for row in batch.to_pylist()]
    where = ", ".join(path.name for path in table.files)
    if not rows:
        raise CorpusError(f"{where}: the table of concepts is empty; name the right file in a column map")
    ids = [row["concept_id"] for row in rows]
    if None in ids:
        raise CorpusError(f"{where}: a concept has no id; name the right column in a column map")
    rows.sort(key=lambda row: row["concept_id"])
    twice = [a["concept_id"] for a, b in pairwise(rows) if a["concept_id"] == b["concept_id"]]
    if twice:
        raise CorpusError(f"{where}: concept {twice[0]!r} is there twice; leave one of them out")
    taken: set[str] = set()
    cards = [_card(place, row, taken, where) for place, row in enumerate(rows)]
    return ReleaseConcepts(
        ids=[row["concept_id"] for row in rows],
        place={row["concept_id"]: place for place, row in enumerate(rows)},
        cards=cards,
        stated=[row.get("num_chunks") for row in rows],
    )


def _card(place: int, row: Mapping[str, Any], taken: set[str], where: str) -> Card:
    name = _plain(row["name"]) or f"concept {row['concept_id']}"
    while name.casefold() in taken:  # a library finds concepts by name; another may be called "name (id)" already
        name = f"{name} ({row['concept_id']})"
    taken.add(name.casefold())
    kind = row.get("kind") or "content"
    if kind not in get_args(Kind):
        raise CorpusError(
            f"{where}: concept {row['concept_id']!r} is of kind {kind!r}; known: {', '.join(get_args(Kind))}; "
            "set concepts.kind to null in a column map"
        )
    words = tuple(_plain(word) for word in row.get("words") or ())[:MAX_WORDS]
    return Card(
        concept_id=place,
        head="known",
        name=name,
        description=_plain(row.get("description")),
        kind=kind,
        words=words,
        lift=(),
        path=tuple(_plain(step) for step in row.get("path") or ()),
        num_chunks=0,
        threshold=0.0,
        is_automatic=True,
    )


def _plain(value: Any) -> str:
    return "" if value is None else plain_line(str(value))
