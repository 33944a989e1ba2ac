"""Tokenizer: nothing is lost, control tokens cannot be typed, training is deterministic."""

import json
import random
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vitrail.errors import ArtifactError, ConfigError
from vitrail.text import Tokenizer, train_tokenizer
from vitrail.text.controls import SPECIALS
from vitrail.text.training import MIN_VOCAB_SIZE

TEXTS = ["the cat sat on the mat, the cat slept", "In 1999 and 2001 the graphs were drawn.", "naïve café 漢字"] * 3
VOCAB = 313

anything = st.text(max_size=60) | st.lists(st.sampled_from([*SPECIALS, "the cat", " ", "\n", "🙂é"]), max_size=6).map(
    "".join
)


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return train_tokenizer(TEXTS, VOCAB)


@settings(max_examples=60, deadline=None)
@given(text=anything)
def test_any_text_survives_and_never_becomes_control_tokens(tokenizer: Tokenizer, text: str) -> None:
    ids = tokenizer.encode(text)
    assert tokenizer.decode(ids) == text
    assert not tokenizer.special_ids & set(ids)
    assert b"".join(map(tokenizer.token_bytes, ids)).decode() == text


@settings(max_examples=40, deadline=None)
@given(text=anything)
def test_offsets_point_at_the_characters(tokenizer: Tokenizer, text: str) -> None:
    ids, spans = tokenizer.encode_with_offsets(text)
    assert ids == tokenizer.encode(text)
    for token_id, (start, stop) in zip(ids, spans, strict=True):
        assert tokenizer.token_bytes(token_id) in text[start:stop].encode()
    assert [start for start, _ in spans] == sorted(start for start, _ in spans)
    assert tokenizer.encode_batch([text, "the cat"]) == [ids, tokenizer.encode("the cat")]


def test_leading_space_and_years_are_kept_together(tokenizer: Tokenizer) -> None:
    assert tokenizer.token_text(tokenizer.encode("on the mat")[1]).startswith(" ")
    assert tokenizer.token_text(tokenizer.encode("漢")[0]) == "\ufffd", "a part of a character"


def test_control_tokens_have_names_and_no_bytes(tokenizer: Tokenizer) -> None:
    ids = [tokenizer.bos_id, *tokenizer.encode("the cat"), tokenizer.eoc_id, tokenizer.eos_id, tokenizer.pad_id]
    assert tokenizer.decode(ids) == "the cat"
    assert tokenizer.decode(ids, keep_special=True) == "<|bos|>the cat<|endofchunk|><|endoftext|><|pad|>"
    assert tokenizer.token_text(tokenizer.mask_id) == "<|mask|>"
    assert tokenizer.token_bytes(tokenizer.mask_id) == b""
    assert len(tokenizer.special_ids) == 5


def test_size_is_as_asked_and_training_ignores_the_order(tokenizer: Tokenizer) -> None:
    assert tokenizer.vocab_size == VOCAB
    shuffled = random.Random(0).sample(TEXTS, len(TEXTS))
    assert train_tokenizer(shuffled, VOCAB).fingerprint == tokenizer.fingerprint
    assert train_tokenizer(["a"], 500).vocab_size == MIN_VOCAB_SIZE, "no merges in one letter"
    with pytest.raises(ConfigError, match=f"at least {MIN_VOCAB_SIZE}"):
        train_tokenizer(TEXTS, 100)


def test_load_of_save_is_the_same(tokenizer: Tokenizer, tmp_path: Path) -> None:
    tokenizer.save(tmp_path / "tokenizer")
    loaded = Tokenizer.load(tmp_path / "tokenizer")
    assert loaded.fingerprint == tokenizer.fingerprint
    assert loaded.encode("<|endoftext|> the cat") == tokenizer.encode("<|endoftext|> the cat")


def test_damaged_file_is_one_line(tokenizer: Tokenizer, tmp_path: Path) -> None:
    with pytest.raises(ArtifactError, match="name a folder"):
        Tokenizer.load(tmp_path)
    tokenizer.save(tmp_path)
    file = tmp_path / "tokenizer.json"
    values = json.loads(file.read_text())
    file.write_text(file.read_text()[:-40])
    with pytest.raises(ArtifactError, match="damaged"):
        Tokenizer.load(tmp_path)
    values["added_tokens"] = []
    del values["model"]["vocab"]["<|mask|>"]
    file.write_text(json.dumps(values))
    with pytest.raises(ArtifactError, match=r"lacks the control token <\|mask\|>"):
        Tokenizer.load(tmp_path)


def test_half_a_character_is_one_line(tokenizer: Tokenizer) -> None:
    """Bytes that are not UTF-8 come from the command line as lone surrogates; they gave a TypeError."""
    with pytest.raises(ConfigError, match="not valid Unicode"):
        tokenizer.encode("caf\udce9")


def test_size_beyond_any_memory_is_one_line() -> None:
    """The library ended the process."""
    with pytest.raises(ConfigError, match="at most"):
        train_tokenizer(TEXTS, 99_999_999_999)
