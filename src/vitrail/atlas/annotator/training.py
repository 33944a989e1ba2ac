"""Fitting linear heads: positive-unlabelled risk, or plain binary cross-entropy (§4.2.3).

The paper states positive-unlabelled supervision and PU-compatible losses, not which (S). Ours is the
non-negative risk of Kiryo et al. 2017 (R), with the logistic loss l(z) = ln(1 + e^-z):

    π · E_p l(z)  +  max(0, E_u l(-z) - π · E_p l(-z))

and, where the second term falls below zero, a step against it alone, as in their algorithm 1 with β = 0 and
γ = 1. Its plain twin takes the unlabelled chunks without the labelled ones for negatives:
π · E_p l(z) + (1 - π) · E_n l(-z).

What we chose (C): a head starts at the direction of its concept's centroid and is held near it, the more so the
fewer positives there are, since tens of short chunks cannot fix hundreds of numbers. Distance is measured in
partly whitened space, where the wide common directions do not drown the rest. Steps are scaled by each
concept's own gradient, so that a rare concept goes as fast as a frequent one. One thread, one order: the same
bytes every time.

Letters: U unlabelled chunks, C concepts, S concepts of a slab, P positives and N known negatives of a concept,
E width.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from jaxtyping import Bool, Float32
from numpy.typing import NDArray

from vitrail.atlas.annotator.whitening import Whitening

Loss = Literal["pu", "bce"]

NUM_STEPS = 120
BATCH = 2_048
LEARNING_RATE = 0.15
MOMENTUM, SIZE_MOMENTUM = 0.9, 0.95
START_SCALE = 1.5
"""Standard deviation of the logits before the first step."""

HOLD = 1.0
HOLD_POSITIVES = 64
"""The pull towards the start is π · HOLD · HOLD_POSITIVES / P."""

SLAB_CONCEPTS = 128


@dataclass(frozen=True)
class Positives:
    """What is known of one concept.

    Attributes:
        vectors: [P E] chunks that carry it, some of them without its tags.
        weights: [P] above zero.
        negatives: [N E] chunks known not to carry it.
    """

    vectors: Float32[np.ndarray, "P E"]
    weights: Float32[np.ndarray, " P"]
    negatives: Float32[np.ndarray, "N E"]


@dataclass(frozen=True)
class Unlabelled:
    """The reservoir.

    Attributes:
        vectors: [U E].
        importance: [U] weights with mean 1.
        carries: which of them are labelled with a concept: [U] truth values.
    """

    vectors: Float32[np.ndarray, "U E"]
    importance: Float32[np.ndarray, " U"]
    carries: Callable[[int], Bool[np.ndarray, " U"]]


def train(
    positives: Callable[[int], Positives],
    unlabelled: Unlabelled,
    centroids: Float32[np.ndarray, "C E"],
    priors: Float32[np.ndarray, " C"],
    loss: Loss,
    seed: int,
) -> tuple[Float32[np.ndarray, "C E"], Float32[np.ndarray, " C"]]:
    """Weights and biases of heads: the logit of chunk x is `weights @ x + bias`.

    Args:
        positives: what is known of a concept.
        unlabelled: the reservoir.
        centroids: [C E] where each head starts.
        priors: [C] π, the share of chunks that carry each concept.
        loss: "pu" or "bce".
        seed: of the order of the batches.

    Returns:
        [C E] weights and [C] biases.

    Cost: O(steps · C · (batch + P) · E) time; memory holds 128 concepts at a time.
    """
    whiten = Whitening.fit(unlabelled.vectors, unlabelled.importance)
    rows = whiten(unlabelled.vectors)
    weights = np.zeros_like(centroids)
    biases = np.zeros(len(centroids), np.float32)
    for start in range(0, len(centroids), SLAB_CONCEPTS):
        slab = slice(start, min(start + SLAB_CONCEPTS, len(centroids)))
        concepts = range(slab.start, slab.stop)
        given = [positives(c) for c in concepts]
        ones = [np.ones(len(g.negatives), np.float32) for g in given]
        data = Slab(
            *_stacked([g.vectors for g in given], [g.weights for g in given], whiten),
            *_stacked([g.negatives for g in given], ones, whiten),
            rows,
            unlabelled.importance,
            np.stack([unlabelled.carries(c) for c in concepts], axis=1),
            priors[slab],
        )
        found, bias = _descend(data, _start(centroids[slab], whiten, rows), loss, seed)
        weights[slab] = found @ whiten.matrix
        biases[slab] = bias - weights[slab] @ whiten.mean
    return weights, biases


@dataclass(frozen=True)
class Slab:
    """All that the risk of S concepts needs, in whitened space; padded places have weight 0.

    Attributes:
        positives: [S P E].
        weights: [S P], of sum 1 a concept.
        negatives: [S N E] known ones.
        negative_weights: [S N], of sum 1 a concept that has any.
        rows: [U E] the reservoir.
        importance: [U].
        carries: [U S] labelled by evidence.
        priors: [S] π.
    """

    positives: Float32[np.ndarray, "S P E"]
    weights: Float32[np.ndarray, "S P"]
    negatives: Float32[np.ndarray, "S N E"]
    negative_weights: Float32[np.ndarray, "S N"]
    rows: Float32[np.ndarray, "U E"]
    importance: Float32[np.ndarray, " U"]
    carries: Bool[np.ndarray, "U S"]
    priors: Float32[np.ndarray, " S"]

    @property
    def hold(self) -> Float32[np.ndarray, " S"]:
        """Pull towards the start."""
        num_positives = np.maximum((self.weights > 0).sum(1), 1)
        return np.asarray(HOLD * HOLD_POSITIVES / num_positives * self.priors, np.float32)


def _stacked(
    vectors: Sequence[NDArray[np.float32]], weights: Sequence[NDArray[np.float32]], whiten: Whitening
) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    longest = max(map(len, vectors))
    out = np.zeros((len(vectors), longest, len(whiten.mean)), np.float32)
    share = np.zeros((len(vectors), longest), np.float32)
    for i, (rows, weight) in enumerate(zip(vectors, weights, strict=True)):
        if len(rows):
            out[i, : len(rows)] = whiten(rows)
            share[i, : len(rows)] = weight / weight.sum()
    return out, share


def _start(
    centroids: Float32[np.ndarray, "S E"], whiten: Whitening, rows: Float32[np.ndarray, "U E"]
) -> Float32[np.ndarray, "S E"]:
    """Heads that give the cosine with the centroid, at one spread of logits for all."""
    start = whiten.back(centroids)
    spread = np.sqrt(((rows @ start.T) ** 2).mean(0))
    return np.asarray(start * (START_SCALE / np.maximum(spread, 1e-9))[:, None], np.float32)


def _descend(
    data: Slab, start: Float32[np.ndarray, "S E"], loss: Loss, seed: int
) -> tuple[Float32[np.ndarray, "S E"], Float32[np.ndarray, " S"]]:
    weights, biases = start.copy(), np.log(data.priors / (1 - data.priors))
    speed, bias_speed = np.zeros_like(weights), np.zeros_like(biases)
    size = np.zeros_like(biases)
    hold = data.hold[:, None]
    for step, batch in enumerate(_batches(len(data.rows), seed)):
        slope, bias_slope = gradient(weights, biases, data, batch, loss)
        slope += hold * (weights - start)
        size = SIZE_MOMENTUM * size + (1 - SIZE_MOMENTUM) * ((slope**2).sum(1) + bias_slope**2)
        scale = 1 / (np.sqrt(size / (1 - SIZE_MOMENTUM ** (step + 1))) + 1e-12)
        speed = MOMENTUM * speed + (1 - MOMENTUM) * slope * scale[:, None]
        bias_speed = MOMENTUM * bias_speed + (1 - MOMENTUM) * bias_slope * scale
        rate = LEARNING_RATE * (1 - step / NUM_STEPS)
        weights -= rate * speed
        biases -= rate * bias_speed
    return weights, biases


def _batches(num_rows: int, seed: int) -> Iterator[NDArray[np.int64]]:
    """Rows for each step: all of them in whole batches, in ever new order."""
    rng = np.random.default_rng(seed)
    size = min(BATCH, num_rows)
    order = np.empty(0, np.int64)
    for _ in range(NUM_STEPS):
        if len(order) < size:
            order = rng.permutation(num_rows)
        yield np.sort(order[:size])
        order = order[size:]


def gradient(
    weights: Float32[np.ndarray, "S E"],
    biases: Float32[np.ndarray, " S"],
    data: Slab,
    batch: NDArray[np.int64],
    loss: Loss,
) -> tuple[Float32[np.ndarray, "S E"], Float32[np.ndarray, " S"]]:
    """Slope of the risk in weights and biases, in whitened space.

    Args:
        weights: [S E].
        biases: [S].
        data: of the slab.
        batch: rows of the reservoir.
        loss: "pu" or "bce".

    Returns:
        [S E] and [S].
    """
    rows = data.rows[batch]
    z_p, z_u = _logits(data.positives, weights, biases), rows @ weights.T + biases
    # d l(z)/dz = -σ(-z) and d l(-z)/dz = σ(z).
    share = data.importance[batch][:, None]
    priors = data.priors
    if loss == "bce":
        share = share * ~data.carries[batch]
        # A concept that every chunk of the batch carries has no negatives here.
        slope_u = (1 - priors) * _sigmoid(z_u) * share / np.maximum(share.sum(0), 1e-9)
        slope_p = -priors[:, None] * _sigmoid(-z_p) * data.weights
    else:
        share = share / share.sum()
        negative_risk = (_softplus(z_u) * share).sum(0) - priors * (_softplus(z_p) * data.weights).sum(1)
        is_sound = negative_risk >= 0
        sign = np.where(is_sound, 1, -1).astype(np.float32)
        slope_u = _sigmoid(z_u) * share * sign
        towards = np.where(is_sound[:, None], _sigmoid(-z_p), 0)
        slope_p = -priors[:, None] * (towards + _sigmoid(z_p) * sign[:, None]) * data.weights
    slope_n = priors[:, None] * _sigmoid(_logits(data.negatives, weights, biases)) * data.negative_weights
    slope = slope_u.T @ rows + _pulled(slope_p, data.positives) + _pulled(slope_n, data.negatives)
    return slope, slope_u.sum(0) + slope_p.sum(1) + slope_n.sum(1)


def _logits(
    chunks: Float32[np.ndarray, "S P E"], weights: Float32[np.ndarray, "S E"], biases: Float32[np.ndarray, " S"]
) -> Float32[np.ndarray, "S P"]:
    return np.asarray(np.matmul(chunks, weights[:, :, None])[:, :, 0] + biases[:, None], np.float32)


def _pulled(slope: Float32[np.ndarray, "S P"], chunks: Float32[np.ndarray, "S P E"]) -> Float32[np.ndarray, "S E"]:
    return np.asarray(np.matmul(slope[:, None, :], chunks)[:, 0], np.float32)


def _sigmoid(z: NDArray[np.float32]) -> NDArray[np.float32]:
    return np.asarray(1 / (1 + np.exp(-np.clip(z, -30, 30))), np.float32)


def _softplus(z: NDArray[np.float32]) -> NDArray[np.float32]:
    return np.asarray(np.maximum(z, 0) + np.log1p(np.exp(-np.abs(z))), np.float32)
