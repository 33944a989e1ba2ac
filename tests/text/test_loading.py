"""From a directory to its tokenizer: which file is read, and what is refused."""

import json
from pathlib import Path

import pytest

from tests.text.conftest import byte_level, controls_of, write
from vitrail.errors import ArtifactError
from vitrail.text import ControlIds, load_tokenizer, train_tokenizer

TOY = ControlIds(0, 1, 2, 3, 4)
TEXTS = ["the cat sat on the mat"]


def test_nothing_there_is_none(tmp_path: Path) -> None:
    assert load_tokenizer(tmp_path, TOY, 300) is None


def test_our_own_is_found_in_its_folder_and_has_padded_ids(tmp_path: Path) -> None:
    ours = train_tokenizer(TEXTS, 270)
    ours.save(tmp_path / "tokenizer")
    loaded = load_tokenizer(tmp_path, ours.controls, 288)
    assert loaded is not None
    assert loaded.fingerprint == ours.fingerprint
    assert loaded.start_ids == (ours.bos_id,)
    assert loaded.unused_ids == frozenset(range(ours.vocab_size, 288))


def test_the_folder_comes_before_the_root(tmp_path: Path) -> None:
    ours = train_tokenizer(TEXTS, 270)
    ours.save(tmp_path / "tokenizer")
    write(tmp_path, byte_level())
    loaded = load_tokenizer(tmp_path, ours.controls, 400)
    assert loaded is not None
    assert loaded.fingerprint == ours.fingerprint


def test_another_models_tokenizer_is_refused(tmp_path: Path) -> None:
    train_tokenizer(TEXTS, 270).save(tmp_path)
    with pytest.raises(ArtifactError, match=r"control ids \[0, 1, 2, 3, 4\] are not those of config.json"):
        load_tokenizer(tmp_path, ControlIds(0, 1, 2, 3, 9), 300)
    with pytest.raises(ArtifactError, match="has ids up to"):
        load_tokenizer(tmp_path, TOY, 200)


@pytest.mark.parametrize(
    "content",
    [
        b"{",
        b"[]",
        b"{}",
        b'{"model": {"vocab": {}}}',
        b"\xff\xfe",
        b'{"model": 3}',
        b'{"model": {"vocab": {}}, "added_tokens": [{"id": 0}]}',
        b'{"model": {"vocab": [1, 2], "unk_id": 9}}',
    ],
)
def test_damaged_files_are_one_line(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "tokenizer.json").write_bytes(content)
    with pytest.raises(ArtifactError, match=r"tokenizer\.json: ") as refusal:
        load_tokenizer(tmp_path, TOY, 300)
    assert "\n" not in str(refusal.value)


def test_damaged_settings_are_one_line(tmp_path: Path) -> None:
    backend = byte_level()
    controls = controls_of(backend, *["<|endoftext|>"] * 4, "<|hole|>")
    write(tmp_path, backend)
    for content in ("{", "[1]"):
        (tmp_path / "tokenizer_config.json").write_text(content)
        with pytest.raises(ArtifactError, match=r"tokenizer_config\.json: "):
            load_tokenizer(tmp_path, controls, 400)


def test_the_template_is_found_where_hugging_face_puts_it(tmp_path: Path) -> None:
    backend = byte_level()
    controls = controls_of(backend, *["<|endoftext|>"] * 4, "<|hole|>")
    hole = backend.token_to_id("<|hole|>")

    def prompt(folder: Path) -> list[int]:
        loaded = load_tokenizer(folder, controls, 400)
        assert loaded is not None
        assert loaded.has_chat_template
        return loaded.chat_ids([{"role": "user", "content": "a"}])

    several = [{"name": "tools", "template": "x"}, {"name": "default", "template": "{{ mask_token }}"}]
    folder = write(tmp_path / "a", backend, chat_template=several)
    (folder / "special_tokens_map.json").write_text(json.dumps({"mask_token": {"content": "<|hole|>"}}))
    assert prompt(folder) == [hole]
    (folder / "chat_template.jinja").write_text("{{ mask_token }}{{ mask_token }}")
    assert prompt(folder) == [hole, hole], "a file of its own comes first"
    plain = load_tokenizer(write(tmp_path / "b", backend), controls, 400)
    assert plain is not None
    assert not plain.has_chat_template


def test_limits_of_length_in_the_file_do_not_apply(tmp_path: Path) -> None:
    """They cut texts without a word."""
    backend = byte_level()
    backend.enable_truncation(3)
    backend.enable_padding(length=9)
    loaded = load_tokenizer(write(tmp_path, backend), controls_of(backend, *["<|endoftext|>"] * 4, "<|hole|>"), 400)
    assert loaded is not None
    assert loaded.decode(loaded.encode("the cat sat on the mat")) == "the cat sat on the mat"
    assert loaded.encode_batch(["the", "the cat sat on the mat"])[0] == loaded.encode("the")
