"""Ranking quality of scores, concept by concept: AUC and average precision, with ties counted fairly.

Letters: `n` things ranked (chunks), `C` concepts.
"""

import numpy as np
from jaxtyping import Bool, Float


def auc_per_concept(scores: Float[np.ndarray, "n C"], labels: Bool[np.ndarray, "n C"]) -> Float[np.ndarray, " C"]:
    """Probability that a positive scores above a negative, ties counting one half.

    Args:
        scores: higher means more likely to carry the concept.
        labels: truth.

    Returns:
        [C] AUC in [0, 1]; NaN where positives or negatives are missing.
    """
    from scipy.stats import rankdata  # loads slowly, as sklearn below does, and only measures need it

    num_positive = labels.sum(0).astype(np.float64)
    num_negative = len(labels) - num_positive
    rank_sum = np.where(labels, rankdata(scores, axis=0), 0.0).sum(0) if len(labels) else np.zeros(len(num_positive))
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.asarray((rank_sum - num_positive * (num_positive + 1) / 2) / (num_positive * num_negative))


def average_precision_per_concept(
    scores: Float[np.ndarray, "n C"], labels: Bool[np.ndarray, "n C"]
) -> Float[np.ndarray, " C"]:
    """Area under the precision-recall curve, in steps (no interpolation).

    Args:
        scores: higher means more likely to carry the concept.
        labels: truth.

    Returns:
        [C] values in (0, 1]; a random ranking gives about the base rate. NaN without positives.
    """
    from sklearn.metrics import average_precision_score

    found = np.full(labels.shape[1], np.nan)
    for column in np.flatnonzero(labels.any(0)):
        found[column] = average_precision_score(labels[:, column], scores[:, column])
    return found
