"""Where tags and chunks lie: meaning (MiniLM) beside company kept (co-occurrence).

A tag's vector is `[MiniLM − mean ; 0.7 × co-occurrence SVD]`, both halves of unit norm before weighting, and
the whole of unit norm. Meaning alone puts "supreme" beside "superior"; company alone puts "dollars" beside
"estimated". A chunk's vector is the tf-idf-weighted mean of its tags' vectors, again of unit norm.

Letters: R chunks, n tags, E width of a vector.
"""

import numpy as np
from jaxtyping import Float, Float32
from numpy.typing import NDArray
from scipy.sparse import csr_array

COMPANY_WEIGHT = 0.7
DIGITS = 4
"""Decimals that a cosine keeps before it is held against a threshold: no decision hangs on the last bits of a sum."""


def unit(x: Float[np.ndarray, "n E"]) -> Float32[np.ndarray, "n E"]:
    """Rows at norm 1; rows of zeros stay zero.

    Args:
        x: [n E] rows.

    Returns:
        [n E] fp32.
    """
    norms = np.linalg.norm(x, axis=1, keepdims=True)
    return np.asarray(x / np.where(norms > 0, norms, 1), np.float32)


def count_matrix(rows: list[list[int]], num_tags: int) -> csr_array:
    """How often each chunk carries each tag.

    Args:
        rows: R lists of tag numbers, with repeats.
        num_tags: n.

    Returns:
        [R n] fp32 counts.
    """
    indptr = np.cumsum([0] + [len(row) for row in rows])
    indices = np.fromiter((tag for row in rows for tag in row), np.int64, indptr[-1])
    counts = csr_array((np.ones(len(indices), np.float32), indices, indptr), shape=(len(rows), num_tags))
    counts.sum_duplicates()
    return counts


def tag_rarity(counts: csr_array) -> Float32[np.ndarray, " n"]:
    """Inverse document frequency of each tag, in nats (a tag of no chunk counts as one of one).

    Args:
        counts: [R n].

    Returns:
        [n] fp32, ≥ 0.
    """
    spread = np.bincount(counts.indices, minlength=counts.shape[1])
    return np.asarray(np.log(counts.shape[0] / np.maximum(spread, 1)), np.float32)


def tf_idf(counts: csr_array, rarity: Float32[np.ndarray, " n"]) -> csr_array:
    """`(1 + ln tf) × idf`.

    Args:
        counts: [R n].
        rarity: [n] inverse document frequencies.

    Returns:
        [R n] fp32.
    """
    weighted = counts.copy()
    weighted.data = (1 + np.log(counts.data)) * rarity[counts.indices]
    return weighted


def tag_vectors(
    meaning: Float32[np.ndarray, "n M"], kept_company: Float32[np.ndarray, "n S"]
) -> Float32[np.ndarray, "n M+S"]:
    """Meaning and company side by side.

    Args:
        meaning: [n M] encoder vectors.
        kept_company: [n S] co-occurrence vectors.

    Returns:
        [n M+S] fp32 unit rows.
    """
    centred = unit(meaning - meaning.mean(0))
    return unit(np.concatenate([centred, COMPANY_WEIGHT * kept_company], axis=1))


def chunk_vectors(weighted: csr_array, tags: Float32[np.ndarray, "n E"]) -> Float32[np.ndarray, "R E"]:
    """Unit vectors of chunks: the weighted mean of their tags' vectors; zero for a chunk without tags.

    Args:
        weighted: [R n] tf-idf.
        tags: [n E].

    Returns:
        [R E] fp32.
    """
    return unit(weighted @ tags)


def specificity(counts: csr_array, groups: NDArray[np.int64]) -> Float[np.ndarray, " n"]:
    """How many fewer groups a tag reaches than chunks drawn at random would: 0 for a word of everywhere.

    `1 − reached / expected`, with `expected = Σ_g 1 − (1 − share_g)^chunks`. Groups are documents or domains.

    Args:
        counts: [R n].
        groups: [R] group number of each chunk.

    Returns:
        [n] values below 1; a tag of one chunk has 0.
    """
    share, alike = np.unique(np.bincount(groups) / len(groups), return_counts=True)
    pairs = np.unique(groups[_row_of(counts)] * counts.shape[1] + counts.indices)
    reached = np.bincount(pairs % counts.shape[1], minlength=counts.shape[1])
    spread = np.bincount(counts.indices, minlength=counts.shape[1])
    sizes, place = np.unique(spread, return_inverse=True)
    expected = np.array([alike @ (1 - (1 - share) ** size) for size in sizes])[place]
    return np.where(spread > 0, 1 - reached / np.maximum(expected, 1e-9), 0.0)


def _row_of(counts: csr_array) -> NDArray[np.int64]:
    return np.repeat(np.arange(counts.shape[0]), np.diff(counts.indptr))
