"""Field guide and co-occurrence: each concept's best chunks, and how often two concepts share a chunk.

Counted in each shard and merged: sums, and the best of the bests, so the order of shards does not matter. A pair of
concepts is one number, first × C + second, with first ≤ second; the diagonal counts a concept's chunks.
"""

from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from jaxtyping import Int64
from numpy.typing import NDArray

from vitrail.atlas.library import ConceptLibrary

EXAMPLES_PER_CONCEPT = 5
GUIDE_NAME, PAIRS_NAME = "field_guide.parquet", "cooccurrence.parquet"
_MANY_ROWS = 4_000_000
"""Rows that wait for a merge: 64 MB of pairs."""

_BEST = pa.schema([("concept_id", pa.int32()), ("score", pa.float32()), ("row", pa.int64()), ("chunk_id", pa.string())])
_PAIRS = pa.schema([("first", pa.int32()), ("second", pa.int32()), ("num_chunks", pa.int64())])


class FieldGuide:
    """Best chunks and pairs, gathered from tables of labelled chunks or from other guides."""

    def __init__(self) -> None:
        """Begin with nothing."""
        self._best, self._pairs = _BEST.empty_table(), _PAIRS.empty_table()
        self._waiting_best: list[pa.Table] = []
        self._waiting_pairs: list[pa.Table] = []

    def add(self, table: pa.Table, first_row: int) -> None:
        """Count the labels of some chunks.

        Args:
            table: with the columns `chunk_id` and `labels`.
            first_row: row of its first chunk.
        """
        labels = table["labels"].combine_chunks()
        sizes = pc.list_value_length(labels).to_numpy(zero_copy_only=False).astype(np.int64)
        flat = labels.flatten()
        concepts = flat.field("concept_id").to_numpy(zero_copy_only=False)
        places = np.repeat(np.arange(len(sizes)), sizes)
        best = pa.table(
            {
                "concept_id": concepts,
                "score": flat.field("score"),
                "row": places + first_row,
                "chunk_id": table["chunk_id"].take(pa.array(places)).combine_chunks(),
            },
            schema=_BEST,
        )
        self._wait([best], list(_pairs(concepts.astype(np.int64), sizes)))

    def merge(self, folder: Path, first_row: int) -> None:
        """Add what another guide has saved.

        Args:
            folder: where it was saved.
            first_row: what its rows are counted from.
        """
        best = pq.read_table(folder / GUIDE_NAME)
        best = best.set_column(2, "row", pc.add(best["row"], first_row))
        self._wait([best.cast(_BEST)], [pq.read_table(folder / PAIRS_NAME).cast(_PAIRS)])

    def save(self, folder: Path) -> None:
        """Write what was gathered, to be merged later.

        Args:
            folder: a directory.
        """
        self._settle()
        pq.write_table(self._best, folder / GUIDE_NAME, compression="zstd")
        pq.write_table(self._pairs, folder / PAIRS_NAME, compression="zstd")

    def write(self, folder: Path, library: ConceptLibrary) -> None:
        """Write the tables of the artifact.

        Args:
            folder: its directory.
            library: the concepts; one row each in the field guide.
        """
        self._settle()
        cards = [card for card in library.cards if card.head == "known"]
        pairs = {name: self._pairs[name].to_numpy() for name in _PAIRS.names}
        is_alone = pairs["first"] == pairs["second"]
        num_chunks = np.zeros(len(cards), np.int64)
        num_chunks[pairs["first"][is_alone]] = pairs["num_chunks"][is_alone]
        starts = np.searchsorted(self._best["concept_id"].to_numpy(), np.arange(len(cards) + 1))
        offsets = pa.array(starts, pa.int32())
        guide = pa.table(
            {
                "concept_id": pa.array([card.concept_id for card in cards], pa.int32()),
                "name": [card.name for card in cards],
                "num_chunks": num_chunks,
                **{
                    plural: pa.ListArray.from_arrays(offsets, self._best[name].combine_chunks())
                    for plural, name in (("rows", "row"), ("chunk_ids", "chunk_id"), ("scores", "score"))
                },
            }
        )
        pq.write_table(guide, folder / GUIDE_NAME, compression="zstd")
        pq.write_table(self._pairs, folder / PAIRS_NAME, compression="zstd")

    def _wait(self, best: Iterable[pa.Table], pairs: Iterable[pa.Table]) -> None:
        self._waiting_best += best
        self._waiting_pairs += pairs
        if sum(map(len, self._waiting_best)) + sum(map(len, self._waiting_pairs)) > _MANY_ROWS:
            self._settle()

    def _settle(self) -> None:
        self._best = _best_of(pa.concat_tables([self._best, *self._waiting_best]))
        self._pairs = _summed(pa.concat_tables([self._pairs, *self._waiting_pairs]))
        self._waiting_best, self._waiting_pairs = [], []


def _best_of(table: pa.Table) -> pa.Table:
    """The best few rows of each concept, best first; of equal scores the earlier chunk wins."""
    order = [("concept_id", "ascending"), ("score", "descending"), ("row", "ascending")]
    table = table.sort_by(order).combine_chunks()
    concepts = table["concept_id"].to_numpy()
    starts = np.flatnonzero(np.diff(concepts, prepend=-1))
    sizes = np.diff(starts, append=len(concepts))
    place = np.arange(len(concepts)) - np.repeat(starts, sizes)
    return table.filter(pa.array(place < EXAMPLES_PER_CONCEPT)).combine_chunks()


def _summed(table: pa.Table) -> pa.Table:
    total = table.group_by(["first", "second"], use_threads=False).aggregate([("num_chunks", "sum")])
    total = total.rename_columns(["first", "second", "num_chunks"]).select(_PAIRS.names).cast(_PAIRS)
    return total.sort_by([("first", "ascending"), ("second", "ascending")]).combine_chunks()


def _pairs(concepts: Int64[np.ndarray, " labels"], sizes: Int64[np.ndarray, " chunks"]) -> Iterator[pa.Table]:
    """Pairs of concepts on one chunk, from all chunks with equally many labels at once."""
    starts = np.cumsum(sizes) - sizes
    for size in np.unique(sizes[sizes > 0]).tolist():
        rows = np.sort(concepts[starts[sizes == size][:, None] + np.arange(size)], axis=1)
        first, second = np.triu_indices(size)
        yield _counted(rows[:, first].ravel(), rows[:, second].ravel())


def _counted(first: NDArray[np.int64], second: NDArray[np.int64]) -> pa.Table:
    num_concepts = int(second.max()) + 1
    pairs, counts = np.unique(first * num_concepts + second, return_counts=True)
    ids = [each.astype(np.int32) for each in np.divmod(pairs, num_concepts)]
    columns = (*ids, counts.astype(np.int64))
    return pa.table(dict(zip(_PAIRS.names, columns, strict=True)), schema=_PAIRS)
