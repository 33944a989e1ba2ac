"""The space in which tags are clustered: a vector, a frequency and a specificity for each (§4.2.2).

Which vectors, is a setting: meaning (MiniLM of the tag), company (co-occurrence in the corpus), or both side by
side; `experiments/tag_encoders.py` measures them, and its table made "both" the default.

Letters: R chunks, n tags, E width of a tag vector; the first numbers of a vector are meaning, the rest company.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import faiss
import numpy as np
from jaxtyping import Float, Float32
from numpy.typing import NDArray
from scipy.sparse import csr_array

from vitrail.atlas.concepts.company import company
from vitrail.atlas.concepts.geometry import (
    chunk_vectors,
    specificity,
    tag_rarity,
    tag_vectors,
    tf_idf,
    unit,
)
from vitrail.atlas.concepts.tag_encoder import TagEncoder
from vitrail.atlas.concepts.vector_cache import VectorCache
from vitrail.atlas.sample import Chunks
from vitrail.atlas.tags.tagging import Tagging

VectorKind = Literal["both", "minilm", "company"]
"""What the vector of a tag is made of."""

NUM_TOPICS = 24
"""Coarse topics that stand in for domains where the corpus names none."""


@dataclass(frozen=True)
class TagSpace:
    """The tags that clusters are made of.

    Attributes:
        vectors: [n E] unit rows, meaning then company.
        meaning_width: how many of the E numbers are meaning: none with company alone, all with meaning alone.
        num_chunks: [n] chunks that carry each tag.
        specificity: [n] below 1; 0 for words of everywhere.
        noun_share: [n] how far each tag is used as the name of a thing, 0..1.
    """

    vectors: Float32[np.ndarray, "n E"]
    meaning_width: int
    num_chunks: NDArray[np.int64]
    specificity: Float[np.ndarray, " n"]
    noun_share: Float[np.ndarray, " n"]

    def mean(self, members: NDArray[np.int64]) -> Float32[np.ndarray, " E"]:
        """Mean vector of some tags, weighted by the root of their frequency (not of unit norm)."""
        weights = np.sqrt(self.num_chunks[members])
        return np.asarray(weights @ self.vectors[members] / weights.sum(), np.float32)


@dataclass(frozen=True)
class Encoded:
    """Tags and chunks as vectors.

    Attributes:
        space: the tags.
        rarity: [n] inverse document frequencies.
        weighted: [R n] tf-idf of the chunks.
        rows: [R E] unit chunk vectors.
    """

    space: TagSpace
    rarity: Float32[np.ndarray, " n"]
    weighted: csr_array
    rows: Float32[np.ndarray, "R E"]


def encode(
    tagging: Tagging,
    chunks: Chunks,
    seed: int,
    tag_encoder: VectorKind = "both",
    cache: Path | None = None,
) -> Encoded:
    """Vectors of tags and chunks.

    Args:
        tagging: of the chunks.
        chunks: the sample.
        seed: of the factorisation and of the coarse topics.
        tag_encoder: what a tag's vector is made of.
        cache: folder where vectors of tags are kept for later builds; they come out the same with or without.

    Returns:
        the space and what chunks are made of in it.

    Raises:
        ArtifactError: the encoder's weights are missing, or the cache cannot be written.
    """
    rarity = tag_rarity(tagging.occurrences)
    weighted = tf_idf(tagging.occurrences, rarity)
    vectors, meaning_width = _vectors(tagging.table.tags, _company_kept(tagging, weighted), seed, tag_encoder, cache)
    rows = chunk_vectors(weighted, vectors)
    is_name = np.array(tagging.table.is_name)
    space = TagSpace(
        vectors,
        meaning_width,
        _spread(tagging.given),
        _specificity(tagging.given, rows, chunks, is_name, seed),
        np.array(tagging.table.noun_share or [1.0] * len(is_name)),
    )
    return Encoded(space, rarity, weighted, rows)


def _vectors(
    tags: Sequence[str], weighted: csr_array, seed: int, tag_encoder: VectorKind, cache: Path | None
) -> tuple[Float32[np.ndarray, "n E"], int]:
    """Vectors of tags, and how many of their numbers are meaning."""
    if tag_encoder == "company":
        return company(weighted, seed), 0
    encoder = TagEncoder()
    meaning = (encoder if cache is None else VectorCache(encoder, cache)).encode(tags)
    if tag_encoder == "minilm":
        return unit(meaning - meaning.mean(0)), encoder.width
    return tag_vectors(meaning, company(weighted, seed)), encoder.width


def _company_kept(tagging: Tagging, weighted: csr_array) -> csr_array:
    """[R n] tf-idf of the tags that keep company in a chunk: those of its text, and those given in other words."""
    if tagging.given is tagging.occurrences:
        return weighted
    kept = tagging.occurrences.maximum(tagging.given)
    return tf_idf(kept, tag_rarity(kept))


def _spread(counts: csr_array) -> NDArray[np.int64]:
    return np.bincount(counts.indices, minlength=counts.shape[1]).astype(np.int64)


def _specificity(
    counts: csr_array, rows: Float32[np.ndarray, "R E"], chunks: Chunks, is_name: NDArray[np.bool_], seed: int
) -> Float[np.ndarray, " n"]:
    """A tag is specific if it keeps to few documents or to few domains; a piece of a name never is."""
    groups = chunks.domains if len(chunks.domain_names) > 1 else _topics(rows, seed)
    found = np.maximum(specificity(counts, chunks.documents), specificity(counts, groups))
    return np.where(is_name, 0.0, found)


def _topics(rows: Float32[np.ndarray, "R E"], seed: int) -> NDArray[np.int64]:
    kmeans = faiss.Kmeans(
        rows.shape[1],
        min(NUM_TOPICS, max(len(rows) // 4, 1)),
        niter=15,
        spherical=True,
        seed=seed + 1,
        min_points_per_centroid=1,
    )
    kmeans.train(rows)
    return np.asarray((rows @ unit(np.asarray(kmeans.centroids)).T).argmax(1), np.int64)
