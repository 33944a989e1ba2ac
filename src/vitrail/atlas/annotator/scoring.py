"""Scores of labels: what the head says, and what can be seen (§4.2.3).

A concept's score on a chunk is `z + 0.7 · min(lexical, 6)`: z is its head's logit in standard deviations over the
corpus; lexical is the sum over member tags in the chunk of (1 + ln tf) × idf × cosine(tag, concept) ×
reliability(tag), and over marks of (1 + ln tf) × weight. A chunk carries the concept if the score reaches its
threshold. Where neither tag nor mark stands, only a concept that may be labelled unseen has a score: its z,
shifted so that its own bar, `unseen`, meets the threshold. So most scores are sparse, and cost grows with what
stands in the text, not with the number of concepts.

Letters: R chunks, n tags, C concepts, E width.
"""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float32
from scipy.sparse import coo_array, csr_array

from vitrail.atlas.annotator.detector import LEXICAL_CAP, LEXICAL_WEIGHT
from vitrail.atlas.annotator.heads import Heads

DECIMALS = 3
"""Scores are rounded, so that no label hangs on the last bits of a sum."""


@dataclass(frozen=True)
class Scoring:
    """What turns readings into scores.

    Attributes:
        members: [n C] weight of each member tag, cosine × reliability; zero elsewhere.
        heads: of the C concepts.
        thresholds: [C] lowest score of a label.
        unseen: [C] lowest z of a label without tag or mark; infinite where there is none without.
    """

    members: csr_array
    heads: Heads
    thresholds: Float32[np.ndarray, " C"]
    unseen: Float32[np.ndarray, " C"]

    def seen(self, weighted: csr_array, marks: csr_array, chunks: Float32[np.ndarray, "R E"]) -> csr_array:
        """Scores of concepts that have a member tag or a mark in the chunk.

        Args:
            weighted: [R n] tf-idf.
            marks: [R C] lexical evidence of marks.
            chunks: [R E] unit chunk vectors.

        Returns:
            [R C] fp32; a place that is not stored has no score (a stored one may be 0).
        """
        lexical = csr_array(weighted @ self.members) + marks
        lexical.sort_indices()
        rows = np.repeat(np.arange(lexical.shape[0]), np.diff(lexical.indptr))
        z = self.heads.z_at(chunks, rows, lexical.indices)
        score = z + LEXICAL_WEIGHT * np.minimum(lexical.data, LEXICAL_CAP)
        return csr_array((_rounded(score), lexical.indices, lexical.indptr), shape=lexical.shape)

    def labels(self, weighted: csr_array, marks: csr_array, chunks: Float32[np.ndarray, "R E"]) -> csr_array:
        """Scores that reach their threshold.

        Args:
            weighted: [R n] tf-idf.
            marks: [R C] lexical evidence of marks.
            chunks: [R E] unit chunk vectors.

        Returns:
            [R C] fp32, sorted; only labels are stored.
        """
        seen = self.seen(weighted, marks, chunks).tocoo()
        row, concept = seen.coords
        keep = seen.data >= self.thresholds[concept]
        found = [(row[keep], concept[keep], seen.data[keep])]
        for concepts, z in self.heads.z_of(chunks, np.flatnonzero(np.isfinite(self.unseen))):
            row, place = np.nonzero(z >= self.unseen[concepts])
            concept = concepts[place]
            score = z[row, place] - self.unseen[concept] + self.thresholds[concept]
            found.append((row, concept, np.maximum(_rounded(score), self.thresholds[concept])))
        rows, ids, scores = (np.concatenate(parts) for parts in zip(*found, strict=True))
        return _largest(rows, ids, scores, seen.shape)


def _largest(rows: np.ndarray, concepts: np.ndarray, scores: np.ndarray, shape: tuple[int, int]) -> csr_array:
    """A table of the larger score where a pair occurs twice."""
    order = np.lexsort((-scores, concepts, rows))
    rows, concepts, scores = rows[order], concepts[order], scores[order]
    is_first = np.ones(len(rows), bool)
    is_first[1:] = (rows[1:] != rows[:-1]) | (concepts[1:] != concepts[:-1])
    kept = (rows[is_first], concepts[is_first])
    return coo_array((scores[is_first].astype(np.float32), kept), shape=shape).tocsr()


def _rounded(scores: Float32[np.ndarray, "..."]) -> Float32[np.ndarray, "..."]:
    return np.asarray(np.round(scores, DECIMALS), np.float32)
