"""load(save(x)) = x bitwise; damaged checkpoints are refused in one line that names the tensor or file."""

import json
import subprocess
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file
from torch import Tensor

from tests.model.shapes import FLAGS, small_config
from vitrail.errors import CheckpointError, ConfigError, RunFailed
from vitrail.model import (
    ConceptLM,
    ModelConfig,
    describe_checkpoint,
    empty_model,
    init_model,
    load_config,
    load_model,
    quantized,
    save_model,
)
from vitrail.model.quantized import is_quantized, to_int8

Tensors = dict[str, Tensor]
CONCEPT_KEYS = (
    *("n_concepts", "n_unknown_concepts", "use_attention_known", "use_attention_unknown", "topk_known"),
    *("topk_known_features", "unknown_topk", "use_unknown", "apply_topk_to_unknown", "topk_on_logits"),
    *("factorize_unknown", "factorize_rank", "use_epsilon_correction", "concept_block_size", "pad_multiple"),
    *("concept_dim",),
)
NULLABLE = (
    *("n_kv_heads", "clip_qkv", "intermediate_size", "topk_known", "topk_known_features", "unknown_topk"),
    *("n_unknown_concepts", "start_header_id", "end_header_id", "eot_id"),
)


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


def test_heads_of_a_plain_model_say_what_to_do(saved: Path) -> None:
    _config(saved, interpretable=False)
    with pytest.raises(CheckpointError, match=r"unexpected tensor 'known_head.*\"interpretable\": true"):
        load_model(saved)


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
        (
            lambda t: t[NAME][3].__setitem__(5, float("-inf")),
            rf"'{NAME}' holds NaN or infinite values, first at .3, 5.",
        ),
        (lambda t: t.update({"transformer.lm_head.weight": torch.zeros(37, 12)}), "differ, but weight_sharing"),
        (lambda t: t.update({"transformer.lm_head.weight": torch.zeros(7, 12)}), "differ, but weight_sharing"),
        (
            lambda t: t.update({"transformer.lm_head.weight": torch.full((37, 12), float("nan"))}),
            r"'transformer\.lm_head\.weight' holds NaN",
        ),
        (lambda t: t["transformer.tok_emb.weight"].fill_(float("inf")), r"'transformer\.tok_emb\.weight' holds NaN"),
    ],
    ids=["missing", "extra", "misshapen", "nan", "integer", "infinite", "untied", "cut", "nan-head", "inf-embedding"],
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


def test_both_of_a_tied_pair_may_be_stored(saved: Path) -> None:
    model = load_model(saved)
    _edit(saved, lambda t: t.update({"transformer.lm_head.weight": t["transformer.tok_emb.weight"].clone()}))
    assert _same(model, load_model(saved))


def test_a_number_too_large_for_the_dtype_is_named(saved: Path) -> None:
    _edit(saved, lambda t: t[NAME].fill_(1e30))
    with pytest.raises(CheckpointError, match=rf"'{NAME}' does not fit torch\.float16"):
        load_model(saved, dtype=torch.float16)


def test_an_unusual_type_is_named(saved: Path) -> None:
    _edit(saved, lambda t: t.update({NAME: torch.zeros(16, 12).to(torch.float8_e4m3fn)}))
    with pytest.raises(CheckpointError, match=f"'{NAME}' holds F8_E4M3; convert it"):
        load_model(saved)


