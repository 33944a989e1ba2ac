"""Normalised tags: one form, reached at once, the same for every hand that wrote it."""

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vitrail.atlas.tags import normalise, singular, words


@pytest.mark.parametrize(
    ("written", "tag"),
    [
        ("Supreme  Court", "supreme court"),
        ("\ufb01ne\u00adtuning", "finetuning"),  # ligature and soft hyphen
        ("Ｆｕｌｌ　Ｗｉｄｔｈ", "full width"),
        ("STRASSE", "strasse"),
        ("Straße", "strasse"),
        ("two\u2011dimensional", "two-dimensional"),
        ("Bayes\u2019 rule", "bayes' rule"),
        ("\u201cquoted\u201d.", "quoted"),
        ("C++", "c++"),
        ("C#", "c#"),
        ("a\x00b\x07", "a b"),
        ("мир", "мир"),
        ("机器 学习", "机器 学习"),
        ("...", ""),
    ],
)
def test_forms_that_mean_one_tag(written: str, tag: str) -> None:
    assert normalise(written) == tag


@given(st.text(max_size=40))
def test_normalising_twice_is_normalising_once(text: str) -> None:
    """And the result has no capital, no control character, no double or outer blank."""
    tag = normalise(text)
    assert normalise(tag) == tag
    assert tag == " ".join(tag.split())
    assert not any(unicodedata.category(c) in ("Cc", "Cf", "Lu", "Lt") and c != c.lower() for c in tag)


@given(st.text(max_size=30))
def test_composed_and_decomposed_are_one(text: str) -> None:
    """Two editors save "é" differently; a tag does not tell them apart."""
    assert normalise(unicodedata.normalize("NFD", text)) == normalise(unicodedata.normalize("NFC", text))


def test_singular_joins_numbers_and_leaves_other_words_apart() -> None:
    assert singular("shortest paths") == singular("shortest path")
    assert singular("colonies") == singular("colony")
    assert singular("glasses") == singular("glass")
    assert singular("boxes") == singular("box")
    assert len({singular(word) for word in ("bus", "analysis", "class", "gas", "clas")}) == 5


def test_a_word_keeps_its_place_in_the_text_when_its_form_changes_length() -> None:
    """Spans point into the text as it is; only the word that is compared is levelled."""
    text = "Die Straße, die \ufb01nanzierte Kunst"
    for word in words(text):
        assert normalise(text[word.start : word.stop]) == word.text
