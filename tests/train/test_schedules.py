"""Curves and rates at the places where a reader would check them by hand."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vitrail.errors import ConfigError
from vitrail.train.objective import ComposeSettings
from vitrail.train.schedules import Knot, RateSettings, rate_at, value_at


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
    knots=st.lists(
        st.tuples(st.floats(0, 1), st.floats(-3, 3)) | st.tuples(st.floats(0, 1), st.floats(-3, 3), st.just("linear")),
        min_size=1,
        max_size=5,
    ),
    share=st.floats(0, 1),
)
def test_a_curve_stays_within_its_values(knots: list[Knot], share: float) -> None:
    curve = tuple(sorted(knots, key=lambda knot: knot[0]))
    values = [knot[1] for knot in curve]
    assert min(values) - 1e-9 <= value_at(curve, share) <= max(values) + 1e-9


@pytest.mark.parametrize(
    ("knots", "said"),
    [
        ([[0.5, 1.0], [0.2, 0.0]], "rising within"),
        ([[-0.1, 1.0]], "rising within"),
        ([[0.0, 1.0], [1.5, 0.0]], "rising within"),
        ([], "is a list of knots"),
        (0.3, "is a list of knots"),
        ([[0.0]], "is a list of knots"),
        ([[0.0, 1.0], [1.0, 0.0, "cubic"]], "or .share, value, linear."),
        ([[0.0, 1.0, "linear", 2]], "is a list of knots"),
    ],
)
def test_what_is_no_curve_is_refused_in_one_line(knots: object, said: str) -> None:
    with pytest.raises(ConfigError, match=said) as caught:
        ComposeSettings.parse({"known_forcing": knots})
    assert "'known_forcing'" in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"known_forcing": [[0.0, 1.2]]}, "known_forcing is a share from 0 to 1"),
        ({"residual_dropout": [[0.0, -0.1], [1.0, 0.3]]}, "its knots go from -0.1 to 0.3"),
        ({"top_k_known": [[0.0, 16], [1.0, 0]]}, "top_k_known falls to 0"),
    ],
)
def test_values_that_are_none_are_refused(values: dict[str, object], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        ComposeSettings.parse(values)


def test_a_stretch_to_a_linear_knot_is_straight() -> None:
    curve = ComposeSettings.parse(
        {"discovered_forcing": [[0.25, 1], [0.75, 0.5, "linear"], [1.0, 0.0]]}
    ).discovered_forcing
    assert [value_at(curve, share) for share in (0.0, 0.25, 0.375, 0.5, 0.75)] == [1.0, 1.0, 0.875, 0.75, 0.5]
    assert value_at(curve, 0.75 + 0.25 / 3) == pytest.approx(0.5 * 0.75), "the next stretch is half a cosine again"
    assert (
        ComposeSettings.parse(ComposeSettings(discovered_forcing=curve).model_dump(mode="json")).discovered_forcing
        == curve
    )


def test_teacher_forcing_as_reported() -> None:
    """Known: 1 for 15 %, by cosine to 0.5 at 50 %. Discovered: 1 for the first 25 %, then straight to its floor."""
    floor = 0.2
    reported = ComposeSettings.parse(
        {
            "known_forcing": [[0.15, 1.0], [0.5, 0.5]],
            "discovered_forcing": [[0.25, 1.0], [1.0, floor, "linear"]],
        }
    )
    for step in range(101):
        s = step / 100
        known = 1.0 if s <= 0.15 else 0.5 if s >= 0.5 else 0.5 + 0.25 * (1 + math.cos(math.pi * (s - 0.15) / 0.35))
        discovered = 1.0 if s <= 0.25 else 1.0 - (1.0 - floor) * (s - 0.25) / 0.75
        assert value_at(reported.known_forcing, s) == pytest.approx(known)
        assert value_at(reported.discovered_forcing, s) == pytest.approx(discovered)


def test_warm_up_stable_decay() -> None:
    rate = RateSettings(warmup_steps=10, decay_share=0.25, floor=0.0)
    factors = [rate_at(rate, step, 100) for step in range(100)]
    assert factors[0] == pytest.approx(0.1)
    assert factors[9:75] == [1.0] * 66
    assert factors[87] == pytest.approx(13 / 25)
    assert factors[99] == pytest.approx(1 / 25)
    assert min(factors) > 0, "a step at rate zero would be wasted"
