"""The risks: their slopes are right, rare and frequent heads learn, and the same data gives the same bytes."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from vitrail.atlas.annotator.reservoir import RESERVOIR, draw_reservoir
from vitrail.atlas.annotator.training import Loss, Positives, Slab, Unlabelled, gradient, train
from vitrail.atlas.annotator.whitening import Whitening

S, P, N, U, E = 3, 5, 2, 23, 7


def _slab(seed: int, prior: float) -> tuple[np.ndarray, np.ndarray, Slab]:
    rng = np.random.default_rng(seed)

    def draw(*shape: int) -> np.ndarray:
        return rng.normal(size=shape).astype(np.float32)

    weights = np.full((S, P), 1 / P, np.float32)
    negative_weights = np.full((S, N), 1 / N, np.float32)
    negative_weights[0] = 0
    data = Slab(
        draw(S, P, E),
        weights,
        draw(S, N, E),
        negative_weights,
        draw(U, E),
        rng.uniform(0.5, 1.5, U).astype(np.float32),
        rng.random((U, S)) < 0.2,
        np.full(S, prior, np.float32),
    )
    return draw(S, E), draw(S), data


def _risk(weights: np.ndarray, biases: np.ndarray, data: Slab, loss: Loss) -> tuple[np.ndarray, np.ndarray]:
    """The risk that is minimised (in fp64), and the negative part that decides the branch."""
    z_p = np.einsum("spe,se->sp", data.positives.astype(float), weights) + biases[:, None]
    z_n = np.einsum("sne,se->sn", data.negatives.astype(float), weights) + biases[:, None]
    z_u = data.rows.astype(float) @ weights.T + biases
    known = data.priors * (np.logaddexp(0, z_n) * data.negative_weights).sum(1)
    positive = data.priors * (np.logaddexp(0, -z_p) * data.weights).sum(1)
    share = np.repeat(data.importance[:, None], S, 1).astype(float)
    if loss == "bce":
        share = share * ~data.carries
        negative = (1 - data.priors) * (np.logaddexp(0, z_u) * share / share.sum(0)).sum(0)
        return known + positive + negative, np.ones(S)
    negative = (np.logaddexp(0, z_u) * share / share.sum(0)).sum(0)
    negative = negative - data.priors * (np.logaddexp(0, z_p) * data.weights).sum(1)
    return known + np.where(negative >= 0, positive + negative, -negative), negative


@pytest.mark.parametrize(("loss", "prior", "branch"), [("bce", 0.2, 1), ("pu", 0.1, 1), ("pu", 0.97, -1)])
def test_slopes_are_those_of_the_risk(loss: Loss, prior: float, branch: int) -> None:
    """The last case has positives far above the unlabelled rows, so that the risk of negatives is below zero."""
    weights, biases, data = _slab(3, prior)
    if branch < 0:
        data.positives[:] = weights[:, None] * 2
    _, negative = _risk(weights, biases, data, loss)
    assert (np.sign(negative) == branch).all()
    slope, bias_slope = gradient(weights, biases, data, np.arange(U), loss)
    step = 1e-5
    for e in range(E):
        moved = np.zeros((S, E))
        moved[:, e] = step
        up, down = (_risk(weights + sign * moved, biases, data, loss)[0] for sign in (1, -1))
        np.testing.assert_allclose(slope[:, e], (up - down) / (2 * step), rtol=1e-3, atol=1e-5)
    up, down = (_risk(weights, biases.astype(float) + sign * step, data, loss)[0] for sign in (1, -1))
    np.testing.assert_allclose(bias_slope, (up - down) / (2 * step), rtol=1e-3, atol=1e-5)


def _problem(num_concepts: int, seed: int = 0) -> tuple[list[Positives], Unlabelled, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    centroids = np.linalg.qr(rng.normal(size=(11, 11)))[0][:num_concepts].astype(np.float32)
    hidden = np.roll(centroids, 1, axis=0)
    rows = rng.normal(size=(900, 11)).astype(np.float32) * 0.3
    owner = rng.integers(0, 12, size=900)
    carries = [owner == c for c in range(num_concepts)]
    for c in range(num_concepts):
        rows[carries[c]] += centroids[c] + hidden[c]
    given = [
        Positives(rows[carries[c]][:40], np.ones(min(40, carries[c].sum()), np.float32), np.zeros((0, 11), np.float32))
        for c in range(num_concepts)
    ]
    unlabelled = Unlabelled(rows, np.ones(900, np.float32), lambda c: carries[c])
    return given, unlabelled, centroids, np.full(num_concepts, 1 / 12, np.float32)


@pytest.mark.parametrize("loss", ["pu", "bce"])
def test_a_head_finds_what_the_centroid_does_not_know(loss: Loss) -> None:
    given, unlabelled, centroids, priors = _problem(3)
    weights, biases = train(given.__getitem__, unlabelled, centroids, priors, loss, 0)
    for c in range(3):
        truth = unlabelled.carries(c)
        head, cosine = unlabelled.vectors @ weights[c] + biases[c], unlabelled.vectors @ centroids[c]
        assert _auc(truth, head) > _auc(truth, cosine) + 0.01


def _auc(truth: np.ndarray, score: np.ndarray) -> float:
    return float((score[truth][:, None] > score[~truth][None]).mean())


def test_the_losses_differ_and_repeat() -> None:
    given, unlabelled, centroids, priors = _problem(3)
    first, again, other = (
        train(given.__getitem__, unlabelled, centroids, priors, loss, 0)[0] for loss in ("pu", "pu", "bce")
    )
    assert first.tobytes() == again.tobytes()
    assert np.abs(first - other).max() > 1e-3


def test_a_concept_does_not_depend_on_its_companions() -> None:
    """Up to the rounding of sums over batches of another width."""
    given, unlabelled, centroids, priors = _problem(5)
    together = train(given.__getitem__, unlabelled, centroids, priors, "pu", 0)[0]
    alone = train(given.__getitem__, unlabelled, centroids[:1], priors[:1], "pu", 0)[0]
    np.testing.assert_allclose(together[0], alone[0], rtol=1e-3, atol=1e-4)


def test_known_negatives_push_away() -> None:
    given, unlabelled, centroids, priors = _problem(1)
    against = given[0].vectors[:1] + np.float32(0.2)
    warned = Positives(given[0].vectors, given[0].weights, against)
    free = train(lambda _: given[0], unlabelled, centroids, priors, "pu", 0)
    held = train(lambda _: warned, unlabelled, centroids, priors, "pu", 0)
    assert against[0] @ held[0][0] + held[1][0] < against[0] @ free[0][0] + free[1][0] - 0.1


@given(st.integers(0, 10**6), st.integers(2, 30), st.integers(1, 6))
def test_whitening_keeps_what_heads_say(seed: int, num_rows: int, width: int) -> None:
    rng = np.random.default_rng(seed)
    rows = rng.normal(size=(num_rows, width)).astype(np.float32)
    heads = rng.normal(size=(2, width)).astype(np.float32)
    whiten = Whitening.fit(rows, np.ones(num_rows, np.float32))
    plain = (rows - whiten.mean) @ heads.T
    np.testing.assert_allclose(whiten(rows) @ whiten.back(heads).T, plain, rtol=1e-3, atol=1e-4)


def test_chunks_all_alike_can_be_whitened() -> None:
    rows = np.ones((4, 3), np.float32)
    assert np.isfinite(Whitening.fit(rows, np.ones(4, np.float32)).matrix).all()


def test_a_small_corpus_is_its_own_reservoir() -> None:
    reservoir = draw_reservoir([np.array([1, 2])], 5, 0)
    assert reservoir.rows.tolist() == [0, 1, 2, 3, 4]
    assert (reservoir.importance == 1).all()


def test_the_reservoir_is_enriched_in_the_long_tail_and_weighed_back() -> None:
    rng = np.random.default_rng(0)
    num_chunks = 5 * RESERVOIR
    rare = rng.permutation(num_chunks)[:20]
    frequent = rng.permutation(num_chunks)[: num_chunks // 4]
    reservoir = draw_reservoir([rare, frequent], num_chunks, 0)
    assert len(np.unique(reservoir.rows)) == RESERVOIR
    assert np.isin(rare, reservoir.rows).all(), "a uniform draw would keep one in five"
    drawn = np.isin(reservoir.rows, frequent)
    share = (reservoir.importance * drawn).sum() / reservoir.importance.sum()
    assert abs(share - 0.25) < 0.02 < drawn.mean() - 0.25, "importance undoes the enrichment"
