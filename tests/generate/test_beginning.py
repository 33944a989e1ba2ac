"""The finished beginning: whatever the order of commits, the text is that of the tokens, cut before a stop string."""

from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vitrail.generate import Beginning
from vitrail.text import Tokenizer, train_tokenizer

TOKENIZER: Tokenizer = train_tokenizer(["the river bends, naïve 🦜 and the river ends"] * 3, 300)
TEXTS = st.text(alphabet="ther iv🦜ï,", min_size=1, max_size=20)


@settings(deadline=None, max_examples=100)
@given(TEXTS, st.lists(st.text(alphabet="ther iv🦜", min_size=1, max_size=4), max_size=3), st.randoms())
def test_any_order_gives_the_text_before_the_first_stop(text: str, stops: list[str], random: Random) -> None:
    ids = TOKENIZER.encode(text)
    order = list(range(len(ids)))
    random.shuffle(order)
    beginning = Beginning(TOKENIZER, 7, stops, ())
    shown, tokens = "", list[int]()
    for place in order:
        gain = beginning.add([7 + place], [ids[place]])
        shown += gain.text
        tokens += gain.tokens
        assert not any(stop in shown for stop in stops), "a stop string was shown"
        if beginning.is_stopped:
            break
    shown += beginning.close()
    # Token by token from the left: the first token that completes a stop string ends the text before it.
    cut = len(text)
    for count in range(1, len(ids) + 1):
        read = TOKENIZER.decode(ids[:count]).rstrip("\ufffd")
        places = [read.find(stop) for stop in stops if stop in read]
        if places:
            cut = min(places)
            break
    assert shown == text[:cut]
    assert tokens == ids[: len(tokens)]
    assert beginning.end == 7 + len(tokens)


def test_half_a_character_is_held_back_and_shown_at_the_end() -> None:
    first, *rest = TOKENIZER.encode("🦜")
    assert rest, "the character must take several tokens"
    beginning = Beginning(TOKENIZER, 0, [], ())
    assert beginning.add([0], [first]).text == ""
    assert beginning.close() == "\ufffd"


@pytest.mark.parametrize(("stop", "shown"), [("river", "the "), ("r e", "the rive"), ("xyz", "the river ends")])
def test_what_may_become_a_stop_string_is_held_back(stop: str, shown: str) -> None:
    beginning = Beginning(TOKENIZER, 0, [stop], ())
    ids = [token for char in "the river ends" for token in TOKENIZER.encode(char)]
    text = ""
    for pos, token in enumerate(ids):
        if not beginning.is_stopped:
            text += beginning.add([pos], [token]).text
            assert shown.startswith(text)
    assert text + beginning.close() == shown
