"""Heads, scores and calibration against slow twins."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.sparse import csr_array

from vitrail.atlas.annotator.calibration import Judged, calibrated, matched_thresholds
from vitrail.atlas.annotator.detector import LEXICAL_CAP, LEXICAL_WEIGHT
from vitrail.atlas.annotator.heads import Heads, standardised
from vitrail.atlas.annotator.scoring import Scoring

R, TAGS, C, E = 13, 11, 5, 7
KINDS = ("content", "tone", "content", "alignment", "tone")


def _random(seed: int, shape: tuple[int, ...]) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def _heads(seed: int = 0, chunks: np.ndarray | None = None) -> Heads:
    chunks = _random(seed + 1, (R, E)) if chunks is None else chunks
    return standardised(_random(seed, (C, E)), _random(seed + 2, (C,)), KINDS, chunks)


def _sparse(seed: int, shape: tuple[int, int]) -> csr_array:
    dense = np.abs(_random(seed, shape)) * (np.random.default_rng(seed).random(shape) < 0.25)
    return csr_array(dense.astype(np.float32))


def test_z_has_mean_0_and_spread_1_over_the_corpus() -> None:
    chunks = _random(1, (R, E))
    ((ids, z),) = _heads(0, chunks).z_of(chunks, np.arange(C))
    assert ids.tolist() == list(range(C))
    np.testing.assert_allclose(z.mean(0), 0, atol=1e-5)
    np.testing.assert_allclose(z.std(0), 1, rtol=1e-5)


def test_z_of_pairs_is_that_of_all() -> None:
    chunks, heads = _random(4, (R, E)), _heads()
    rows, concepts = np.array([0, 12, 3, 3]), np.array([4, 0, 1, 2])
    ((_, z),) = heads.z_of(chunks, np.arange(C))
    np.testing.assert_allclose(heads.z_at(chunks, rows, concepts), z[rows, concepts], rtol=1e-5, atol=1e-6)


def test_a_head_each_kind_is_stored() -> None:
    heads = _heads()
    stored = heads.arrays()
    assert {name.split(".")[1] for name in stored} == set(KINDS)
    assert stored["head.tone.weight"].shape == (2, E)
    again = Heads.from_arrays(stored)
    assert again.kinds == KINDS
    assert again.weights.tobytes() == heads.weights.tobytes()
    del stored["head.tone.ids"]
    with pytest.raises(ValueError, match="without a concept each"):
        Heads.from_arrays(stored)


@given(st.integers(0, 10**6), st.sets(st.integers(0, C - 1)))
def test_labels_are_those_of_the_dense_rule(seed: int, free: set[int]) -> None:
    heads, chunks = _heads(seed), _random(seed + 3, (R, E))
    members, weighted, marks = _sparse(seed + 4, (TAGS, C)), _sparse(seed + 5, (R, TAGS)), _sparse(seed + 6, (R, C))
    thresholds = np.full(C, 1.5, np.float32)
    unseen = np.array([1.25 if c in free else np.inf for c in range(C)], np.float32)
    found = Scoring(members, heads, thresholds, unseen).labels(weighted, marks, chunks)
    z = (chunks @ heads.weights.T + heads.biases - heads.mean) / heads.scale
    lexical = (weighted @ members).toarray() + marks.toarray()
    score = np.where(lexical > 0, z + LEXICAL_WEIGHT * np.minimum(lexical, LEXICAL_CAP), -np.inf)
    score = np.maximum(score, np.where(np.isfinite(unseen), z - unseen + thresholds, -np.inf))
    is_clear = np.abs(score - thresholds) > 2e-3  # scores are rounded to a thousandth
    is_label = found.toarray() != 0
    assert (is_label == (score >= thresholds))[is_clear].all()
    both = is_label & is_clear
    np.testing.assert_allclose(found.toarray()[both], score[both], atol=1e-3)


def test_thresholds_give_as_many_labels_as_evidence() -> None:
    dense = np.round(np.abs(_random(0, (200, 3))) + 0.1, 3).astype(np.float32)
    labelled = [np.arange(count) for count in (10, 50, 0)]
    judged = Judged(csr_array(dense), labelled)
    thresholds = matched_thresholds(judged, Judged(csr_array((0, 3), dtype=np.float32), [np.arange(0)] * 3))
    assert (dense >= thresholds).sum(0).tolist() == [10, 50, 0]


def test_held_out_chunks_move_a_threshold_the_more_they_hold() -> None:
    """The scores of held-out chunks lie 1 lower; a concept with 4 of them moves mostly by the pooled shift."""
    dense = np.linspace(1, 3, 400).astype(np.float32)[:, None].repeat(3, 1)
    train = Judged(csr_array(dense), [np.arange(40)] * 3)
    fresh = dense[::2] - 1
    fresh[:, 2] += 0.5
    judged = Judged(csr_array(np.maximum(fresh, 1e-3)), [np.arange(20), np.arange(20), np.arange(2)])
    thresholds = matched_thresholds(train, judged)
    plain = dense[-40, 0]
    np.testing.assert_allclose(thresholds[:2] - plain, -1, atol=0.02)
    assert -1 < thresholds[2] - plain < -0.9


def test_calibration_mends_odds_and_leaves_z() -> None:
    rng = np.random.default_rng(0)
    chunks = _random(1, (4_000, E))
    heads = _heads(0, chunks)
    odds = chunks @ heads.weights.T * 0.3 - 3
    labelled = [np.flatnonzero(rng.random(len(chunks)) < 1 / (1 + np.exp(-column))) for column in odds.T]
    mended = calibrated(heads, chunks, labelled)
    stated = 1 / (1 + np.exp(-(chunks @ mended.weights.T + mended.biases)))
    true = 1 / (1 + np.exp(-odds))
    assert np.abs(stated - true).mean() < 0.01
    ((_, before),), ((_, after),) = heads.z_of(chunks, np.arange(C)), mended.z_of(chunks, np.arange(C))
    np.testing.assert_allclose(before, after, atol=1e-4)


def test_nothing_to_calibrate_on_changes_nothing() -> None:
    heads = _heads()
    same = calibrated(heads, np.zeros((0, E), np.float32), [np.zeros(0, np.int64)] * C)
    np.testing.assert_array_equal(same.weights, heads.weights)
    np.testing.assert_allclose(same.biases, heads.biases, rtol=1e-6)
