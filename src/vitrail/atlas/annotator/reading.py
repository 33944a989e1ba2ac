"""Reading chunks: tags, marks and vectors of texts, all that labels are made from.

Letters: R chunks, n tags, C concepts, E width.
"""

import math
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float32
from scipy.sparse import csr_array

from vitrail.atlas.annotator.encoders import ChunkEncoder
from vitrail.atlas.annotator.marks import Mark, Marker
from vitrail.atlas.concepts.geometry import count_matrix, tf_idf
from vitrail.atlas.tags import Occurrence, Tagger


@dataclass(frozen=True)
class Reading:
    """What stands in R chunks.

    Attributes:
        occurrences: the tags of each chunk.
        marks: the marked places of each chunk.
        weighted: [R n] tf-idf of the tags.
        vectors: [R E] unit chunk vectors.
    """

    occurrences: list[list[Occurrence]]
    marks: list[list[Mark]]
    weighted: csr_array
    vectors: Float32[np.ndarray, "R E"]


class Reader:
    """Tagger, marker and encoder together."""

    def __init__(
        self,
        tags: Sequence[str],
        rarity: Float32[np.ndarray, " n"],
        encoder: ChunkEncoder,
        marker: Marker | None = None,
    ):
        """Put the parts together.

        Args:
            tags: n known tags.
            rarity: [n] inverse document frequencies.
            encoder: of chunks.
            marker: finds the phrases of own concepts; none if there are none.
        """
        self.tags, self.rarity, self.encoder = tuple(tags), rarity, encoder
        self.marker = marker or Marker([])
        self._tagger = Tagger(self.tags)

    def read(self, texts: Sequence[str]) -> Reading:
        """Read chunks.

        Args:
            texts: R texts.

        Returns:
            what stands in them.
        """
        found = [self._tagger.tag(text) for text in texts]
        counts = count_matrix([[o.tag for o in inside] for inside in found], len(self.tags))
        weighted = tf_idf(counts, self.rarity)
        return Reading(
            found, [self.marker.find(text) for text in texts], weighted, self.encoder.encode(texts, weighted)
        )


def mark_table(marks: Sequence[Sequence[Mark]], marker: Marker, num_concepts: int) -> csr_array:
    """Lexical evidence of marks: the sum over a concept's phrases of (1 + ln tf) × weight.

    Args:
        marks: of R chunks.
        marker: knows each phrase's concept and weight.
        num_concepts: C.

    Returns:
        [R C] fp32.
    """
    indptr, indices = [0], list[int]()
    data: list[float] = []
    for inside in marks:
        lexical: defaultdict[int, float] = defaultdict(float)
        for phrase, count in sorted(Counter(mark.phrase for mark in inside).items()):
            given = marker.phrases[phrase]
            lexical[given.concept_id] += (1 + math.log(count)) * given.weight
        indices += sorted(lexical)
        data += [lexical[c] for c in sorted(lexical)]
        indptr.append(len(indices))
    return csr_array(
        (np.array(data, np.float32), np.array(indices, np.int64), np.array(indptr)), shape=(len(marks), num_concepts)
    )
