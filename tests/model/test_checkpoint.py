"""load(save(x)) = x bitwise; damaged checkpoints are refused in one line that names the tensor or file."""

import json
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file
from torch import Tensor

from tests.model.shapes import FLAGS, small_config
from vitrail.errors import CheckpointError, RunFailed
from vitrail.model import ConceptLM, ModelConfig, init_model, load_config, load_model, save_model

Tensors = dict[str, Tensor]


def _same(one: ConceptLM, other: ConceptLM) -> bool:
    first, second = one.state_dict(), other.state_dict()
    return first.keys() == second.keys() and all(torch.equal(first[name], second[name]) for name in first)


@settings(max_examples=15, deadline=None)
@given(flags=FLAGS, dtype=st.sampled_from([torch.float32, torch.bfloat16, torch.float64]))
def test_saved_and_loaded_is_the_same(
    flags: dict[str, Any], dtype: torch.dtype, tmp_path_factory: pytest.TempPathFactory
) -> None:
    directory = tmp_path_factory.mktemp("model")
    model = init_model(small_config(**flags), 0).to(dtype)
    save_model(model, directory)
    loaded = load_model(directory)
    assert loaded.config == model.config
    assert _same(model, loaded)
    assert not loaded.training
    assert (loaded.transformer.lm_head.weight is loaded.transformer.tok_emb.weight) == flags["tie_embeddings"]


def test_shards_with_an_index(saved: Path, tmp_path: Path) -> None:
    model = load_model(saved)
    save_model(model, tmp_path, max_shard_bytes=2000)
    assert len(list(tmp_path.glob("model-*-of-*.safetensors"))) > 2
    assert _same(model, load_model(tmp_path))
    save_model(model, tmp_path / "again", max_shard_bytes=2000)
    save_model(model, tmp_path / "again")  # a single file replaces shards and their index
    assert _same(model, load_model(tmp_path / "again"))
    sorted(tmp_path.glob("*.safetensors"))[1].unlink()
    with pytest.raises(CheckpointError, match=r"shard 'model-0000"):
        load_model(tmp_path)


def test_index_cannot_name_files_outside(saved: Path) -> None:
    index = {"weight_map": {"transformer.tok_emb.weight": "../elsewhere.safetensors"}}
    (saved / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(CheckpointError, match=r"\.\./elsewhere"):
        load_model(saved)


def test_any_file_name_and_a_bare_backbone(tmp_path: Path) -> None:
    config = small_config(interpretable=False)
    model = init_model(config, 0)
    save_model(model, tmp_path)
    bare = {name.removeprefix("transformer."): x for name, x in load_file(tmp_path / "model.safetensors").items()}
    (tmp_path / "model.safetensors").unlink()
    save_file(bare, tmp_path / "weights.safetensors")
    assert _same(model, load_model(tmp_path))


def test_tied_lm_head_may_be_stored_in_place_of_the_embedding(saved: Path) -> None:
    model = load_model(saved)

    def rename(tensors: Tensors) -> None:
        tensors["transformer.lm_head.weight"] = tensors.pop("transformer.tok_emb.weight")

    _edit(saved, rename)
    assert _same(model, load_model(saved))


@pytest.fixture
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("saved")
    save_model(init_model(small_config(), 0), directory)
    return directory


def _edit(directory: Path, change: Callable[[Tensors], Any]) -> None:
    path = directory / "model.safetensors"
    tensors = {name: tensor.clone() for name, tensor in load_file(path).items()}
    change(tensors)
    path.unlink()
    save_file(tensors, path)


NAME = "known_head.concept_embedding.weight"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda t: t.pop(NAME), f"'{NAME}' is missing"),
        (lambda t: t.update(surplus=torch.zeros(3)), "unexpected tensor 'surplus'"),
        (lambda t: t.update({NAME: torch.zeros(3, 12)}), f"'{NAME}' has shape .3, 12., .* wants .16, 12."),
        (lambda t: t[NAME].fill_(float("nan")), f"'{NAME}' holds NaN"),
        (lambda t: t.update({NAME: torch.zeros(16, 12, dtype=torch.int8)}), f"'{NAME}' holds"),
        (lambda t: t.update({"transformer.lm_head.weight": torch.zeros(37, 12)}), "differ"),
    ],
    ids=["missing", "extra", "misshapen", "nan", "integer", "untied"],
)
def test_wrong_tensor_is_named(saved: Path, change: Callable[[Tensors], Any], message: str) -> None:
    _edit(saved, change)
    with pytest.raises(CheckpointError, match=message):
        load_model(saved)


