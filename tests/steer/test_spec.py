"""The steering text: what it means, that it survives a round trip, and what a mistake is told."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vitrail.errors import ConfigError
from vitrail.steer import Steer, format_steers, parse_steers

_NAMES = st.from_regex(r"[a-z][a-z0-9 '.,/+-]{0,10}[a-z]", fullmatch=True)
_STEERS = st.builds(
    Steer,
    st.one_of(_NAMES, st.integers(0, 10**6)),
    st.floats(-1e3, 1e3),
    st.sampled_from(["known", "discovered"]),
    st.booleans(),
)


def test_the_documented_example() -> None:
    assert parse_steers("supreme court=+1.0; OTHER=off; #12=-0.5; discovered:#5=2; Discovered: a=b =+1e-1;") == [
        Steer("supreme court", 1.0),
        Steer("OTHER", -1.0, is_off=True),
        Steer(12, -0.5),
        Steer(5, 2.0, "discovered"),
        Steer("a=b", 0.1, "discovered"),
    ]
    assert parse_steers("  ") == []


@settings(deadline=None, max_examples=25)
@given(st.lists(_STEERS, max_size=4, unique_by=lambda steer: (steer.head, str(steer.concept))))
def test_parse_inverts_format(steers: list[Steer]) -> None:
    assert parse_steers(format_steers(steers)) == steers


@pytest.mark.parametrize(
    ("text", "position", "hint"),
    [
        ("cardiology", 1, "'cardiology=+1.0' or 'cardiology=off'"),
        ("a=+1;  b", 8, "'b=+1.0'"),
        ("a=strong", 1, "a number such as +1.0"),
        ("a=nan", 1, "a number such as +1.0"),
        ("a=1;=2", 5, "names no concept"),
        ("discovered:=2", 1, "names no concept"),
        ("#x=1", 1, "a whole number after #"),
        ("a=1;A=2", 5, "one strength"),
    ],
)
def test_a_mistake_gets_one_line_with_position_and_hint(text: str, position: int, hint: str) -> None:
    with pytest.raises(ConfigError) as error:
        parse_steers(text)
    message = str(error.value)
    assert f"character {position}:" in message
    assert hint in message
    assert "\n" not in message


def test_an_infinite_strength_is_refused_at_the_door() -> None:
    with pytest.raises(ConfigError, match="not finite"):
        Steer("a", float("inf"))
