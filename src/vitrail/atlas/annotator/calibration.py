"""Thresholds and probabilities, set on chunks that no head was fitted on (§4.2.3).

*Threshold*: a concept's labels should be as many as evidence gives it, only better chosen. The score that does so
on the training chunks is moved by what held-out chunks say, which is a pooled shift where they hold few of the
concept's chunks, and the concept's own where they hold many (C).

*Probability*: Platt's (1999) scale and offset, one pair for all concepts (R), then an offset for each concept
that makes the expected number of its held-out chunks the observed one, both plus five (C).

Letters: R chunks, C concepts, c those of a slab, E width.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
from jaxtyping import Bool, Float32, Float64
from numpy.typing import NDArray
from scipy.sparse import csr_array

from vitrail.atlas.annotator.heads import SLAB_CONCEPTS, Heads

POOLED = 20
"""Held-out chunks of a concept at which its own shift counts as much as the pooled one."""

ABOVE_ALL = 0.5
"""How far above its best chunk the threshold of a concept lies that evidence gives no label."""

NEWTON_STEPS = 12
PRIOR_COUNT = 5.0


@dataclass(frozen=True)
class Judged:
    """Chunks with scores and with labels by evidence.

    Attributes:
        scores: [R C] of the annotator, sparse.
        labelled: the chunks that evidence labels, for each concept.
    """

    scores: csr_array
    labelled: Sequence[NDArray[np.int64]]


def matched_thresholds(train: Judged, heldout: Judged) -> Float32[np.ndarray, " C"]:
    """Thresholds that give each concept as many labels as evidence does.

    Args:
        train: chunks that the heads were fitted on.
        heldout: chunks that they were not.

    Returns:
        [C] rounded down to a thousandth.
    """
    fitted, _ = _matching(train)
    fresh, counts = _matching(heldout)
    shift = np.where(counts > 0, fresh - fitted, 0.0)
    enough = counts >= POOLED / 2
    common = float(counts @ shift / max(counts.sum(), 1))
    pooled = float(np.median(shift[enough])) if enough.any() else common
    share = counts / (counts + POOLED)
    moved = fitted + share * shift + (1 - share) * pooled
    return np.asarray(np.floor(np.round(moved * 1000, 3)) / 1000, np.float32)


def _matching(judged: Judged) -> tuple[Float64[np.ndarray, " C"], NDArray[np.int64]]:
    """The score at which labels are as many as those by evidence, and how many these are."""
    columns = judged.scores.tocsc()
    found = np.zeros(len(judged.labelled))
    counts = np.array([len(rows) for rows in judged.labelled], np.int64)
    for concept, count in enumerate(counts):
        falling = np.sort(columns.data[columns.indptr[concept] : columns.indptr[concept + 1]])[::-1]
        if len(falling):
            found[concept] = falling[min(count, len(falling)) - 1] if count else falling[0] + ABOVE_ALL
    return found, counts


def calibrated(heads: Heads, chunks: Float32[np.ndarray, "R E"], labelled: Sequence[NDArray[np.int64]]) -> Heads:
    """Heads whose logits are log-odds.

    Args:
        heads: the first of them, as many as there are `labelled`, are calibrated on the chunks; the others get
            the common scale and offset alone.
        chunks: [R E] held-out vectors.
        labelled: the chunks that evidence labels, for each calibrated concept.

    Returns:
        the heads; z of a chunk stays what it was.
    """
    scale, offset = _platt(heads, chunks, labelled)
    moves = np.zeros(len(heads.biases))
    for start, logits, truth in _slabs(heads, chunks, labelled):
        expected = _sigmoid(scale * logits + offset).sum(0)
        moves[start : start + truth.shape[1]] = np.log((truth.sum(0) + PRIOR_COUNT) / (expected + PRIOR_COUNT))
    shift = offset + moves
    return replace(
        heads,
        weights=np.asarray(scale * heads.weights, np.float32),
        biases=np.asarray(scale * heads.biases + shift, np.float32),
        mean=np.asarray(scale * heads.mean + shift, np.float32),
        scale=np.asarray(scale * heads.scale, np.float32),
    )


def _platt(
    heads: Heads, chunks: Float32[np.ndarray, "R E"], labelled: Sequence[NDArray[np.int64]]
) -> tuple[float, float]:
    """Scale and offset of logits by Newton's method on the mean log loss over all pairs, lightly held at (1, 0)."""
    if not len(chunks) or not any(map(len, labelled)):
        return 1.0, 0.0
    at = np.array([1.0, 0.0])
    for _ in range(NEWTON_STEPS):
        slope, curve = at - [1.0, 0.0], np.eye(2)
        for _, logits, truth in _slabs(heads, chunks, labelled):
            prob = _sigmoid(at[0] * logits + at[1])
            error, weight = prob - truth, prob * (1 - prob)
            slope += [(error * logits).sum(), error.sum()]
            cross = (weight * logits).sum()
            curve += [[(weight * logits**2).sum(), cross], [cross, weight.sum()]]
        step = np.linalg.solve(curve, slope)
        at = at - np.clip(step, -1, 1)
    return max(float(at[0]), 0.05), float(at[1])


def _slabs(
    heads: Heads, chunks: Float32[np.ndarray, "R E"], labelled: Sequence[NDArray[np.int64]]
) -> Iterator[tuple[int, Float64[np.ndarray, "R c"], Bool[np.ndarray, "R c"]]]:
    for start in range(0, len(labelled), SLAB_CONCEPTS):
        stop = min(start + SLAB_CONCEPTS, len(labelled))
        logits = (chunks @ heads.weights[start:stop].T + heads.biases[start:stop]).astype(np.float64)
        truth = np.zeros(logits.shape, bool)
        for concept in range(start, stop):
            truth[labelled[concept], concept - start] = True
        yield start, logits, truth


def _sigmoid(z: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.asarray(1 / (1 + np.exp(-np.clip(z, -40, 40))))
