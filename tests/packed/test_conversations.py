"""Conversations: the answers, and they alone, are asked for, behind the same ids as when they are generated."""

import gzip
import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.packed.annotated import NUM_CONCEPTS, random_chunks, write_annotated
from tests.text.conftest import KINDS, small_ranks
from vitrail.artifacts import read_manifest
from vitrail.atlas import ConceptLibrary
from vitrail.cli.main import main
from vitrail.errors import ConfigError, CorpusError
from vitrail.model import ModelConfig, init_model, save_model
from vitrail.packed import Loader, PackedCorpus, PackSettings, pack_conversations
from vitrail.text import ControlIds, Tokenizer
from vitrail.text.ranks import read_ranks, tokenizer_file
from vitrail.text.released import BASE, PATTERN, released_names

LENGTH = 151
words = st.text("abc <|>\n", min_size=1, max_size=12).filter(str.strip)
conversations = st.lists(
    st.tuples(st.sampled_from(["user", "assistant", "system"]), words), min_size=1, max_size=5
).filter(lambda said: any(role == "assistant" for role, _ in said))


def messages_of(said: Sequence[tuple[str, str]]) -> list[dict[str, str]]:
    return [{"role": role, "content": content} for role, content in said]


def write_lines(path: Path, records: Sequence[Any]) -> Path:
    content = "".join((record if isinstance(record, str) else json.dumps(record)) + "\n" for record in records)
    data = content.encode()
    if path.suffix == ".gz":
        data = gzip.compress(data)
    elif path.suffix == ".zst":
        data = zstandard.compress(data)
    path.write_bytes(data)
    return path


def many(count: int) -> list[dict[str, Any]]:
    """Conversations of one to three turns that say their number."""
    records = []
    for number in range(count):
        turns = [
            message
            for turn in range(1 + number % 3)
            for message in messages_of(
                [("user", f"Question {number}.{turn}?"), ("assistant", f"Answer {number}.{turn}.")]
            )
        ]
        records.append({"messages": turns, "source": f"set {number % 2}"})
    return records


def instruct() -> Tokenizer:
    """As the released instruct model's: headers and end marks by id."""
    places = {
        name: 400 + n for n, name in enumerate(released_names(replace(BASE, start_header=1, end_header=2, eot=3)))
    }
    names = ("pad", "bos", "endoftext", "endofchunk", "mask", "start_header_id", "end_header_id", "eot_id")
    controls = ControlIds(*(places[f"<|{name}|>"] for name in names))
    return Tokenizer(tokenizer_file(read_ranks(small_ranks()), PATTERN, places), controls, 420)


