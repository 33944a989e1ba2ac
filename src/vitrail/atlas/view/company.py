"""Concepts on the same chunk: which meet more often than chance would have it.

Read from an annotated corpus's `cooccurrence.parquet`. Neighbours are ordered by count × log(lift), the main
term of the likelihood ratio (C): a pair met a thousand times at lift 3 comes before one met twice at lift 50.

Letters: C concepts, n neighbours.
"""

import math
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

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
    """Pair counts of a corpus."""

    def __init__(self, pairs: dict[int, dict[int, int]], counts: dict[int, int], num_chunks: int):
        """Hold counts; use `Company.load`.

        Args:
            pairs: concept → other concept → chunks with both, in both directions.
            counts: concept → chunks.
            num_chunks: of the corpus.
        """
        self.counts = counts
        self._pairs = pairs
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
            rows = pq.read_table(path, columns=["first", "second", "num_chunks"]).to_pylist()
        except (OSError, pa.ArrowException) as error:
            problem = " ".join(str(error).split())
            raise ArtifactError(f"{path}: damaged or missing ({problem}); make the annotated corpus again") from error
        pairs: dict[int, dict[int, int]] = defaultdict(dict)
        counts: dict[int, int] = {}
        for first, second, count in ((row["first"], row["second"], row["num_chunks"]) for row in rows):
            if first == second:
                counts[first] = count
            else:
                pairs[first][second] = pairs[second][first] = count
        return cls(dict(pairs), counts, num_chunks)

    def near(self, concept_id: int, limit: int) -> list[Met]:
        """The concepts that most often share a chunk with one, beyond chance.

        Args:
            concept_id: the one.
            limit: how many at most.

        Returns:
            the strongest first; pairs at or below chance are left out.
        """
        met = [
            Met(other, count, count * self._num_chunks / (self.counts[concept_id] * self.counts[other]))
            for other, count in self._pairs.get(concept_id, {}).items()
            if count >= FEWEST
        ]
        above = [pair for pair in met if pair.lift > 1]
        return sorted(above, key=lambda pair: (-pair.num_chunks * math.log(pair.lift), pair.concept_id))[:limit]
