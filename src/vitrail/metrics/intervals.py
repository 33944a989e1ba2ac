"""95 % intervals by resampling whole clusters: sequences, documents or concepts.

Tokens of one text and texts of one concept are not independent, so a figure is resampled by its
clusters, never by its single observations. Every figure of the project is a function of *sums* over
observations (a mean, a ratio, a difference of rates): the columns of `sums` hold what is added up, and
`statistic` turns totals into the figure. That makes a thousand draws one matrix product.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float, Integer

Statistic = Callable[[np.ndarray], np.ndarray]
"""Totals [draws, columns] to figures [draws]."""


@dataclass(frozen=True)
class Interval:
    """A figure with its 95 % interval.

    Attributes:
        value: the figure over all clusters.
        low: 2.5 % point of the resampled figures.
        high: 97.5 % point.
        num_clusters: how many clusters were resampled.
    """

    value: float
    low: float
    high: float
    num_clusters: int

    @property
    def ci95(self) -> list[float]:
        """[low, high], as it stands in `summary.json`."""
        return [self.low, self.high]

    def as_json(self, name: str = "value", **more: Any) -> dict[str, Any]:
        """The figure under `name`, then `more`, then `ci95`, as plain values."""
        return {name: self.value, **more, "ci95": self.ci95}


def plain(table: Any) -> Any:
    """A table for JSON: numbers that are not finite (nothing to measure) become None.

    Args:
        table: nested mappings and lists of plain values.

    Returns:
        the same with None in the place of NaN and infinities.
    """
    if isinstance(table, Mapping):
        return {key: plain(value) for key, value in table.items()}
    if isinstance(table, list | tuple):
        return [plain(value) for value in table]
    return None if isinstance(table, float) and not math.isfinite(table) else table


def ratio(totals: np.ndarray) -> np.ndarray:
    """First column over second: a mean where the second counts observations."""
    return np.asarray(totals[..., 0] / totals[..., 1])


def difference(totals: np.ndarray) -> np.ndarray:
    """Difference of two ratios whose columns are (sum, count, sum, count)."""
    return np.asarray(ratio(totals[..., :2]) - ratio(totals[..., 2:]))


def bootstrap(
    sums: Float[np.ndarray, "n s"],
    statistic: Statistic = ratio,
    *,
    clusters: Integer[np.ndarray, " n"] | None = None,
    seed: int = 0,
    num_draws: int = 2000,
) -> Interval:
    """A figure with its percentile interval over resampled clusters.

    Args:
        sums: one row per observation, one column per summand.
        statistic: from totals [draws, s] to figures [draws].
        clusters: cluster id of each observation; None makes each its own cluster.
        seed: of the resampling.
        num_draws: bootstrap draws.

    Returns:
        the interval. NaN where there is no observation; draws with an undefined figure are left out.

    Cost: O(draws · clusters · s).
    """
    ids = np.arange(len(sums)) if clusters is None else clusters
    unique, inverse = np.unique(ids, return_inverse=True)
    if not len(unique):
        return Interval(float("nan"), float("nan"), float("nan"), 0)
    per_cluster = np.zeros((len(unique), sums.shape[1]))
    np.add.at(per_cluster, inverse, sums.astype(np.float64))
    weights = np.random.default_rng(seed).multinomial(
        len(unique), np.full(len(unique), 1 / len(unique)), size=num_draws
    )
    # A draw without what a ratio divides by gives no figure.
    with np.errstate(invalid="ignore", divide="ignore"):
        value = float(statistic(per_cluster.sum(0, keepdims=True))[0])
        figures = statistic(weights @ per_cluster)
    figures = figures[np.isfinite(figures)]
    if not len(figures):
        return Interval(value, float("nan"), float("nan"), len(unique))
    low, high = np.quantile(figures, [0.025, 0.975])
    return Interval(value, float(low), float(high), len(unique))


def mean_interval(
    values: Float[np.ndarray, " n"], *, clusters: Integer[np.ndarray, " n"] | None = None, seed: int = 0
) -> Interval:
    """The mean of `values` with its interval over `clusters`.

    Args:
        values: observations, finite.
        clusters: cluster id of each; None makes each its own cluster.
        seed: of the resampling.

    Returns:
        the interval.
    """
    return bootstrap(np.stack([values, np.ones_like(values)], axis=1), clusters=clusters, seed=seed)
