"""What each policy owes: the count of its definition, most confident first, and always progress."""

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vitrail.errors import ConfigError
from vitrail.generate import Sampling
from vitrail.generate.policies import Factor, LeftToRight, Linear, Moment, MostConfident, Policy, Threshold

CONFIDENCES = st.lists(st.floats(-9, 0), min_size=1, max_size=20)
POLICIES = st.one_of(
    st.builds(MostConfident, st.integers(1, 9)),
    st.builds(Linear, st.integers(1, 30)),
    st.builds(Threshold, st.floats(0.001, 1)),
    st.builds(Factor, st.floats(0.001, 40)),
    st.builds(LeftToRight, st.integers(1, 9)),
)


@given(CONFIDENCES, POLICIES, st.integers(0, 30))
def test_a_policy_picks_different_open_positions_and_at_least_one(
    confidence: list[float], policy: Policy, step: int
) -> None:
    picks = policy(confidence, Moment(step, opened=len(confidence) + step))
    assert 1 <= len(picks) == len(set(picks)) <= len(confidence)
    assert all(0 <= place < len(confidence) for place in picks)
    if not isinstance(policy, LeftToRight):
        shown = [confidence[place] for place in picks]
        assert shown == sorted(confidence, reverse=True)[: len(picks)]


@given(st.integers(1, 40), st.integers(1, 60))
def test_the_linear_schedule_spreads_a_block_over_its_steps(opened: int, steps: int) -> None:
    left, counts = [0.0] * opened, list[int]()
    while left:
        counts.append(len(Linear(steps)(left, Moment(len(counts), opened))))
        left = left[counts[-1] :]
    assert len(counts) == min(steps, opened)
    assert counts == sorted(counts, reverse=True)
    assert max(counts) - min(counts) <= 1


@given(CONFIDENCES, st.floats(0.01, 1))
def test_the_threshold_takes_all_that_pass_it(confidence: list[float], probability: float) -> None:
    picks = Threshold(probability)(confidence, Moment(0, len(confidence)))
    passing = {place for place, value in enumerate(confidence) if value >= math.log(probability)}
    assert set(picks) == passing or (not passing and picks == [confidence.index(max(confidence))])


def test_the_factor_takes_the_largest_count_that_is_sure_together() -> None:
    confidence = [math.log(p) for p in (0.5, 0.99, 0.9, 0.98)]
    # Surest first: 0.99, 0.98, 0.9, 0.5; (n + 1)(1 − p_n) = 0.02, 0.06, 0.4, 2.5.
    assert Factor(0.05)(confidence, Moment(0, 4)) == [1]
    assert Factor(0.1)(confidence, Moment(0, 4)) == [1, 3]
    assert Factor(1.0)(confidence, Moment(0, 4)) == [1, 3, 2]
    assert Factor(0.01)(confidence, Moment(0, 4)) == [1]
    assert Factor(3.0)(confidence, Moment(0, 4)) == [1, 3, 2, 0]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"top_p": 0.9}, "top_p has no effect at temperature 0"),
        ({"top_k": 5}, "top_k has no effect at temperature 0"),
        ({"threshold": 0.9, "tokens_per_step": 2}, "tokens_per_step and threshold both say"),
        ({"factor": 1.0, "steps_per_block": 2}, "steps_per_block and factor both say"),
        ({"order": "left_to_right", "threshold": 0.5}, "threshold goes by confidence"),
        ({"threshold": 1.5}, "less than or equal to 1"),
        ({"threshhold": 0.5}, "did you mean 'threshold'"),
    ],
)
def test_options_without_effect_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Sampling.parse(options)
