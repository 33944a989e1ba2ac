"""Documents longer than a window: nothing is lost, memory and time stay in proportion."""

import tracemalloc

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vitrail.corpus import chunk_text, chunking


@settings(deadline=None)
@given(text=st.text("ab C.,\n é", max_size=300), window=st.integers(40, 80), near=st.integers(1, 30))
def test_windows_tile_a_text_and_do_not_split_white_space(text: str, window: int, near: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(chunking, "WINDOW_CHARS", window)
        patch.setattr(chunking, "_NEAR_END", near)
        spans = chunk_text(text, 10, 20)
    assert "".join(text[start:stop] for start, stop in spans) == text
    assert all(0 < stop - start <= 20 for start, stop in spans)


def test_window_ends_with_a_paragraph_where_one_is_near(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chunking, "WINDOW_CHARS", 3_000)
    text = ("A sentence of words. " * 20 + "\n") * 12
    stops = {stop for _, stop in chunk_text(text)}
    assert text.rindex("\n", 0, 2_999) + 1 in stops


def test_memory_is_that_of_a_window(monkeypatch: pytest.MonkeyPatch) -> None:
    """A line without punctuation used to hold several lists as long as the document: 70 bytes a character."""
    monkeypatch.setattr(chunking, "WINDOW_CHARS", 2**13)
    peaks = []
    for times in (400, 1_600):  # two windows and six
        text = "lorem ipsum dolor sit amet " * times
        tracemalloc.start()
        chunk_text(text)
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[1] < 1.5 * peaks[0], f"four times the text takes {peaks[1] / peaks[0]:.1f} times the memory"
