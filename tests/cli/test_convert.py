"""`vitrail convert`: tensors keep their bytes, a directory appears whole or not at all, transformers can load it."""

import json
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors import safe_open
from torch import Tensor

import vitrail
from tests.cli.test_main import assert_last_line, assert_one_line
from tests.cli.test_main import vitrail as command
from tests.model.shapes import FLAGS, small_config
from vitrail.errors import ArtifactError, CheckpointError, ConfigError, RunFailed
from vitrail.model import Layout, convert_checkpoint, init_model, load_config, save_model
from vitrail.text import Tokenizer, train_tokenizer

GOLDEN = Path(__file__).parents[1] / "golden" / "a1" / "checkpoint"
DTYPES = [torch.float32, torch.bfloat16, torch.float16]
TEXT = "the economy of the island rests on fish, salt and sheep; the island exports wool. " * 40


def stored(directory: Path) -> dict[str, Tensor]:
    tensors: dict[str, Tensor] = {}
    for path in directory.glob("*.safetensors"):
        with safe_open(path, framework="pt") as file:
            tensors |= {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a mapping)
    return tensors


def same_bytes(one: Path, other: Path) -> bool:
    first, second = stored(one), stored(other)
    return first.keys() == second.keys() and all(
        first[name].dtype == second[name].dtype
        and torch.equal(first[name].view(-1).view(torch.uint8), second[name].view(-1).view(torch.uint8))
        for name in first
    )


