import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import roc_auc_score

from vitrail.metrics.ranking import auc_per_concept, average_precision_per_concept


def test_worked_by_hand() -> None:
    """Positives score 3 and 1, negatives 2 and 0: three of four pairs in order, precisions 1/1 and 2/3."""
    scores, labels = np.array([[3.0], [2.0], [1.0], [0.0]]), np.array([[True], [False], [True], [False]])
    assert auc_per_concept(scores, labels)[0] == 0.75
    assert np.isclose(average_precision_per_concept(scores, labels)[0], (1 + 2 / 3) / 2)


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 2**32 - 1))
def test_auc_agrees_with_sklearn_also_in_ties(seed: int) -> None:
    rng = np.random.default_rng(seed)
    scores, labels = rng.integers(0, 5, size=(23, 3)).astype(np.float64), rng.random((23, 3)) < 0.4
    labels[0], labels[1] = True, False
    expected = [roc_auc_score(labels[:, column], scores[:, column]) for column in range(3)]
    assert np.allclose(auc_per_concept(scores, labels), expected, rtol=1e-12)


def test_constant_scores_rank_nothing() -> None:
    labels = np.random.default_rng(0).random((31, 2)) < 0.3
    scores = np.ones((31, 2))
    assert np.allclose(auc_per_concept(scores, labels), 0.5)
    assert np.allclose(average_precision_per_concept(scores, labels), labels.mean(0))


def test_one_kind_only_is_no_number() -> None:
    labels = np.array([[True, False], [True, False]])
    scores = np.array([[1.0, 1.0], [2.0, 2.0]])
    assert np.isnan(auc_per_concept(scores, labels)).all()
    assert np.isnan(average_precision_per_concept(scores, labels)[1])
