"""Flags that are whole numbers refuse a fraction, which was cut without a word."""

from pathlib import Path

import pytest

from tests.faults.command import vitrail
from tests.faults.test_places import assert_refused

GENERATE, EXPLAIN = ("generate", "model", "The judge"), ("explain", "model", "The judge")


@pytest.mark.parametrize(
    ("words", "flag"),
    [
        (("corpus", "import", "texts", "--out", "out"), "--min-chars"),
        (("atlas", "search", "atlas", "judge"), "--limit"),
        (("index", "query", "model", "judge", "--index", "index"), "--limit"),
        *((GENERATE, flag) for flag in ("--max-new-tokens", "--tokens-per-step", "--seed")),
        *((EXPLAIN, flag) for flag in ("--max-new-tokens", "--seed")),
        *((("metrics", "model", "packed"), flag) for flag in ("--sequences", "--seed")),
        *((("steer", "calibrate", "model", "--packed", "packed"), flag) for flag in ("--layer", "--seed")),
        (("demo", "--out", "/proc/nowhere"), "--seed"),
    ],
)
def test_fraction_where_a_whole_number_belongs(words: tuple[str, ...], flag: str, tmp_path: Path) -> None:
    done = vitrail(*words, flag, "1.5", folder=tmp_path)
    assert_refused(done, flag, "'1.5' is not a whole number")
    assert len(done.err.strip().splitlines()) == 1


@pytest.mark.parametrize("value", ["3", "+3", " 3"])
def test_whole_numbers_are_taken(value: str, tmp_path: Path) -> None:
    done = vitrail(*GENERATE, "--max-new-tokens", value, folder=tmp_path)
    assert_refused(done, "model/config.json")
