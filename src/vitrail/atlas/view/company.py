"""Concepts on the same chunk: which meet more often than chance would have it.

Read from an annotated corpus's `cooccurrence.parquet`. Neighbours are ordered by count × log(lift), the main
term of the likelihood ratio (C): a pair met a thousand times at lift 3 comes before one met twice at lift 50.

Letters: C concepts, P pairs.
"""

import math
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from jaxtyping import Int32, Int64

from vitrail.atlas.annotated.guide import PAIRS_NAME
from vitrail.errors import ArtifactError

FEWEST = 3
"""Chunks that two concepts must share before a lift is worth a word."""


@dataclass(frozen=True)
class Met:
    """A concept that shares chunks with another.

    Attributes:
        concept_id: the other one.
        num_chunks: chunks that carry both.
        lift: how many times more than if the two were independent.
    """

    concept_id: int
    num_chunks: int
    lift: float


class Company:
    """Pair counts of a corpus, as arrays: 32 bytes a pair."""

    def __init__(
        self,
        first: Int32[np.ndarray, " P"],
        second: Int32[np.ndarray, " P"],
        both: Int64[np.ndarray, " P"],
        num_chunks: int,
    ) -> None:
        """Hold counts; use `Company.load`.

        Args:
            first: a concept of each pair.
            second: the other one; the same where a concept's own chunks are counted.
            both: chunks that carry both.
            num_chunks: of the corpus.
        """
        is_alone = first == second
        self._counts = dict(zip(first[is_alone].tolist(), both[is_alone].tolist(), strict=True))
        first, second, both = (column[~is_alone] for column in (first, second, both))
        concepts = np.concatenate([first, second])
        order = np.argsort(concepts, kind="stable")
        self._concepts = concepts[order]
        self._others = np.concatenate([second, first])[order]
        self._both = np.concatenate([both, both])[order]
        self._num_chunks = num_chunks

    @classmethod
    def load(cls, folder: Path, num_chunks: int) -> "Company":
        """Read the pair counts.

        Args:
            folder: an annotated corpus.
            num_chunks: chunks of the corpus.

        Returns:
            the counts.

        Raises:
            ArtifactError: missing or damaged.
        """
        path = folder / PAIRS_NAME
        try:
            table = pq.read_table(path, columns=["first", "second", "num_chunks"])
        except (OSError, pa.ArrowException) as error:
            problem = " ".join(str(error).split())
            raise ArtifactError(f"{path}: damaged or missing ({problem}); make the annotated corpus again") from error
        first, second, both = (table[name].to_numpy() for name in ("first", "second", "num_chunks"))
        return cls(first, second, both, num_chunks)

    def near(self, concept_id: int, limit: int) -> list[Met]:
        """The concepts that most often share a chunk with one, beyond chance.

        Args:
            concept_id: the one.
            limit: how many at most.

        Returns:
            the strongest first; pairs at or below chance are left out.
        """
        ends = np.array([concept_id, concept_id + 1], np.int32)  # of another width, numpy would copy all pairs
        own = slice(*np.searchsorted(self._concepts, ends).tolist())
        met = [
            Met(other, count, count * self._num_chunks / (self._counts[concept_id] * self._counts[other]))
            for other, count in zip(self._others[own].tolist(), self._both[own].tolist(), strict=True)
            if count >= FEWEST
        ]
        above = [pair for pair in met if pair.lift > 1]
        return sorted(above, key=lambda pair: (-pair.num_chunks * math.log(pair.lift), pair.concept_id))[:limit]
