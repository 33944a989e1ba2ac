"""Every kind of tokenizer: a user's text is never control, nothing is lost that the vocabulary can write."""

import json
import unicodedata
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer as Backend

from tests.text.conftest import KINDS, byte_level, small_ranks
from vitrail.errors import ConfigError
from vitrail.text import Tokenizer, load_tokenizer
from vitrail.text.ranks import read_ranks

NAMES = [
    *(
        "<|endoftext|>",
        "<|pad|>",
        "<|bos|>",
        "<|mask|>",
        "<|endofchunk|>",
        "<|fim_prefix|>",
        "<|im_start|>",
        "<|im_end|>",
    ),
    *("<|hole|>", "<the_cat>", "<s>", "</s>", "<mask>", "<piece>", "<unk>", "[MASK]", "[CLS]", "[mask]", "[UNK]"),
]
EXACT = ("ours", "ranks", "byte-level", "byte-level, reached")

anything = st.text(max_size=60) | st.lists(
    st.sampled_from([*NAMES, "the cat", "CERN", " ", "\n", "🙂é", "1999", "!", '"', "<|", "k|>", "<0x0A>", "▁", "Ġ"]),
    max_size=8,
).map("".join)


@settings(max_examples=80, deadline=None)
@given(text=anything)
def test_text_never_becomes_control_tokens(tokenizer: Tokenizer, kind: str, text: str) -> None:
    ids = tokenizer.encode(text)
    assert not tokenizer.special_ids & set(ids)
    assert not tokenizer.unused_ids & set(ids)
    again, spans = tokenizer.encode_with_offsets(text)
    assert again == ids
    assert all(0 <= start <= stop <= len(text) for start, stop in spans)
    assert tokenizer.encode_batch([text, ""]) == [ids, []]
    prompt = tokenizer.chat_ids([{"role": "user", "content": text}])
    template = tokenizer.chat_ids([{"role": "user", "content": "a"}])
    assert [i for i in prompt if i in tokenizer.special_ids] == [i for i in template if i in tokenizer.special_ids]


@settings(max_examples=80, deadline=None)
@given(text=anything)
@pytest.mark.parametrize("name", EXACT)
def test_byte_level_vocabularies_lose_nothing(made: dict[str, Tokenizer], name: str, text: str) -> None:
    tokenizer = made[name]
    assert tokenizer.is_byte_exact
    ids = tokenizer.encode(text)
    if name.endswith("reached"):
        # Even two plain signs are control tokens of that one: a vocabulary that cannot write them loses them.
        text = text.replace("!", "").replace('"', "")
    assert tokenizer.decode(ids) == text
    assert b"".join(map(tokenizer.token_bytes, ids)).decode() == text


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Tokenizer]:
    return {name: make(tmp_path_factory.mktemp("tokenizer")) for name, make in KINDS.items()}


def test_offsets_keep_the_space_before_a_word(made: dict[str, Tokenizer]) -> None:
    """The post-processor of the file would cut it off."""
    text = "on the mat"
    for name in EXACT:
        ids, spans = made[name].encode_with_offsets(text)
        assert [made[name].token_text(i) for i in ids] == [text[start:stop] for start, stop in spans]


@settings(max_examples=60, deadline=None)
@given(text=st.text(st.characters(exclude_characters="▁", exclude_categories=["Cs"]), max_size=40))
def test_byte_fallback_loses_nothing_but_composition(made: dict[str, Tokenizer], text: str) -> None:
    tokenizer = made["unigram, bytes"]
    assert tokenizer.is_byte_exact
    composed = unicodedata.normalize("NFC", text)
    ids = tokenizer.encode(text)
    # `▁` is put before the text, unless it begins with a space already: then that one is the mark.
    written = b"".join(map(tokenizer.token_bytes, ids)).decode()
    assert written in ({" " + composed, composed} if composed else {""})
    assert tokenizer.decode(ids) == written.removeprefix(" ")


def test_vocabularies_without_bytes_say_so(made: dict[str, Tokenizer]) -> None:
    for name in ("unigram", "word pieces"):
        assert not made[name].is_byte_exact
        assert made[name].decode(made[name].encode("the cat sat")) == "the cat sat"
    words = made["word pieces"]
    assert [words.token_text(i) for i in words.encode("the cat sat")] == [" the", " cat", " sat"]
    assert [words.token_text(i) for i in words.encode("cats")] == [" cat", "s"]


