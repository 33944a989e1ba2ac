"""Settings: unknown keys refused with the nearest, overrides merged, values checked."""

from pathlib import Path

import pytest

from vitrail.cli.output import parse_overrides
from vitrail.errors import ConfigError, nearest
from vitrail.settings import Settings


class Inner(Settings):
    width: int = 3


class Outer(Settings):
    inner: Inner = Inner()
    name: str = "a"


def test_file_then_overrides(tmp_path: Path) -> None:
    path = tmp_path / "s.yaml"
    path.write_text("inner: {width: 5}\nname: b\n", encoding="utf-8")
    found = Outer.load(path, parse_overrides(["--inner.width", "7"]))
    assert found == Outer(inner=Inner(width=7), name="b")


@pytest.mark.parametrize("words", [["width"], ["--inner.width"], ["--inner.width", "7", "8"]])
def test_overrides_that_are_no_flags(words: list[str]) -> None:
    with pytest.raises(ConfigError):
        parse_overrides(words)


def test_unknown_inner_key() -> None:
    with pytest.raises(ConfigError, match=r"unknown setting 'inner.wdith'; did you mean 'width'"):
        Outer.parse({"inner": {"wdith": 3}})


def test_wrong_value_names_key_and_value() -> None:
    with pytest.raises(ConfigError, match=r"'inner.width' = 'wide'"):
        Outer.parse({"inner": {"width": "wide"}})


def test_override_below_a_value() -> None:
    with pytest.raises(ConfigError, match="is a value, not a group"):
        Outer.load(overrides={"name": "b", "name.first": "c"})


def test_nearest_ignores_case_and_is_silent_when_far() -> None:
    assert nearest("CARDIOLGY", ["Cardiology", "law"]) == "; did you mean 'Cardiology'?"
    assert nearest("zzz", ["Cardiology", "law"]) == ""
