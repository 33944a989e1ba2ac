"""Chunks tile a document, stay within the limits, and end where a reader would pause."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vitrail.corpus import chunk_text, estimate_tokens
from vitrail.errors import ConfigError

texts = st.text(max_size=400) | st.text(alphabet="ab .,;\n!?()é漢🙂", max_size=600)


@settings(max_examples=60, deadline=None)
@given(text=texts, max_tokens=st.integers(4, 60), max_chars=st.integers(1, 120))
def test_chunks_are_lossless_and_within_limits(text: str, max_tokens: int, max_chars: int) -> None:
    spans = chunk_text(text, max_tokens, max_chars)
    assert "".join(text[start:stop] for start, stop in spans) == text
    assert all(stop > start for start, stop in spans)
    for start, stop in spans:
        assert stop - start <= max_chars
        assert estimate_tokens(text[start:stop]) <= max_tokens + 1e-6  # sums are taken in another order


def test_chunks_end_with_paragraphs_then_sentences() -> None:
    text = "One short sentence here. Another short one.\n\nA new paragraph begins. It ends.\n\nThird one, alone."
    chunks = [text[start:stop] for start, stop in chunk_text(text, 100, 46)]
    assert chunks == [
        "One short sentence here. Another short one.\n\n",
        "A new paragraph begins. It ends.\n\n",
        "Third one, alone.",
    ]


def test_neighbouring_chunks_are_of_like_size() -> None:
    """Greedy filling would leave 4 + 4 + 1 sentences."""
    sentence = "The quick brown fox jumps over it. "
    sizes = [stop - start for start, stop in chunk_text(sentence * 9, 50, 10_000)]
    assert np.ptp(sizes) <= len(sentence)


def test_one_endless_word_is_cut() -> None:
    spans = chunk_text("x" * 10_000, 20, 64)
    assert spans[-1][1] == 10_000
    assert max(stop - start for start, stop in spans) <= 64


def test_empty_text_has_no_chunks() -> None:
    assert chunk_text("") == []


def test_hopeless_limits_are_refused() -> None:
    with pytest.raises(ConfigError, match="at least"):
        chunk_text("words", 1, 10)