@settings(max_examples=15, deadline=None)
@given(
    flags=FLAGS,
    dtype=st.sampled_from(DTYPES),
    shard_bytes=st.sampled_from([1, 2000, 2**30]),
    layout=st.sampled_from(["released", "huggingface"]),
)
def test_there_and_back_is_the_identity_on_every_byte(
    flags: dict[str, Any],
    dtype: torch.dtype,
    shard_bytes: int,
    layout: Layout,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    place = tmp_path_factory.mktemp("model")
    save_model(init_model(small_config(**flags), 0).to(dtype), place / "source")
    convert_checkpoint(place / "source", place / "there", layout, max_shard_bytes=shard_bytes)
    convert_checkpoint(place / "there", place / "back")
    assert same_bytes(place / "source", place / "there")
    assert same_bytes(place / "source", place / "back")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        configs = [load_config(place / name) for name in ("source", "there", "back")]
    assert configs[0] == configs[1] == configs[2]
    assert (place / "back" / "config.json").read_bytes() == (place / "source" / "config.json").read_bytes()


def test_another_dtype(tmp_path: Path) -> None:
    convert_checkpoint(GOLDEN, tmp_path / "half", dtype=torch.bfloat16)
    wanted, found = stored(GOLDEN), stored(tmp_path / "half")
    assert all(torch.equal(found[name], wanted[name].bfloat16()) for name in wanted)
    assert vitrail.load(tmp_path / "half", device="cpu").network.transformer.lm_head.weight.dtype == torch.bfloat16


def test_what_lies_beside_the_weights_goes_along(tmp_path: Path) -> None:
    ids = {"pad_id": 0, "bos_id": 1, "eos_id": 2, "eoc_id": 3, "mask_id": 4}
    tokenizer = train_tokenizer([TEXT], 300)
    save_model(init_model(small_config(vocab_size=tokenizer.vocab_size, **ids), 0), tmp_path / "source")
    tokenizer.save(tmp_path / "source" / "tokenizer")
    vitrail.load(tmp_path / "source", device="cpu").library.save(tmp_path / "source" / "concepts.parquet")
    (tmp_path / "source" / "modeling_steerling.py").write_text("raise SystemExit")
    convert_checkpoint(tmp_path / "source", tmp_path / "out")
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == [
        *("concepts.parquet", "config.json", "model.safetensors", "tokenizer"),
    ]
    assert Tokenizer.load(tmp_path / "out" / "tokenizer").fingerprint == tokenizer.fingerprint


def test_a_failed_conversion_leaves_nothing(tmp_path: Path) -> None:
    """The last tensor is broken: shards were written before it was read."""
    model = init_model(small_config(), 0)
    list(model.parameters())[-1].data.fill_(float("nan"))
    save_model(model, tmp_path / "source")
    with pytest.raises(CheckpointError, match="holds NaN"):
        convert_checkpoint(tmp_path / "source", tmp_path / "out", max_shard_bytes=1)
    assert [path.name for path in tmp_path.iterdir()] == ["source"]


def test_a_full_place_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    convert_checkpoint(GOLDEN, tmp_path / "out")
    before = (tmp_path / "out" / "config.json").stat().st_mtime_ns
    with pytest.raises(ArtifactError, match="out: is there already; name a new directory"):
        convert_checkpoint(GOLDEN, tmp_path / "out")
    assert (tmp_path / "out" / "config.json").stat().st_mtime_ns == before


def test_two_at_once(tmp_path: Path) -> None:
    from vitrail.artifacts import new_folder

    with new_folder(tmp_path / "out"), pytest.raises(RunFailed, match="another process is writing"):
        convert_checkpoint(GOLDEN, tmp_path / "out")


def test_layouts_and_sizes_are_checked(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="shards of 0 bytes"):
        convert_checkpoint(GOLDEN, tmp_path / "out", max_shard_bytes=0)


# The command.


def test_the_command(tmp_path: Path) -> None:
    done = command("convert", str(GOLDEN), str(tmp_path / "out"), "--shard-size", "50KB", "--json")
    assert done.returncode == 0, done.stderr
    counts = json.loads(done.stdout)["counts"]
    assert counts == {"tensors": 32, "parameters": 145696, "bytes": 582784, "files": counts["files"]}
    assert counts["files"] == len(list((tmp_path / "out").glob("model-*-of-*.safetensors"))) > 2
    assert same_bytes(GOLDEN, tmp_path / "out")


@pytest.mark.parametrize(
    ("flags", "parts"),
    [
        (["--dtype", "int3"], ["--dtype int3", "keep, float32"]),
        (["--shard-size", "big"], ["--shard-size big", "5GiB"]),
        (["--to", "gguf"], ["gguf", "released"]),
    ],
    ids=["dtype", "size", "layout"],
)
def test_wrong_flags_are_one_line(tmp_path: Path, flags: list[str], parts: list[str]) -> None:
    assert_one_line(command("convert", str(GOLDEN), str(tmp_path / "out"), *flags), *parts)


def test_a_source_that_is_none(tmp_path: Path) -> None:
    assert_last_line(command("convert", str(tmp_path), str(tmp_path / "out")), "config.json")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("words", [["generate"], ["explain"], ["chat"], ["serve"]], ids=" ".join)
def test_commands_on_text_need_a_tokenizer(words: list[str]) -> None:
    prompt = ["a prompt"] if words[0] in ("generate", "explain") else []
    assert_last_line(command(*words, str(GOLDEN), *prompt), "no tokenizer; put its tokenizer.json there")


def test_info_describes_a_bare_checkpoint() -> None:
    done = command("info", str(GOLDEN), "--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert [found["kind"], found["parameters"], found["dtype"]] == ["checkpoint", 145696, "float32"]
    assert [found["n_embd"], found["norm_order"], found["factorize_unknown"]] == [64, "post", True]


# transformers.

LOAD = """
import sys, torch, warnings
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer
model = AutoModelForCausalLM.from_pretrained(sys.argv[1], trust_remote_code=True)
assert type(model).__name__ == "VitrailForCausalLM" and not model.training
ids = torch.arange(2 * 13).reshape(2, 13)
with torch.no_grad():
    output = model(input_ids=ids, attention_mask=torch.ones_like(ids))
assert type(output).__name__ == "CausalLMOutput"
is_tied = model.transformer.lm_head.weight is model.transformer.tok_emb.weight
words = None
if len(sys.argv) > 3:
    words = AutoTokenizer.from_pretrained(sys.argv[1])("the island exports wool").input_ids
torch.save([output.logits, model.dtype, is_tied, words], sys.argv[2])
model.save_pretrained(sys.argv[2] + "-again")
"""


def as_transformers(directory: Path, out: Path, *more: str) -> list[Any]:
    """What `transformers` makes of a directory, in a process of its own."""
    words = [sys.executable, "-c", LOAD, str(directory), str(out), *more]
    done = subprocess.run(words, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    found = torch.load(out, weights_only=True)
    assert isinstance(found, list)
    return found


@pytest.mark.parametrize("changes", [{}, {"tie_embeddings": False, "backbone": "ar"}], ids=["tied", "untied"])
def test_transformers_gives_our_logits(tmp_path: Path, changes: dict[str, Any]) -> None:
    ids = {"pad_id": 0, "bos_id": 1, "eos_id": 2, "eoc_id": 3, "mask_id": 4}
    tokenizer = train_tokenizer([TEXT], 300)
    config = small_config(vocab_size=tokenizer.vocab_size, **ids, **changes)
    save_model(init_model(config, 0), tmp_path / "source")
    tokenizer.save(tmp_path / "source" / "tokenizer")
    convert_checkpoint(tmp_path / "source", tmp_path / "out", "huggingface", max_shard_bytes=9000)
    logits, dtype, is_tied, words = as_transformers(tmp_path / "out", tmp_path / "found", "with tokenizer")
    ours = vitrail.load(tmp_path / "out", device="cpu")
    assert torch.equal(logits, ours(torch.arange(2 * 13).reshape(2, 13)).logits)
    assert dtype == torch.float32
    assert is_tied == config.tie_embeddings
    assert words == tokenizer.encode("the island exports wool") == ours.tokenizer.encode("the island exports wool")
    assert same_bytes(tmp_path / "source", tmp_path / "found-again"), "transformers' own save_pretrained"


def test_transformers_keeps_bf16(tmp_path: Path) -> None:
    convert_checkpoint(GOLDEN, tmp_path / "out", "huggingface", dtype=torch.bfloat16)
    logits, dtype, *_ = as_transformers(tmp_path / "out", tmp_path / "found")
    assert dtype == logits.dtype == torch.bfloat16
    ours = vitrail.load(tmp_path / "out", device="cpu")
    assert torch.equal(logits, ours(torch.arange(2 * 13).reshape(2, 13)).logits)
