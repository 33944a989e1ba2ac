"""Ranks files: merges are found again, ids are those of the slow twin, files that are none are refused."""

import base64
import itertools
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.text.conftest import small_ranks
from vitrail.errors import ArtifactError
from vitrail.text import ControlIds, Tokenizer
from vitrail.text.ranks import Ranks, find_merges, read_ranks, tokenizer_file

WORDS = r" ?[a-z]+|\s+|[^a-z\s]+"
CONTROLS = ControlIds(pad=500, bos=501, eos=502, eoc=503, mask=504)
NAMES = {"<|pad|>": 500, "<|bos|>": 501, "<|endoftext|>": 502, "<|endofchunk|>": 503, "<|mask|>": 504}


def slow_ids(ranks: Ranks, text: str) -> list[int]:
    """What ranks mean: inside each word, the neighbours that make the piece of lowest rank merge, leftmost first."""
    ids = []
    for word in re.findall(WORDS, text):
        data = word.encode()
        parts = [data] if data in ranks else [bytes([byte]) for byte in data]
        while pairs := [(ranks[a + b], i) for i, (a, b) in enumerate(itertools.pairwise(parts)) if a + b in ranks]:
            _, place = min(pairs)
            parts[place : place + 2] = [parts[place] + parts[place + 1]]
        ids += [ranks[part] for part in parts]
    return ids


@pytest.fixture(scope="module")
def ranks() -> Ranks:
    return read_ranks(small_ranks())


@pytest.fixture(scope="module")
def tokenizer(ranks: Ranks) -> Tokenizer:
    return Tokenizer(tokenizer_file(ranks, WORDS, NAMES), CONTROLS, 512)


texts = st.text(max_size=40) | st.lists(
    st.sampled_from(["a", "an", "ba", "banana", "the", " ", "\n", "-", "é", "漢", "<|mask|>", "1999", "s"]), max_size=20
).map("".join)


@settings(max_examples=200, deadline=None)
@given(text=texts)
def test_ids_are_those_of_the_slow_twin(tokenizer: Tokenizer, ranks: Ranks, text: str) -> None:
    ids, spans = tokenizer.encode_with_offsets(text)
    assert ids == slow_ids(ranks, text)
    assert tokenizer.decode(ids) == text
    for token_id, (start, stop) in zip(ids, spans, strict=True):
        assert tokenizer.token_bytes(token_id) in text[start:stop].encode()


def test_every_piece_is_made_by_one_merge(ranks: Ranks) -> None:
    merges = find_merges(ranks)
    made = [left + right for left, right in merges]
    assert made == sorted((piece for piece in ranks if len(piece) > 1), key=ranks.__getitem__)


def test_a_piece_that_no_merge_makes_is_still_a_word() -> None:
    """Such vocabularies exist: a whole word is looked up before any merge."""
    pieces = [*(bytes([byte]) for byte in range(256)), b"xyzzy"]
    ranks = {piece: rank for rank, piece in enumerate(pieces)}
    assert find_merges(ranks) == []
    tokenizer = Tokenizer(tokenizer_file(ranks, WORDS, NAMES), CONTROLS, 512)
    assert tokenizer.encode("xyzzy") == [256]
    assert tokenizer.encode("xyzzyx") == [*b"xyzzyx"]


def test_the_order_of_merges_decides_between_two_ways() -> None:
    """`abc` is `a` + `bc` where `bc` merges first, though `ab` + `c` would make it too."""
    pieces = [*(bytes([byte]) for byte in range(256)), b"bc", b"ab", b"abc"]
    merges = find_merges({piece: rank for rank, piece in enumerate(pieces)})
    assert merges[-1] == (b"a", b"bc")


def test_control_tokens_and_gaps(tokenizer: Tokenizer, ranks: Ranks) -> None:
    assert tokenizer.vocab_size == 512
    assert tokenizer.unused_ids == frozenset(range(len(ranks), 500)) | frozenset(range(505, 512))
    assert tokenizer.encode_with_controls("the<|mask|>") == [*tokenizer.encode("the"), 504]
    assert 504 not in tokenizer.encode("the<|mask|>")


def test_files_that_are_none_are_one_line(ranks: Ranks) -> None:
    with pytest.raises(ArtifactError, match="line 2 is not 'BASE64 RANK'"):
        read_ranks(base64.b64encode(b"a") + b" 0\n{}\n")
    with pytest.raises(ArtifactError, match="line 1"):
        read_ranks(b"??? 3\n")
    with pytest.raises(ArtifactError, match="not all 256 bytes"):
        read_ranks(base64.b64encode(b"a") + b" 0\n")
    with pytest.raises(ArtifactError, match="id 300 of a control token"):
        tokenizer_file(ranks, WORDS, {"<|mask|>": 300})
