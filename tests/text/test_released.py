"""The released tokenizer. What needs the ranks of cl100k_base reads them from VITRAIL_CL100K, a ranks file."""

import json
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.text.conftest import small_ranks
from vitrail.errors import ArtifactError, ConfigError
from vitrail.text import ControlIds, Tokenizer, load_tokenizer, missing_tokenizer
from vitrail.text.reference import decode_like_hub, decode_like_package, encode_like_hub, encode_like_package
from vitrail.text.released import BASE, released_names

INSTRUCT = ControlIds(100277, 100278, 100257, 100279, 100280, 100281, 100282, 100283)
RANKS, SHARED = os.environ.get("VITRAIL_CL100K"), os.environ.get("VITRAIL_SHARED")
needs_ranks = pytest.mark.skipif(RANKS is None, reason="VITRAIL_CL100K names no ranks file of cl100k_base")
needs_both = pytest.mark.skipif(
    None in (RANKS, SHARED), reason="VITRAIL_CL100K and VITRAIL_SHARED name no ranks file and no folder of fixtures"
)


@pytest.fixture(autouse=True)
def _no_caches(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("TIKTOKEN_CACHE_DIR", "DATA_GYM_CACHE_DIR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))


@pytest.fixture(scope="module")
def base() -> Tokenizer:
    return _loaded(BASE, 100281)


@pytest.fixture(scope="module")
def instruct() -> Tokenizer:
    return _loaded(INSTRUCT, 100352)


def _loaded(controls: ControlIds, vocab_size: int) -> Tokenizer:
    assert RANKS is not None
    loaded = load_tokenizer(Path("nowhere"), controls, vocab_size, ranks=Path(RANKS))
    assert loaded is not None
    return loaded


@pytest.fixture(scope="module")
def expected() -> dict[str, Any]:
    assert SHARED is not None
    path = Path(SHARED) / "fixtures" / "steerling_ref" / "tokenizer" / "expected.json"
    values: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return values


def test_names_and_ids_are_those_of_the_spec() -> None:
    assert len(released_names(BASE)) == 9
    names = released_names(INSTRUCT)
    assert len(names) == 12
    assert names["<|fim_suffix|>"] == 100260
    assert names["<|eot_id|>"] == 100283


def test_without_ranks_there_is_none_and_the_message_says_what_to_do(tmp_path: Path) -> None:
    assert load_tokenizer(tmp_path, BASE, 100281) is None
    assert "cl100k_base.tiktoken" in str(missing_tokenizer(tmp_path, BASE))
    toy = ControlIds(0, 1, 2, 3, 4)
    assert "tokenizer.json" in str(missing_tokenizer(tmp_path, toy))
    with pytest.raises(ArtifactError, match="has not the control ids"):
        load_tokenizer(tmp_path, toy, 300, ranks=tmp_path / "x")
    with pytest.raises(ArtifactError, match="No such file"):
        load_tokenizer(tmp_path, BASE, 100281, ranks=tmp_path / "x")


@pytest.mark.parametrize(
    "place", ["cl100k_base.tiktoken", "tokenizer/cl100k_base.tiktoken", "TIKTOKEN_CACHE_DIR", "DATA_GYM_CACHE_DIR"]
)
def test_another_ranks_file_is_refused_wherever_it_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    file = tmp_path / place
    if place.isupper():
        monkeypatch.setenv(place, str(tmp_path / "cache"))
        file = tmp_path / "cache" / "9b5ad71b2ce5302211f9c61530b329a4922fc6a4"
    file.parent.mkdir(exist_ok=True)
    file.write_bytes(small_ranks())
    with pytest.raises(ArtifactError, match="not the ranks file of cl100k_base"):
        load_tokenizer(tmp_path, BASE, 100281)


@needs_both
def test_special_ids_are_those_of_the_reference(base: Tokenizer, instruct: Tokenizer, expected: dict[str, Any]) -> None:
    for tokenizer, name in ((base, "base"), (instruct, "instruct")):
        wanted, controls = expected["special_ids"][name], tokenizer.controls
        assert (controls.pad, controls.bos, controls.eos) == (wanted["pad"], wanted["bos"], wanted["eos"])
        assert (controls.eoc, controls.mask, controls.eot) == (wanted["endofchunk"], wanted["mask"], wanted["eot"])
        assert max(tokenizer.special_ids) == wanted["vocab_size"] - 1
        assert tokenizer.start_ids == ()


@needs_both
def test_encodings_are_those_of_the_reference(base: Tokenizer, instruct: Tokenizer, expected: dict[str, Any]) -> None:
    for record in expected["encode"]:
        text = record["text"]
        for tokenizer, name in ((base, "base"), (instruct, "instruct")):
            assert tokenizer.encode(text) == record[f"native_{name}"]
            assert encode_like_hub(tokenizer, text) == record[f"hf_{name}"]
        assert encode_like_package(base, text) == record["native_base_with_specials"]


@needs_both
def test_decodings_are_those_of_the_reference(base: Tokenizer, instruct: Tokenizer, expected: dict[str, Any]) -> None:
    """None stands for an error of the reference; our own `decode` gives nothing for such an id."""

    def outcome(decode: Any, tokenizer: Tokenizer, ids: list[int], skip: bool) -> str | None:
        try:
            text: str = decode(tokenizer, ids, skip)
        except ConfigError:
            return None
        return text

    for record in expected["decode"]:
        ids = record["ids"]
        assert outcome(decode_like_package, base, ids, True) == record["native_base_skip"]
        assert outcome(decode_like_package, base, ids, False) == record["native_base_keep"]
        assert outcome(decode_like_package, instruct, ids, True) == record["native_instruct_skip"]
        assert outcome(decode_like_package, instruct, ids, False) == record["native_instruct_keep"]
        assert outcome(decode_like_hub, instruct, ids, False) == record["hf_instruct_default"]
        assert outcome(decode_like_hub, instruct, ids, True) == record["hf_instruct_skip"]
    assert outcome(decode_like_hub, instruct, [9906, 100256], False) is None
    assert instruct.decode([9906, 100256, 100351]) == "Hello"


@needs_both
def test_conversations_are_those_of_the_reference(instruct: Tokenizer, expected: dict[str, Any]) -> None:
    for record in expected["chat"]:
        assert instruct.chat_ids(record["messages"], record["add_generation_prompt"]) == record["ids"]
        assert encode_like_hub(instruct, record["text"]) == record["ids"]
        assert instruct.decode(record["ids"], keep_special=True) == record["text"]


@needs_ranks
@settings(max_examples=60, deadline=None)
@given(
    text=st.text(max_size=50)
    | st.lists(st.sampled_from([*released_names(INSTRUCT), "the", " ", "\n", "é"])).map("".join)
)
def test_text_never_becomes_control_tokens(instruct: Tokenizer, text: str) -> None:
    ids, spans = instruct.encode_with_offsets(text)
    assert not instruct.special_ids & set(ids)
    assert instruct.decode(ids) == text
    assert all(instruct.token_bytes(i) in text[a:b].encode() for i, (a, b) in zip(ids, spans, strict=True))
    prompt = instruct.chat_ids([{"role": "user", "content": text}])
    assert [i for i in prompt if i in instruct.special_ids] == [100281, 100282, 100279, 100283, 100281, 100282]


@needs_ranks
def test_padded_rows_and_a_saved_copy(instruct: Tokenizer, tmp_path: Path) -> None:
    assert instruct.vocab_size == 100352
    assert instruct.unused_ids == {100256, *range(100261, 100276), *range(100284, 100352)}
    instruct.save(tmp_path)
    saved = load_tokenizer(tmp_path, INSTRUCT, 100352)
    assert saved is not None
    assert saved.fingerprint == instruct.fingerprint
    assert saved.start_ids == ()
    assert saved.encode("The key, 1999!") == instruct.encode("The key, 1999!")
    with pytest.raises(ArtifactError, match="has ids up to 100283, the model 100281 in all"):
        load_tokenizer(tmp_path, INSTRUCT, 100281)
