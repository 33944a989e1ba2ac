"""Struck-out tags are gone, and nothing else is."""

import re

from hypothesis import given
from hypothesis import strategies as st

from vitrail.atlas.annotator.blanking import GAP, blank, tag_pattern

WORDS = st.sampled_from(["labor", "force", "labor force", "port", "report", "C++", "naïve", "x"])


def test_whole_words_in_any_case_and_over_line_ends() -> None:
    pattern = tag_pattern(["labor force", "port"])
    assert blank("The Labor\n  Force of a port; reports, export.", pattern) == f"The {GAP} of a {GAP}; reports, export."


def test_the_longest_tag_goes_first() -> None:
    assert blank("labor force", tag_pattern(["labor", "labor force"])) == GAP


def test_no_tags_leave_the_text_alone() -> None:
    assert tag_pattern([]) is None
    assert blank("as it is", None) == "as it is"


@given(st.lists(WORDS, min_size=1), st.lists(WORDS, min_size=1))
def test_no_tag_is_left_and_every_other_word_is(tags: list[str], text: list[str]) -> None:
    pattern = tag_pattern(tags)
    left = blank(" ; ".join(text), pattern)
    assert pattern is not None
    assert not pattern.search(left)
    for word in text:
        if not pattern.search(word):
            assert re.search(re.escape(word), left)