def test_what_flags_do_not_hide_is_taken_apart(made: dict[str, Tokenizer]) -> None:
    """These vocabularies reach control tokens by merges, by scores, as words."""
    reached = made["byte-level, reached"]
    assert reached.encode("<|mask|>") != [reached.mask_id]
    assert reached.decode(reached.encode("a<|mask|>b")) == "a<|mask|>b"
    scored = made["unigram, bytes"]
    assert scored.decode(scored.encode("a<s>b")) == "a<s>b"
    assert scored.encode_with_controls("<s>")[-1] == scored.bos_id
    words = made["word pieces"]
    assert words.mask_id not in words.encode("[MASK]")
    assert words.eoc_id not in words.encode("[mask] [MASK]")


def test_ordinary_added_words_stay_words(made: dict[str, Tokenizer]) -> None:
    tokenizer = made["byte-level"]
    ids = tokenizer.encode("at CERN")
    assert tokenizer.token_text(ids[-1]) == "CERN"
    # Control by the configuration, though the file does not flag it: read as if the file did not have it.
    values = json.loads(byte_level().to_str()) | {"added_tokens": []}
    oracle = Backend.from_str(json.dumps(values))
    assert tokenizer.encode("at <the_cat>") == oracle.encode("at <the_cat>").ids


def test_ids_beyond_the_vocabulary_are_nothing(tokenizer: Tokenizer, kind: str) -> None:
    num_unused = {"ours": 0, "ranks": 420 - len(read_ranks(small_ranks())) - 9}.get(kind, 7)
    assert len(tokenizer.unused_ids) == num_unused
    ids = tokenizer.encode("the cat")
    assert tokenizer.decode([*ids, *tokenizer.unused_ids]) == tokenizer.decode(ids)
    assert tokenizer.decode([*ids, *tokenizer.unused_ids], keep_special=True) == tokenizer.decode(ids)
    assert all(tokenizer.token_bytes(i) == b"" for i in tokenizer.unused_ids | tokenizer.special_ids)
    assert all(tokenizer.token_name(i) for i in tokenizer.special_ids)
    every = set(range(tokenizer.vocab_size)) - tokenizer.special_ids - tokenizer.unused_ids
    assert all(tokenizer.token_bytes(i) for i in every)


def test_names_of_control_tokens_are_found_where_asked_for(tokenizer: Tokenizer) -> None:
    mask = tokenizer.token_text(tokenizer.mask_id)
    ids = tokenizer.encode_with_controls(f"the{mask}{mask}cat")
    assert ids.count(tokenizer.mask_id) == 2
    assert tokenizer.mask_id not in tokenizer.encode_with_controls(f"the{mask}cat", ids=())
    assert mask in tokenizer.decode(ids, keep_special=True)
    assert mask not in tokenizer.decode(ids)


def test_prompts_begin_as_the_file_says(made: dict[str, Tokenizer]) -> None:
    for name in ("unigram", "unigram, bytes"):
        assert made[name].start_ids == (made[name].bos_id,)
    for name in ("byte-level", "byte-level, reached", "word pieces"):
        assert made[name].start_ids == ()


def test_load_of_save_is_the_same(tokenizer: Tokenizer, kind: str, tmp_path: Path) -> None:
    tokenizer.save(tmp_path / "tokenizer")
    loaded = load_tokenizer(tmp_path, tokenizer.controls, tokenizer.vocab_size)
    assert loaded is not None
    assert loaded.fingerprint == tokenizer.fingerprint
    assert loaded.special_ids == tokenizer.special_ids
    assert loaded.unused_ids == tokenizer.unused_ids
    messages = [{"role": "user", "content": "the <|mask|> cat"}]
    assert loaded.chat_ids(messages) == tokenizer.chat_ids(messages)
    loaded.save(tmp_path / "again")
    assert {f.name: f.read_bytes() for f in (tmp_path / "tokenizer").iterdir()} == {
        f.name: f.read_bytes() for f in (tmp_path / "again").iterdir()
    }
    assert not any(b"auto_map" in f.read_bytes() for f in (tmp_path / "again").iterdir())


def test_half_a_character_is_one_line(tokenizer: Tokenizer) -> None:
    for call in (tokenizer.encode, tokenizer.encode_with_offsets, tokenizer.encode_with_controls):
        with pytest.raises(ConfigError, match="not valid Unicode"):
            call("caf\udce9")
    with pytest.raises(ConfigError, match="not valid Unicode"):
        tokenizer.encode_batch(["caf\udce9"])
    with pytest.raises(ConfigError, match="not valid Unicode"):
        tokenizer.chat_ids([{"role": "user", "content": "caf\udce9"}])
