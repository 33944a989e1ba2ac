"""Marks are found where they stand."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from vitrail.atlas.annotator.marks import Marker, Phrase
from vitrail.atlas.annotator.reading import mark_table


def _found(phrases: list[str], text: str) -> list[str]:
    marker = Marker([Phrase(phrase, 0, 1.0) for phrase in phrases])
    return [text[mark.start : mark.stop] for mark in marker.find(text)]


@pytest.mark.parametrize(
    ("phrase", "text", "found"),
    [
        ("I'm sorry, but", "Well, I’m  SORRY but no.", ["I’m  SORRY but"]),
        ("lol", "lol, lollipop LOL", ["lol", "LOL"]),
        ("?!", "What?! No?!", ["?!", "?!"]),
        ("isn't it", "isn't, it isn't it", ["isn't, it", "isn't it"]),
        ("straße", "STRASSE", ["STRASSE"]),
        ("", "anything", []),
        ("two words", "two", []),
    ],
)
def test_phrases(phrase: str, text: str, found: list[str]) -> None:
    assert _found([phrase], text) == found


@given(st.lists(st.text("ab '’,", min_size=1, max_size=6), max_size=4), st.text("ab '’,\n", max_size=40))
def test_marks_lie_in_the_text_in_order(phrases: list[str], text: str) -> None:
    marker = Marker([Phrase(phrase, i, 1.0) for i, phrase in enumerate(phrases)])
    marks = marker.find(text)
    assert all(0 <= mark.start < mark.stop <= len(text) for mark in marks)
    assert marks == sorted(marks, key=lambda mark: (mark.start, mark.stop, mark.phrase))


def test_evidence_adds_up_over_phrases_of_a_concept() -> None:
    marker = Marker([Phrase("ah", 2, 2.0), Phrase("oh", 2, 1.0), Phrase("oh", 0, 0.5)])
    texts = ["ah oh", "nothing", "oh, oh"]
    table = mark_table([marker.find(text) for text in texts], marker, 3).toarray()
    log2 = 0.6931472
    wanted = np.array([[0.5, 0, 3], [0, 0, 0], [0.5 * (1 + log2), 0, 1 + log2]])
    np.testing.assert_allclose(table, wanted, rtol=1e-6)