@pytest.fixture(scope="module", params=["byte-level", "ours", "ranks", "instruct"])
def any_tokenizer(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return instruct() if request.param == "instruct" else KINDS[request.param](tmp_path_factory.mktemp("tokenizer"))


@settings(max_examples=60, deadline=None)
@given(said=conversations)
def test_answers_stand_behind_their_prompt(any_tokenizer: Tokenizer, said: list[tuple[str, str]]) -> None:
    """The first answer behind the very ids that a request for it has; all turns together spell the conversation."""
    messages = messages_of(said)
    turns = any_tokenizer.chat_turns(messages)
    answers = [number for number, (role, _) in enumerate(said) if role == "assistant"]
    assert [is_answer for _, is_answer in turns] == [False, True] * len(answers)
    if answers[0] > 0:
        assert turns[0][0] == any_tokenizer.chat_ids(messages[: answers[0]])
    for (ids, _), number in zip(turns[1::2], answers, strict=True):
        assert any_tokenizer.decode(ids).strip() == said[number][1].strip()
    whole = any_tokenizer.chat_ids(messages[: answers[-1] + 1], add_generation_prompt=False)
    ids = [token_id for turn, _ in turns for token_id in turn]
    spelt = any_tokenizer.decode(whole, keep_special=True)
    assert spelt.startswith(any_tokenizer.decode(ids, keep_special=True))
    assert spelt[len(any_tokenizer.decode(ids, keep_special=True)) :].strip() == ""


def test_only_answers_are_asked_for(any_tokenizer: Tokenizer, tmp_path: Path) -> None:
    records = many(80)
    chats = write_lines(tmp_path / "chats.jsonl", records)
    values = PackSettings(length=LENGTH, shard_chunks=13)
    counts = pack_conversations(chats, tmp_path, any_tokenizer, 9, tmp_path / "packed", values).counts
    packed = PackedCorpus.open(tmp_path / "packed")
    assert packed.num_concepts == 9
    asked: list[str] = []
    for split in ("train", "heldout"):
        batch = packed.batch(split, range(packed.num_sequences(split)))
        assert batch.num_chunks == 0
        assert (batch.chunk == -1).all()
        assert not batch.loss_mask[batch.tokens == any_tokenizer.pad_id].any()
        for row, is_asked in zip(batch.tokens.tolist(), batch.loss_mask.tolist(), strict=True):
            ids = [token_id if asked else any_tokenizer.pad_id for token_id, asked in zip(row, is_asked, strict=True)]
            asked += "".join(chr(0) if i == any_tokenizer.pad_id else any_tokenizer.decode([i]) for i in ids).split(
                chr(0)
            )
        assert batch.num_bytes == counts[f"{split}_text_bytes"]
    said = [
        message["content"] for record in records for message in record["messages"] if message["role"] == "assistant"
    ]
    assert sorted(text.strip() for text in asked if text.strip()) == sorted(said)
    assert counts["train_chunks"] + counts["heldout_chunks"] == len(records)
    assert counts["heldout_chunks"] > 0


def test_end_marks_are_asked_for(tmp_path: Path) -> None:
    """The model must learn to stop."""
    record = {"prompt": "Why?", "response": "Because."}
    templates = {
        "<|im_end|>": KINDS["byte-level"](tmp_path / "chatty"),
        "<|endoftext|>": KINDS["ours"](tmp_path / "plain"),
        "<|endofchunk|><|eot_id|>": instruct(),
    }
    for number, (ends, tokenizer) in enumerate(templates.items()):
        chats = write_lines(tmp_path / "chats.jsonl", [record, {"prompt": "Why not?", "response": "Because."}])
        pack_conversations(chats, tmp_path, tokenizer, 1, tmp_path / f"packed-{number}", PackSettings(length=LENGTH))
        batch = PackedCorpus.open(tmp_path / f"packed-{number}").batch("train", [0])
        (first,) = [int(n) for n in batch.loss_mask[0].nonzero()[:1, 0]]
        last = first
        while batch.loss_mask[0, last]:
            last += 1
        assert tokenizer.decode(batch.tokens[0, first:last].tolist(), keep_special=True) == f"Because.{ends}"


@pytest.mark.parametrize("name", ["chats.jsonl.gz", "chats.jsonl.zst"])
def test_workers_and_compression_change_nothing(name: str, tokenizer: Tokenizer, tmp_path: Path) -> None:
    values = PackSettings(length=LENGTH, shard_chunks=7, documents="one", group_by="source")
    plain = write_lines(tmp_path / "chats.jsonl", many(30))
    packed = write_lines(tmp_path / name, many(30))
    first = pack_conversations(plain, tmp_path, tokenizer, 1, tmp_path / "plain", values)
    other = pack_conversations(packed, tmp_path, tokenizer, 1, tmp_path / "other", values, workers=2)
    assert first.files == other.files
    corpus = PackedCorpus.open(tmp_path / "other")
    assert set(corpus.groups("train")) == {"set 0", "set 1"}
    assert corpus.num_sequences("train") == other.counts["train_chunks"]
    assert len(list(Loader(corpus, 4, 0).stream(0, 3))) == 3


BAD = {
    '{"messages": [': "not JSON in UTF-8",
    "[1]": "not a JSON object",
    '{"text": "a"}': "neither 'messages'",
    '{"messages": "a"}': "neither 'messages'",
    '{"messages": [{"role": "user", "content": "a"}]}': "no message of the assistant",
    '{"messages": [{"role": "assistant", "content": " "}]}': "message 0 is an empty answer",
    '{"messages": [{"role": "assistant", "content": 3}]}': "message 0 has .* wanted 'role' and 'content', both texts",
    '{"messages": [{"role": "assistant", "content": "a", "tool": "b"}]}': "message 0 has .* wanted 'role'",
    '{"messages": [{"role": "a b", "content": "a"}, {"role": "assistant", "content": "a"}]}': "is no word",
    '{"messages": [{"role": "usr", "content": "a"}, {"role": "assistant", "content": "a"}]}': "has the role 'usr'",
    '{"prompt": "a", "response": null}': "message 1 has",
    '{"prompt": "a", "response": "\\ud800"}': "Unicode",
}


@pytest.mark.parametrize("line", BAD)
def test_bad_lines_are_named(line: str, tokenizer: Tokenizer, tmp_path: Path) -> None:
    chats = write_lines(tmp_path / "chats.jsonl", [{"prompt": "a", "response": "b"}, "", line])
    with pytest.raises((ConfigError, CorpusError), match=rf"chats\.jsonl, line 3: .*{BAD[line]}") as caught:
        pack_conversations(chats, tmp_path, tokenizer, 1, tmp_path / "packed", PackSettings())
    assert "\n" not in str(caught.value)


def test_other_bad_input_is_named(tokenizer: Tokenizer, tmp_path: Path) -> None:
    out = tmp_path / "packed"
    with pytest.raises(CorpusError, match=r"none\.jsonl: cannot be read"):
        pack_conversations(tmp_path / "none.jsonl", tmp_path, tokenizer, 1, out, PackSettings())
    empty = write_lines(tmp_path / "empty.jsonl", [])
    with pytest.raises(CorpusError, match="no conversation falls into the train split"):
        pack_conversations(empty, tmp_path, tokenizer, 1, out, PackSettings())
    chats = write_lines(tmp_path / "chats.jsonl", [*many(9), {"prompt": "why " * 99, "response": "b"}])
    with pytest.raises(ConfigError, match=r"line 10: a conversation of .* tokens, a sequence holds 151; set length"):
        pack_conversations(chats, tmp_path, tokenizer, 1, out, PackSettings(length=LENGTH))
    values = PackSettings(length=LENGTH, long_chunks="drop")
    counts = pack_conversations(chats, tmp_path, tokenizer, 1, out, values).counts
    assert counts["train_dropped_chunks"] + counts["heldout_dropped_chunks"] == 1
    assert "chats.jsonl:10" in (out / "dropped.jsonl").read_text()
    with pytest.raises(CorpusError, match="line 1: no 'domain' to group by; add it"):
        pack_conversations(chats, tmp_path, tokenizer, 1, out, PackSettings(length=LENGTH, group_by="domain"))


def write_model(folder: Path, tokenizer: Tokenizer, controls: ControlIds) -> Path:
    """A checkpoint without a manifest, with a library as an artifact of ours has."""
    config = ModelConfig(
        vocab_size=tokenizer.vocab_size,
        num_layers=1,
        num_heads=2,
        num_kv_heads=1,
        width=12,
        max_length=64,
        block=4,
        num_concepts=NUM_CONCEPTS,
        num_discovered=5,
        discovered_rank=2,
        pad_id=controls.pad,
        bos_id=controls.bos,
        eos_id=controls.eos,
        eoc_id=controls.eoc,
        mask_id=controls.mask,
    )
    save_model(init_model(config, 0), folder)
    tokenizer.save(folder / "tokenizer")
    return folder


@pytest.fixture
def model_dir(tmp_path: Path) -> Callable[[str], Path]:
    def build(kind: str) -> Path:
        tokenizer = KINDS[kind](tmp_path / f"tokenizer-{kind}")
        folder = tmp_path / f"model-{kind}"
        folder.mkdir()
        return write_model(folder, tokenizer, tokenizer.controls)

    return build


def command(*words: str | Path) -> int:
    with pytest.raises(SystemExit) as done:
        main([str(word) for word in words])
    return int(done.value.code or 0)


@pytest.mark.parametrize("kind", ["ours", "byte-level"])
def test_the_command_takes_any_model(
    kind: str, model_dir: Callable[[str], Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its tokenizer, its library and its number of concepts; a corpus is encoded with it just so."""
    model = model_dir(kind)
    chats = write_lines(tmp_path / "chats.jsonl", many(30))
    annotated = write_annotated(tmp_path / "annotated", random_chunks(1, 40))
    (model / "concepts.parquet").write_bytes((annotated / "concepts.parquet").read_bytes())
    assert (
        command("pack", chats, "--tokenizer", model, "--out", tmp_path / "sft", "--length", str(LENGTH), "--json") == 0
    )
    packed = PackedCorpus.open(tmp_path / "sft")
    assert packed.num_concepts == NUM_CONCEPTS == ConceptLibrary.load(packed.path).num_known
    assert command("pack", annotated, "--tokenizer", model, "--out", tmp_path / "packed", "--workers", "2") == 0
    packed = PackedCorpus.open(tmp_path / "packed")
    again = KINDS[kind](tmp_path / "again")
    assert packed.tokenizer().encode("river naïve") == again.encode("river naïve")
    assert read_manifest(tmp_path / "packed").settings["vocab_size"] == again.vocab_size
    capsys.readouterr()
    assert command("pack", chats, "--out", tmp_path / "other") == 2
    assert "--tokenizer train:2048: conversations are written for a model" in capsys.readouterr().err
