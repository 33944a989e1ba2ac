"""What the heads of automatic concepts are taught: chunks labelled by evidence, most without the tags (§4.2.3).

Letters: R chunks, n tags, C concepts, P positives of a concept, E width.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float32
from numpy.typing import NDArray
from scipy.sparse import csr_array

from vitrail.atlas.annotator.blanking import blank, tag_pattern
from vitrail.atlas.annotator.detector import Detector
from vitrail.atlas.annotator.encoders import ChunkEncoder
from vitrail.atlas.annotator.training import Positives

BLANKED_SHARE = 0.9
MAX_POSITIVES = 256
MAX_POSITIVES_READ = 16
"""Positives of an encoder that reads texts: each one without tags is encoded anew."""


@dataclass(frozen=True)
class Teacher:
    """Chunks with their labels.

    Attributes:
        texts: R chunks.
        tags: n known tags.
        weighted: [R n] tf-idf.
        vectors: [R E].
        encoder: made the vectors.
        detector: knows the member tags of C concepts.
        labelled: the chunks of each concept.
        seed: of the choice of positives.
    """

    texts: Sequence[str]
    tags: Sequence[str]
    weighted: csr_array
    vectors: Float32[np.ndarray, "R E"]
    encoder: ChunkEncoder
    detector: Detector
    labelled: Sequence[NDArray[np.int64]]
    seed: int

    def positives(self, concept_id: int) -> Positives:
        """Labelled chunks of a concept, nine in ten without its member tags.

        Args:
            concept_id: 0..C-1.

        Returns:
            at most 256 positives (16 where texts must be read), each of weight 1.
        """
        rng = np.random.default_rng([self.seed, concept_id])
        limit = MAX_POSITIVES_READ if self.encoder.reads_text else MAX_POSITIVES
        rows = np.sort(rng.permutation(self.labelled[concept_id])[:limit])
        vectors = self.vectors[rows]
        blanked = rng.random(len(rows)) < BLANKED_SHARE
        if blanked.any():
            vectors[blanked] = self.without_tags(rows[blanked], concept_id)
        # A chunk that held nothing but the tags teaches nothing without them.
        kept = vectors[np.linalg.norm(vectors, axis=1) > 0]
        return Positives(kept, np.ones(len(kept), np.float32), np.zeros((0, kept.shape[1]), np.float32))

    def without_tags(self, rows: NDArray[np.int64], concept_id: int) -> Float32[np.ndarray, "P E"]:
        """Vectors of chunks without the member tags of a concept.

        Args:
            rows: P chunks.
            concept_id: 0..C-1.

        Returns:
            [P E]; zero where nothing is left.
        """
        members = self.detector.member_ids(concept_id)
        left = self.weighted[rows]
        is_left = np.ones(len(self.tags), np.float32)
        is_left[members] = 0
        left.data = left.data * is_left[left.indices]
        pattern = tag_pattern([self.tags[tag] for tag in members]) if self.encoder.reads_text else None
        return self.encoder.encode([blank(self.texts[row], pattern) for row in rows], left)