def test_loading_takes_the_memory_of_the_weights(tmp_path: Path) -> None:
    """bf16 → fp32 in a process of its own: the peak above the imports is 1.15 × the weights at most.

    The plain way (a model, the file, `load_state_dict`) takes 1.5 ×; see benchmarks/loading.py.
    """
    model = init_model(small_config(width=512, num_layers=16, num_heads=4, mlp_ratio=4), 0).to(torch.bfloat16)
    num_bytes = 4 * sum(parameter.numel() for parameter in model.parameters())
    save_model(model, tmp_path, max_shard_bytes=num_bytes // 7)
    code = """
import sys, pathlib, torch
from vitrail.model import load_model
def kib(field):
    return next(int(x.split()[1]) for x in open("/proc/self/status") if x.startswith(field))
load_model(pathlib.Path(sys.argv[2]), dtype=torch.float32)  # a small one, so that torch is warm
before = kib("VmRSS")
model = load_model(pathlib.Path(sys.argv[1]), dtype=torch.float32)
print((kib("VmHWM") - before) * 1024)
"""
    save_model(init_model(small_config(), 0).to(torch.bfloat16), tmp_path / "small")
    words = [sys.executable, "-c", code, str(tmp_path), str(tmp_path / "small")]
    peak = int(subprocess.run(words, capture_output=True, text=True, check=True, timeout=120).stdout)
    assert num_bytes > 150e6
    assert 0.9 * num_bytes < peak < 1.15 * num_bytes


def test_a_model_is_made_without_torch_compiler(saved: Path) -> None:
    """Drawing random numbers on `meta` used to import it, and took two seconds."""
    code = "import sys, pathlib; from vitrail.model import load_model; load_model(pathlib.Path(sys.argv[1]))"
    words = [sys.executable, "-c", f"{code}; assert 'torch._dynamo' not in sys.modules", str(saved)]
    subprocess.run(words, check=True, timeout=120)


@settings(max_examples=10, deadline=None)
@given(flags=FLAGS)
def test_an_empty_model_has_the_shapes_of_a_full_one(flags: dict[str, Any]) -> None:
    config = small_config(**flags)
    shapes = [
        {name: tensor.shape for name, tensor in model.state_dict().items()}
        for model in (empty_model(config), ConceptLM(config))
    ]
    assert shapes[0] == shapes[1]


@settings(max_examples=5, deadline=None)
@given(flags=FLAGS, dtype=st.sampled_from([torch.float32, torch.bfloat16]))
def test_int8_layers(flags: dict[str, Any], dtype: torch.dtype, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Rows are rounded to 255 steps: each weight moves by half a step of its row at most; all else stays."""
    directory = tmp_path_factory.mktemp("model")
    model = init_model(small_config(**flags), 0).to(dtype).eval()
    save_model(model, directory)
    rounded = load_model(directory, int8=True)
    ids = torch.randint(37, (2, 11), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        logits, wanted = rounded(ids).logits.float(), model(ids).logits.float()
    assert logits.isfinite().all()
    assert not torch.equal(logits, wanted), "nothing was rounded"
    for name, weight in model.state_dict().items():
        found = rounded.state_dict()[name]
        if not is_quantized(name):
            assert torch.equal(found, weight), name
            continue
        assert type(found) is not Tensor, name
        step = weight.float().abs().amax(1, keepdim=True) / 127
        slack = 0.02 if dtype == torch.bfloat16 else 1e-4  # the scale itself is stored in this dtype
        error = (found.dequantize().float() - weight.float()).abs()
        assert (error <= step * 0.5 + weight.float().abs() * slack + 1e-7).all(), name
    with pytest.raises(ConfigError, match="int8 weight"):
        save_model(rounded, directory / "again")


def test_rounding_does_not_depend_on_the_slab(monkeypatch: pytest.MonkeyPatch) -> None:
    weight, states = (torch.randn(*shape, generator=torch.Generator().manual_seed(0)) for shape in ((37, 24), (5, 24)))
    whole = to_int8(weight)
    monkeypatch.setattr(quantized, "_SLAB", 7 * 24)
    slabs = to_int8(weight)
    assert torch.equal(whole.dequantize(), slabs.dequantize())
    assert torch.equal(F.linear(states, whole), F.linear(states, slabs))


def _config(directory: Path, **changes: Any) -> ModelConfig:
    released = small_config().to_released() | changes
    (directory / "config.json").write_text(json.dumps(released))
    return load_config(directory)


def test_unknown_keys_of_a_release_give_one_warning(tmp_path: Path) -> None:
    with pytest.warns(UserWarning, match="ignored unknown keys: quantum, zeta") as caught:
        config = _config(tmp_path, zeta=1, quantum=2)
    assert len(caught) == 1
    assert config == small_config()


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("n_layers", 10**9, r"tensor 'transformer.blocks.999999999.ln_1.weight' is missing"),
        ("vocab_size", 10**30, "no tensor is as large as it says"),
        ("intermediate_size", 10**18, "no tensor is as large as it says"),
    ],
)
def test_sizes_without_measure_are_told_before_a_model_is_made(saved: Path, key: str, value: int, message: str) -> None:
    path = saved / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {key: value}))
    for read in (load_model, describe_checkpoint):
        with pytest.raises(CheckpointError, match=message) as caught:
            read(saved)
        assert "\n" not in str(caught.value)


def test_a_configuration_nested_without_end_is_no_json(saved: Path) -> None:
    (saved / "config.json").write_text("[" * 10**5)
    with pytest.raises(CheckpointError, match="not valid JSON"):
        load_config(saved)


def test_released_keys_without_effect_are_silent(tmp_path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert _config(tmp_path, auto_map={}, transformers_version="4", inject_layer=3) == small_config()


@settings(max_examples=20, deadline=None)
@given(flags=FLAGS, is_nested=st.booleans())
def test_every_key_with_an_effect_survives_the_round_trip(flags: dict[str, Any], is_nested: bool) -> None:
    config = small_config(**flags)
    released = config.to_released()
    if is_nested:
        names = [key for key in released if key in CONCEPT_KEYS]
        released["concept"] = {key: released.pop(key) for key in names} | {"max_concepts": 16}
        released["concept"]["block_size"] = released["concept"].pop("concept_block_size")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert ModelConfig.from_released(released) == config


def test_the_context_length_is_not_the_slab() -> None:
    released = {"n_embd": 12, "n_head": 2, "n_kv_heads": 1, "block_size": 77, "concept": {"concept_dim": 12}}
    config = ModelConfig.from_released(released)
    assert (config.max_length, config.slab) == (77, 4096)


def test_keys_that_may_be_null() -> None:
    released = small_config(use_discovered=False).to_released() | dict.fromkeys(NULLABLE)
    config = ModelConfig.from_released(released)
    assert config.kv_heads == config.num_heads
    assert config.inner_width == config.mlp_ratio * config.width
    assert [config.clip_qkv, config.top_k_known, config.top_k_discovered, config.eot_id] == [None] * 4


def test_a_plain_model_may_leave_its_concept_keys_empty() -> None:
    released = small_config(interpretable=False).to_released()
    config = ModelConfig.from_released(released | dict.fromkeys(CONCEPT_KEYS))
    assert (config.known_count, config.discovered_count) == (0, 0)


@pytest.mark.parametrize("order", ["post", "sandwich", None])
def test_any_norm_order_but_pre_is_post(order: str | None) -> None:
    assert ModelConfig.from_released(small_config().to_released() | {"norm_order": order}).norm_order == "post"


def test_an_end_of_turn_makes_a_model_an_instruct_one() -> None:
    """The public build script writes the ids without the key `instruct`."""
    released = small_config(start_header_id=1, end_header_id=2, eot_id=3).to_released()
    assert not ModelConfig.from_released(released).instruct
    del released["instruct"]
    assert ModelConfig.from_released(released).instruct


def test_absent_backbone_is_cdlm_and_absent_interpretable_is_plain() -> None:
    released = small_config(backbone="ar").to_released()
    del released["backbone"], released["interpretable"]
    config = ModelConfig.from_released(released)
    assert config.backbone == "cdlm"
    assert not config.interpretable


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"n_embd": 13, "concept_dim": 13}, "n_embd 13 is not a multiple of n_head 2"),
        ({"n_head": 4, "n_kv_heads": 3}, "n_head 4 is not a multiple of n_kv_heads 3"),
        ({"n_head": 4}, "an even share of n_embd per head, got 3; change n_head, or switch use_rope off"),
        ({"concept_dim": 8}, "concept_dim 8 must equal n_embd 12"),
        ({"mask_token_id": 37}, "mask_token_id 37 is outside vocab_size 37"),
        ({"eot_id": 99}, "eot_id 99 is outside vocab_size 37"),
        ({"eos_token_id": None}, "'eos_token_id' = None"),
        ({"n_unknown_concepts": None}, "use_unknown is on but n_unknown_concepts is not given"),
        ({"n_layers": "many"}, "'n_layers' = 'many'"),
        ({"unknown_topk": 0}, "'unknown_topk' = 0"),
        ({"norm_eps": -1.0}, "'norm_eps' = -1.0"),
        ({"mlp_type": "moe"}, "'mlp_type' = 'moe'"),
        ({"mlp_type": "standard", "activation": "tanh"}, "'activation' = 'tanh'"),
        ({"concept": [1]}, "concept must be a JSON object, got list"),
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