@pytest.mark.parametrize("num_bytes", [0, 4, 100, -1])
def test_truncated_file_is_named(saved: Path, num_bytes: int) -> None:
    path = saved / "model.safetensors"
    path.write_bytes(path.read_bytes()[:num_bytes])
    with pytest.raises(CheckpointError, match=r"model\.safetensors: damaged or truncated"):
        load_model(saved)


def test_missing_files_are_named(saved: Path, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"config\.json"):
        load_model(tmp_path)
    (saved / "model.safetensors").unlink()
    with pytest.raises(CheckpointError, match=r"no \*\.safetensors"):
        load_model(saved)


def test_a_tensor_stored_twice_is_named(saved: Path) -> None:
    shard = saved / "model.safetensors"
    for name in ("a.safetensors", "b.safetensors"):
        (saved / name).write_bytes(shard.read_bytes())
    shard.unlink()
    with pytest.raises(CheckpointError, match=r"b\.safetensors: tensor '.*' is stored twice"):
        load_model(saved)


def test_a_place_that_cannot_be_written(tmp_path: Path) -> None:
    model = init_model(small_config(), 0)
    (tmp_path / "model.safetensors").mkdir()
    with pytest.raises(RunFailed, match=r"model\.safetensors: cannot write"):
        save_model(model, tmp_path)
    assert not list(tmp_path.glob("*.partial"))


def _config(directory: Path, **changes: Any) -> ModelConfig:
    released = small_config().to_released() | changes
    (directory / "config.json").write_text(json.dumps(released))
    return load_config(directory)


def test_unknown_keys_of_a_release_give_one_warning(tmp_path: Path) -> None:
    with pytest.warns(UserWarning, match="ignored unknown keys: quantum, zeta") as caught:
        config = _config(tmp_path, zeta=1, quantum=2)
    assert len(caught) == 1
    assert config == small_config()


def test_released_keys_without_effect_are_silent(tmp_path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert _config(tmp_path, auto_map={}, transformers_version="4", inject_layer=3) == small_config()


def test_absent_backbone_is_cdlm_and_absent_interpretable_is_plain() -> None:
    released = small_config(backbone="ar").to_released()
    del released["backbone"], released["interpretable"]
    config = ModelConfig.from_released(released)
    assert config.backbone == "cdlm"
    assert not config.interpretable


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"n_embd": 13, "concept_dim": 13}, "width 13 is not a multiple of num_heads 2"),
        ({"n_head": 4, "n_kv_heads": 3}, "num_heads 4 is not a multiple of num_kv_heads 3"),
        ({"n_head": 4}, "even head width, got 3"),
        ({"concept_dim": 8}, "concept_dim 8 must equal n_embd 12"),
        ({"mask_token_id": 37}, "mask_id 37 is outside vocab_size 37"),
        ({"n_unknown_concepts": None}, "num_discovered is not given"),
        ({"n_layers": "many"}, "num_layers"),
    ],
)
def test_wrong_configuration_names_what_clashes(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(CheckpointError, match=message):
        _config(tmp_path, **changes)


@pytest.mark.parametrize("text", ["", "[1]", "{", "\x00"])
def test_config_that_is_no_json_object(tmp_path: Path, text: str) -> None:
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(CheckpointError, match=r"config\.json"):
        load_config(tmp_path)


def test_training_a_loaded_model_leaves_its_file_alone(saved: Path) -> None:
    before = (saved / "model.safetensors").read_bytes()
    model = load_model(saved)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(1.0)
    assert (saved / "model.safetensors").read_bytes() == before
    assert not _same(model, load_model(saved))
