"""Whether the tables of a release agree with its labels.

Sets of (concept, chunk) are compared without holding them: for each concept their number, and the sum of the
chunks' 64-bit hashes, which does not depend on the order. Equal sets agree always; different ones pass by chance
once in 2⁶⁴.

Letters: C concepts, P labels.
"""

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from jaxtyping import Bool, Int64, UInt64
from numpy.typing import NDArray

from vitrail.atlas.imports.release_concepts import ReleaseConcepts
from vitrail.atlas.imports.release_tables import ReleaseTable

SHOWN = 5


@dataclass(frozen=True)
class Check:
    """One comparison of two tables.

    Attributes:
        what: what must be equal.
        compared: how many entries were compared; 0 where the release does not have the table.
        differing: how many differ.
        examples: the first few that differ, in words.
    """

    what: str
    compared: int
    differing: int
    examples: tuple[str, ...] = ()


def check_lines(report: Iterable[Mapping[str, Any]]) -> list[str]:
    """What checks found, one line each.

    Args:
        report: checks as plain values, as `import.json` keeps them.

    Returns:
        lines such as "reverse index against labels, by concept: all 512 agree".
    """
    return [_line(**check) for check in report]


def _line(what: str, compared: int, differing: int, examples: Sequence[str]) -> str:
    if not compared:
        return f"{what}: not in the release"
    if not differing:
        return f"{what}: all {compared:,} agree"
    return f"{what}: {differing:,} of {compared:,} differ, such as {'; '.join(examples)}"


class PairSets:
    """Number and hash of the set of chunks of each concept."""

    def __init__(self, num_concepts: int) -> None:
        """Begin with empty sets.

        Args:
            num_concepts: C.
        """
        self.counts: Int64[np.ndarray, " C"] = np.zeros(num_concepts, np.int64)
        self.hashes: UInt64[np.ndarray, " C"] = np.zeros(num_concepts, np.uint64)

    def add(self, concepts: NDArray[np.int64], hashes: NDArray[np.uint64]) -> None:
        """Add pairs.

        Args:
            concepts: [P] our ids.
            hashes: [P] `chunk_hash` of the chunks.
        """
        np.add.at(self.counts, concepts, 1)
        np.add.at(self.hashes, concepts, hashes)  # wraps around, as it should


def chunk_hash(chunk_id: Any) -> int:
    """64 bits of a chunk's id.

    Args:
        chunk_id: number or text.

    Returns:
        0..2⁶⁴-1.
    """
    return int.from_bytes(hashlib.blake2b(str(chunk_id).encode(), digest_size=8).digest())


def check_stated(concepts: ReleaseConcepts, labels: PairSets) -> Check:
    """Whether the release's counts of chunks are those of its labels.

    Args:
        concepts: of the release.
        labels: what the chunks carry.

    Returns:
        the result.
    """
    told = [(c, stated) for c, stated in enumerate(concepts.stated) if stated is not None]
    wrong = [(c, stated) for c, stated in told if stated != labels.counts[c]]
    examples = [f"'{concepts.cards[c].name}' says {stated:,}, has {labels.counts[c]:,}" for c, stated in wrong[:SHOWN]]
    return Check("chunks of each concept, as stated", len(told), len(wrong), tuple(examples))


def check_reverse(table: ReleaseTable, concepts: ReleaseConcepts, labels: PairSets) -> Check:
    """Whether the reverse index lists the chunks that carry the labels.

    Args:
        table: the reverse index.
        concepts: of the release.
        labels: what the chunks carry.

    Returns:
        the result.

    Raises:
        CorpusError: a file is damaged.
    """
    what = "reverse index against labels, by concept"
    if not table.files:
        return Check(what, 0, 0)
    listed, num_unknown = PairSets(len(concepts.cards)), 0
    for batch in table.batches():
        ids, chunks = _pairs(batch)
        places = np.array([concepts.place.get(value, -1) for value in ids], np.int64)
        num_unknown += int((places < 0).sum())
        hashes = np.array([chunk_hash(chunk) for chunk in chunks], np.uint64)
        listed.add(places[places >= 0], hashes[places >= 0])
    wrong = np.flatnonzero((listed.counts != labels.counts) | (listed.hashes != labels.hashes)).tolist()
    examples = [
        f"'{concepts.cards[c].name}' lists {listed.counts[c]:,} chunks, {labels.counts[c]:,} carry it"
        for c in wrong[:SHOWN]
    ]
    if num_unknown:
        examples.append(f"{num_unknown:,} entries of unknown concepts")
    return Check(what, len(concepts.cards) + bool(num_unknown), len(wrong) + bool(num_unknown), tuple(examples))


