"""Tags: longest known phrase, no stop words, no code; specificity against a count by hand."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from vitrail.atlas.concepts.geometry import count_matrix, specificity
from vitrail.atlas.tags import Tagger, phrases, same_word, select_tags
from vitrail.atlas.tags.choosing import choose_tags
from vitrail.atlas.tags.normalise import fold


def found(text: str) -> set[str]:
    return {phrase for phrase, _, _ in phrases(text)}


def test_phrases_hold_no_stop_word_at_their_ends() -> None:
    got = found("The shortest path of a weighted graph, and the rule of law.")
    assert {"path", "weighted graph", "law"} <= got
    assert not any(phrase.split()[i] in ("the", "of", "a") for phrase in got for i in (0, -1))


def test_code_is_no_phrase() -> None:
    assert found("call np.array(x) with shortest_path_length, x2 and --flag") <= {"call"}


def test_the_longest_tag_wins() -> None:
    text = "Labor force and the force of\nlabor force."
    tags = [text[start:stop] for _, start, stop in Tagger(["force", "labor force"]).tag(text)]
    assert tags == ["Labor force", "force", "labor force"]


def test_fragments_are_no_tags() -> None:
    """ "Supreme" that only ever stands in "Supreme Court" is not a tag of its own."""
    texts = [f"A Supreme Court of {name} sits in {name}." for name in ("Utah", "Ohio", "Iowa", "Maine")]
    filler = ["Graph theory speaks of vertices.", "Nothing here."] * 3
    table = select_tags(texts + filler, min_chunks=3, max_tags=50)
    assert "supreme court" in table.tags
    assert "supreme" not in table.tags
    assert table.display[table.tags.index("supreme court")] == "Supreme Court"


def test_pieces_of_names_are_known_as_such() -> None:
    texts = [f"It was José {name}, and copper was dear." for name in ("Santos", "Moreno", "Rivas", "Duarte")]
    table = select_tags([*texts, "Nothing here.", "Nor there."], min_chunks=3, max_tags=50)
    is_name = dict(zip(table.tags, table.is_name, strict=True))
    assert is_name["josé"]
    assert not is_name["copper"]


def test_forms_of_one_word() -> None:
    assert same_word("matrix", "matrices")
    assert same_word("colony", "colonial")
    assert not same_word("graph", "court")


def test_specificity_by_hand() -> None:
    """Four groups of two chunks: a tag in two chunks of one group reaches 1 of 1.75 groups."""
    counts = count_matrix([[0, 1], [0], [1], [], [1], [], [1, 2], []], 3)
    groups = np.array([0, 0, 1, 1, 2, 2, 3, 3])
    expected_two, expected_four = 4 * (1 - 0.75**2), 4 * (1 - 0.75**4)
    np.testing.assert_allclose(
        specificity(counts, groups), [1 - 1 / expected_two, 1 - 4 / expected_four, 0], atol=1e-12
    )


def test_one_sign_for_several_words_is_one_word() -> None:
    """U+FDFA stands for four words of Arabic, and is common in it."""
    texts = [f"\u0645\u062d\u0645\u062f\ufdfa \u0643\u062a\u0627\u0628 {i}" for i in range(4)]
    assert all(len(phrase.split()) <= 3 for text in texts for phrase in found(text))
    choose_tags(texts, 3, 50)


@settings(max_examples=25, deadline=None)
@given(st.text(max_size=200))
def test_any_text_can_be_tagged(text: str) -> None:
    """Occurrences are ordered, do not overlap, and lie in the text."""
    known = sorted(found(text))
    end = 0
    for tag, start, stop in Tagger(known).tag(text):
        assert end <= start < stop <= len(text)
        assert " ".join(map(fold, text[start:stop].split())) == known[tag]
        end = stop
