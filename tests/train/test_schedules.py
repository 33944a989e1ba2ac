"""Curves and rates at the places where a reader would check them by hand."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vitrail.errors import ConfigError
from vitrail.train.objective import ComposeSettings
from vitrail.train.schedules import RateSettings, rate_at, value_at


def test_cosine_between_knots_by_hand() -> None:
    curve = ((0.15, 1.0), (0.5, 0.5))
    assert value_at(curve, 0.0) == 1.0
    assert value_at(curve, 0.15) == 1.0
    assert value_at(curve, 0.325) == pytest.approx(0.75), "half way a cosine is at the mean"
    assert value_at(curve, 0.15 + 0.35 / 3) == pytest.approx(0.5 + 0.5 * 0.75)
    assert value_at(curve, 0.9) == 0.5


def test_two_knots_at_one_share_jump() -> None:
    curve = ((0.0, 1.0), (0.5, 1.0), (0.5, 0.2))
    assert value_at(curve, 0.499) == 1.0
    assert value_at(curve, 0.5) == 0.2


@settings(max_examples=25, deadline=None)
@given(
    knots=st.lists(st.tuples(st.floats(0, 1), st.floats(-3, 3)), min_size=1, max_size=5),
    share=st.floats(0, 1),
)
def test_a_curve_stays_within_its_values(knots: list[tuple[float, float]], share: float) -> None:
    curve = tuple(sorted(knots))
    values = [value for _, value in curve]
    assert min(values) - 1e-9 <= value_at(curve, share) <= max(values) + 1e-9


def test_knots_out_of_order_are_refused() -> None:
    with pytest.raises(ConfigError, match="rising within"):
        ComposeSettings.parse({"known_forcing": [[0.5, 1.0], [0.2, 0.0]]})


def test_warm_up_stable_decay() -> None:
    rate = RateSettings(warmup_steps=10, decay_share=0.25, floor=0.0)
    factors = [rate_at(rate, step, 100) for step in range(100)]
    assert factors[0] == pytest.approx(0.1)
    assert factors[9:75] == [1.0] * 66
    assert factors[87] == pytest.approx(13 / 25)
    assert factors[99] == pytest.approx(1 / 25)
    assert min(factors) > 0, "a step at rate zero would be wasted"