def _pairs(batch: pa.Table) -> tuple[list[Any], list[Any]]:
    chunks = batch["chunk_ids"].combine_chunks()
    ids = batch["concept_id"].combine_chunks()
    if not (pa.types.is_list(chunks.type) or pa.types.is_large_list(chunks.type)):
        return ids.to_pylist(), chunks.to_pylist()
    return ids.take(pc.list_parent_indices(chunks)).to_pylist(), pc.list_flatten(chunks).to_pylist()


def check_cooccurrence(table: ReleaseTable, concepts: ReleaseConcepts, counted: pa.Table) -> Check:
    """Whether the release's pair counts are those of its labels.

    Args:
        table: co-occurrence; pairs in one or both directions, with or without each concept's own count.
        concepts: of the release.
        counted: `first`, `second`, `num_chunks` that carry both, from the labels; first ≤ second.

    Returns:
        the result.

    Raises:
        CorpusError: a file is damaged.
    """
    what = "co-occurrence against labels, by pair"
    if not table.files:
        return Check(what, 0, 0)
    pairs = _CountedPairs(counted, len(concepts.cards))
    others: set[int] = set()
    wrong: dict[int, int] = {}  # pair → what the release says of it; a pair listed both ways is one pair
    for batch in table.batches():
        keys, stated = _stated_pairs(batch, concepts)
        told, is_counted = pairs.look_up(keys)
        others.update(keys[~is_counted].tolist())
        is_wrong = (told != stated) | (keys <= len(concepts.cards))
        for key, count in zip(keys[is_wrong].tolist(), stated[is_wrong].tolist(), strict=True):
            wrong.setdefault(key, count)
    missing = pairs.not_looked_up()
    shown = [*wrong.items(), *((key, 0) for key in missing[:SHOWN].tolist())][:SHOWN]
    examples = [_pair_words(key, stated, int(pairs.look_up(np.array([key]))[0][0]), concepts) for key, stated in shown]
    return Check(what, len(pairs) + len(others), len(wrong) + len(missing), tuple(examples))


class _CountedPairs:
    """Pairs of concepts with their counts, as sorted numbers: 17 bytes a pair."""

    def __init__(self, counted: pa.Table, num_concepts: int) -> None:
        first, second, counts = (counted[name].to_numpy() for name in ("first", "second", "num_chunks"))
        keys = _pair_keys(first.astype(np.int64), second.astype(np.int64), num_concepts)
        order = np.argsort(keys[first != second])
        # Behind the last pair stands one that nobody asks for, so that every place of a search is there.
        self._keys = np.append(keys[first != second][order], np.iinfo(np.int64).max)
        self._counts = np.append(counts[first != second][order], 0)
        self._is_looked_up = np.zeros(len(self._keys), np.bool_)

    def __len__(self) -> int:
        return len(self._keys) - 1

    def look_up(self, keys: Int64[np.ndarray, " P"]) -> tuple[Int64[np.ndarray, " P"], Bool[np.ndarray, " P"]]:
        """Chunks with both concepts of each pair, 0 for a pair that was not counted; and whether it was."""
        places = np.searchsorted(self._keys, keys)
        is_counted = self._keys[places] == keys
        self._is_looked_up[places[is_counted]] = True
        return np.where(is_counted, self._counts[places], 0), is_counted

    def not_looked_up(self) -> Int64[np.ndarray, " P"]:
        """Pairs that share a chunk and were never asked for."""
        return np.asarray(self._keys[~self._is_looked_up & (self._counts > 0)], np.int64)


def _pair_keys(
    first: Int64[np.ndarray, " P"], second: Int64[np.ndarray, " P"], num_concepts: int
) -> Int64[np.ndarray, " P"]:
    """A number for each pair, whichever of the two comes first; -1 is an unknown concept."""
    low, high = np.minimum(first, second), np.maximum(first, second)
    return np.asarray((low + 1) * (num_concepts + 1) + high + 1, np.int64)


def _stated_pairs(
    batch: pa.Table, concepts: ReleaseConcepts
) -> tuple[Int64[np.ndarray, " P"], Int64[np.ndarray, " P"]]:
    """Pairs of two concepts and the counts that the release states; a concept's own count is left out."""
    first, second = (
        np.array([concepts.place.get(value, -1) for value in batch[name].to_pylist()], np.int64)
        for name in ("first", "second")
    )
    stated = pc.fill_null(batch["num_chunks"].cast(pa.int64()), 0).to_numpy()
    is_pair = (first != second) | (first < 0)
    return _pair_keys(first, second, len(concepts.cards))[is_pair], stated[is_pair]


def _pair_words(key: int, stated: int, counted: int, concepts: ReleaseConcepts) -> str:
    pair = (place - 1 for place in divmod(key, len(concepts.cards) + 1))
    names = " with ".join(f"'{concepts.cards[c].name}'" if c >= 0 else "an unknown concept" for c in pair)
    return f"{names} says {stated:,}, labels give {counted:,}"
