"""Evidence for a concept in a chunk, as it can be seen: closeness in meaning, and member tags in the text (§4.2.3).

A concept's score on a chunk is `z + 0.7 · min(lexical, 6)`: z is the cosine of the chunk's vector with the
concept's, in standard deviations over the corpus; lexical is the sum over member tags in the chunk of
(1 + ln tf) × idf × cosine(tag, concept) × reliability(tag). The reliability is the share of the tag's chunks
that lie near the concept as a whole; below 0.4 a tag is no member ("adopted" is not yet an anthem). Only
chunks with a member tag have a score, so the scores are sparse: cost grows with the tags in the text, not with
the number of concepts.

Letters: R chunks, n tags, C concepts, E width.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from jaxtyping import Float32
from numpy.typing import NDArray
from scipy.sparse import coo_array, csc_array, csr_array, hstack

LEXICAL_WEIGHT = 0.7
LEXICAL_CAP = 6.0
MIN_SCALE = 1e-3
NEAR_SCORE = 1.0
MIN_RELIABILITY = 0.4
MIN_MEMBER_COSINE = 0.05
SLAB_CONCEPTS = 512
SLAB_SCORES = 16_384


@dataclass(frozen=True)
class Detector:
    """What is fitted per concept.

    Attributes:
        centroids: [C E] unit rows.
        mean: [C] mean cosine over the corpus.
        scale: [C] its standard deviation.
        members: [n C] weight of each member tag, cosine × reliability; zero elsewhere.
    """

    centroids: Float32[np.ndarray, "C E"]
    mean: Float32[np.ndarray, " C"]
    scale: Float32[np.ndarray, " C"]
    members: csr_array

    @classmethod
    def fit(
        cls,
        tags: Float32[np.ndarray, "n E"],
        centroids: Float32[np.ndarray, "C E"],
        members: Sequence[NDArray[np.int64]],
        counts: csr_array,
        chunks: Float32[np.ndarray, "R E"],
    ) -> "Detector":
        """A detector of concepts; memory holds the cosines of 512 concepts at a time.

        Args:
            tags: [n E] unit tag vectors.
            centroids: [C E] unit concept vectors.
            members: candidate tags of each concept; unreliable ones are left out.
            counts: [R n] tags of the chunks.
            chunks: [R E] unit chunk vectors that set the scale.

        Returns:
            the detector.
        """
        presence = counts.tocsc().copy()
        presence.data[:] = 1
        spread = np.maximum(np.diff(presence.indptr), 1)
        mean, scale = (np.zeros(len(centroids), np.float32) for _ in range(2))
        found: list[tuple[NDArray[np.int64], int, NDArray[np.float32]]] = []
        for concept, cosines in _cosine_columns(chunks, centroids):
            mean[concept], scale[concept] = _scale(cosines)
            is_near = ((cosines - mean[concept]) / scale[concept] >= NEAR_SCORE).astype(np.float32)
            tag_ids = np.asarray(members[concept])
            reliability = (presence[:, tag_ids].T @ is_near) / spread[tag_ids]
            kept = tag_ids[reliability >= MIN_RELIABILITY]
            closeness = np.maximum(tags[kept] @ centroids[concept], MIN_MEMBER_COSINE)
            weights = np.asarray(closeness * reliability[reliability >= MIN_RELIABILITY], np.float32)
            found.append((kept, concept, weights))
        return cls(centroids, mean, scale, member_table(found, len(tags), len(centroids)))

    @classmethod
    def empty(cls, num_tags: int, width: int) -> "Detector":
        """A detector of no concept.

        Args:
            num_tags: n.
            width: E.

        Returns:
            the detector.
        """
        none = np.zeros(0, np.float32)
        return cls(np.zeros((0, width), np.float32), none, none, csr_array((num_tags, 0), dtype=np.float32))

    def extended(self, centroids: Float32[np.ndarray, "c E"], chunks: Float32[np.ndarray, "R E"]) -> "Detector":
        """The detector with further concepts that have no member tags.

        Args:
            centroids: [c E] unit vectors of the further ones.
            chunks: [R E] unit chunk vectors that set the scale.

        Returns:
            a larger detector.
        """
        columns = (cosines for _, cosines in _cosine_columns(chunks, centroids))
        scales = np.array([_scale(cosines) for cosines in columns], np.float32).reshape(-1, 2)
        shape = (self.members.shape[0], len(self.mean) + len(centroids))
        members = csr_array((self.members.data, self.members.indices, self.members.indptr), shape=shape)
        return Detector(
            np.concatenate([self.centroids, centroids]),
            np.concatenate([self.mean, scales[:, 0]]),
            np.concatenate([self.scale, scales[:, 1]]),
            members,
        )

    def member_ids(self, concept_id: int) -> NDArray[np.int64]:
        """The reliable tags of a concept.

        Args:
            concept_id: 0..C-1.

        Returns:
            tag numbers, rising.
        """
        column = self._by_concept
        ids = column.indices[column.indptr[concept_id] : column.indptr[concept_id + 1]]
        return np.sort(ids).astype(np.int64)

    def only(self, concept_ids: Sequence[int]) -> "Detector":
        """The detector of some of its concepts.

        Args:
            concept_ids: in the wanted order.

        Returns:
            a smaller detector.
        """
        ids = list(concept_ids)
        return Detector(self.centroids[ids], self.mean[ids], self.scale[ids], self._by_concept[:, ids].tocsr())

    def beside(self, other: "Detector") -> "Detector":
        """The detector of its concepts and then those of another, over the same tags.

        Args:
            other: of more concepts.

        Returns:
            a larger detector.
        """
        return Detector(
            np.concatenate([self.centroids, other.centroids]),
            np.concatenate([self.mean, other.mean]),
            np.concatenate([self.scale, other.scale]),
            hstack([self.members, other.members], format="csr"),
        )

    def scores(self, weighted: csr_array, chunks: Float32[np.ndarray, "R E"]) -> csr_array:
        """Score of every concept on every chunk in which one of its member tags stands.

        Args:
            weighted: [R n] tf-idf.
            chunks: [R E] unit chunk vectors.

        Returns:
            [R C] fp32; a place that is not stored has no member tag, and so no score (a stored one may be 0).
        """
        lexical = csr_array(weighted @ self.members)
        lexical.sort_indices()
        rows = np.repeat(np.arange(lexical.shape[0]), np.diff(lexical.indptr))
        score = np.empty(lexical.nnz, np.float32)
        for start in range(0, lexical.nnz, SLAB_SCORES):
            slab = slice(start, start + SLAB_SCORES)
            concepts = lexical.indices[slab]
            cosine = np.einsum("ij,ij->i", chunks[rows[slab]], self.centroids[concepts])
            z = (cosine - self.mean[concepts]) / self.scale[concepts]
            score[slab] = z + LEXICAL_WEIGHT * np.minimum(lexical.data[slab], LEXICAL_CAP)
        # Rounded, so that no label hangs on the last bits of a sum.
        return csr_array((np.round(score, 3), lexical.indices, lexical.indptr), shape=lexical.shape)

    @cached_property
    def _by_concept(self) -> csc_array:
        return self.members.tocsc()


def member_table(found: Sequence[tuple[NDArray[np.int64], int, NDArray[np.float32]]], n: int, C: int) -> csr_array:
    """Member weights of concepts as one table.

    Args:
        found: (tag numbers, concept, weights of those tags) of each concept.
        n: tags.
        C: concepts.

    Returns:
        [n C] fp32.
    """
    if not found:
        return csr_array((n, C), dtype=np.float32)
    tags = np.concatenate([tag_ids for tag_ids, _, _ in found])
    concepts = np.concatenate([np.full(len(tag_ids), concept) for tag_ids, concept, _ in found])
    weights = np.concatenate([weight for *_, weight in found]).astype(np.float32)
    return coo_array((weights, (tags, concepts)), shape=(n, C)).tocsr()


def _scale(cosines: Float32[np.ndarray, " R"]) -> tuple[np.float32, np.float32]:
    """Mean and spread of a concept's cosines with all chunks."""
    return cosines.mean(), max(cosines.std(), np.float32(MIN_SCALE))


def _cosine_columns(
    chunks: Float32[np.ndarray, "R E"], centroids: Float32[np.ndarray, "C E"]
) -> Iterator[tuple[int, Float32[np.ndarray, " R"]]]:
    """Each concept with the cosines of all chunks."""
    for start in range(0, len(centroids), SLAB_CONCEPTS):
        slab = centroids[start : start + SLAB_CONCEPTS] @ chunks.T
        yield from enumerate(slab, start)
