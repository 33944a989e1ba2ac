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
from jaxtyping import Int64, UInt64
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


def check_cooccurrence(table: ReleaseTable, concepts: ReleaseConcepts, counted: Mapping[tuple[int, int], int]) -> Check:
    """Whether the release's pair counts are those of its labels.

    Args:
        table: co-occurrence; pairs in one or both directions, with or without each concept's own count.
        concepts: of the release.
        counted: (first, second), first < second → chunks that carry both, from the labels.

    Returns:
        the result.

    Raises:
        CorpusError: a file is damaged.
    """
    what = "co-occurrence against labels, by pair"
    if not table.files:
        return Check(what, 0, 0)
    seen: set[tuple[int, int]] = set()
    wrong: list[str] = []
    num_wrong = 0
    for batch in table.batches():
        for first, second, count in _triples(batch, concepts.place):
            if first == second >= 0:
                continue
            pair = (min(first, second), max(first, second))
            seen.add(pair)
            if first < 0 or second < 0 or counted.get(pair, 0) != count:
                num_wrong += 1
                wrong += [_pair_words(pair, count, counted.get(pair, 0), concepts)][: SHOWN - len(wrong)]
    missing = [pair for pair, count in counted.items() if pair not in seen and count]
    num_wrong += len(missing)
    wrong += [_pair_words(pair, 0, counted[pair], concepts) for pair in missing[: max(0, SHOWN - len(wrong))]]
    return Check(what, len(seen | counted.keys()), num_wrong, tuple(wrong))


def _triples(batch: pa.Table, place: Mapping[Any, int]) -> Iterable[tuple[int, int, int]]:
    columns = (batch[name].to_pylist() for name in ("first", "second", "num_chunks"))
    for first, second, count in zip(*columns, strict=True):
        yield place.get(first, -1), place.get(second, -1), count or 0


def _pair_words(pair: Sequence[int], stated: int, counted: int, concepts: ReleaseConcepts) -> str:
    names = " with ".join(f"'{concepts.cards[c].name}'" if c >= 0 else "an unknown concept" for c in pair)
    return f"{names} says {stated:,}, labels give {counted:,}"
