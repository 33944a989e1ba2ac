import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from vitrail.metrics.intervals import bootstrap, difference, mean_interval, plain, ratio


def test_mean_is_exact_and_lies_inside_its_interval() -> None:
    values = np.array([1.0, 2.0, 4.0, 5.0])
    found = mean_interval(values)
    assert found.value == 3.0
    assert found.low < 3.0 < found.high
    assert found.num_clusters == 4


def test_interval_covers_the_truth_about_nineteen_times_in_twenty() -> None:
    rng = np.random.default_rng(0)
    covered = 0
    for trial in range(200):
        found = mean_interval(rng.normal(size=60), seed=trial)
        covered += found.low <= 0.0 <= found.high
    assert 180 <= covered <= 199, "percentile intervals of 60 values cover slightly less than 95 %"


def test_copies_inside_a_cluster_add_no_certainty() -> None:
    """Ten copies of every observation, clustered, give the interval of the observations alone."""
    values = np.random.default_rng(1).normal(size=23)
    alone = mean_interval(values, seed=3)
    copied = mean_interval(np.repeat(values, 10), clusters=np.repeat(np.arange(23), 10), seed=3)
    assert np.allclose([alone.low, alone.high], [copied.low, copied.high], atol=1e-12)


@settings(max_examples=20, deadline=None)
@given(st.integers(1, 13), st.integers(0, 2**32 - 1))
def test_order_of_observations_does_not_matter(num_clusters: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    sums = rng.integers(1, 9, size=(29, 2)).astype(np.float64)
    clusters = rng.integers(0, num_clusters, size=29)
    order = rng.permutation(29)
    assert bootstrap(sums, ratio, clusters=clusters) == bootstrap(sums[order], ratio, clusters=clusters[order])


def test_difference_of_paired_arms() -> None:
    """Arms that differ by a constant in every cluster have a difference without uncertainty."""
    hits = np.random.default_rng(2).random(17)
    ones, zeros = np.ones(17), np.zeros(17)
    sums = np.concatenate([np.stack([hits + 0.25, ones, zeros, zeros], 1), np.stack([zeros, zeros, hits, ones], 1)])
    found = bootstrap(sums, difference, clusters=np.tile(np.arange(17), 2))
    assert np.allclose([found.value, found.low, found.high], 0.25, atol=1e-12)


def test_nothing_observed_is_no_number() -> None:
    assert np.isnan(bootstrap(np.zeros((0, 2))).value)


def test_json_has_the_name_asked_for() -> None:
    found = mean_interval(np.ones(3))
    assert found.as_json("rate", n=3) == {"rate": 1.0, "n": 3, "ci95": [1.0, 1.0]}


def test_what_is_no_number_is_null_in_json() -> None:
    assert plain({"a": [float("nan"), 1.0], "b": {"c": float("inf"), "d": "text"}, "n": 3}) == {
        "a": [None, 1.0],
        "b": {"c": None, "d": "text"},
        "n": 3,
    }
