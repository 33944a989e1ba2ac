"""Outputs of the public reference on tiny random models: every array to 1e-4 in fp32.

Two correct fp32 implementations differ by about 1e-5 (order of summation); 1e-4 leaves room for that only.
"""

import os
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from vitrail.model import ConceptLM, Injection, ModelConfig, load_config, load_model

GOLDEN = Path(__file__).parents[1] / "golden" / "a1"
SHARED = os.environ.get("VITRAIL_SHARED")
SHARED_SETS = ["a2_pre_gelu_attention_dense"]
TOLERANCE = 1e-4


def _directories() -> list[Path]:
    if SHARED is None:
        return [GOLDEN]
    return [GOLDEN, *(Path(SHARED) / "fixtures" / "steerling_ref" / name for name in SHARED_SETS)]


@pytest.fixture(params=_directories(), ids=lambda path: path.name)
def directory(request: pytest.FixtureRequest) -> Path:
    assert isinstance(request.param, Path)
    return request.param


@pytest.mark.skipif(SHARED is None, reason="VITRAIL_SHARED names no folder with the further fixture sets")
def test_further_sets_are_there() -> None:
    assert all(path.is_dir() for path in _directories())


def _close(got: Tensor, wanted: np.ndarray, name: str) -> None:
    error = np.abs(got.detach().numpy() - wanted).max()
    assert got.shape == wanted.shape, name
    assert error < TOLERANCE, f"{name}: {error}"


def _recorded_layers(model: ConceptLM, ids: Tensor) -> tuple[list[Tensor], dict[str, Tensor]]:
    layers: list[Tensor] = []
    inner: dict[str, Tensor] = {}
    for block in model.transformer.blocks:
        block.register_forward_hook(lambda _m, _i, out: layers.append(out))
    first = model.transformer.blocks[0]
    first.get_submodule("attn").register_forward_hook(lambda _m, _i, out: inner.update(attn=out))
    first.get_submodule("mlp").register_forward_hook(lambda _m, _i, out: inner.update(mlp=out))
    model.hidden(ids)
    return layers, inner


def _weights(logits: Tensor, k: int | None) -> Tensor:
    weights = logits.sigmoid()
    if k is None:
        return weights
    kept = weights.topk(k)
    return torch.zeros_like(weights).scatter(-1, kept.indices, kept.values)


@torch.no_grad()
def test_forward(directory: Path) -> None:
    wanted = np.load(directory / "forward.npz")
    model = load_model(directory / "checkpoint")
    config = model.config
    ids = torch.from_numpy(wanted["input_ids"]).long()
    out = model(ids)
    for name, got in {
        "hidden": out.hidden,
        "known_features": out.known,
        "unk_hat": out.discovered,
        "unk_for_lm": out.discovered + out.residual,
        "composed": out.composed,
        "logits": out.logits,
        "known_topk_logits": out.known_logits,
        "unknown_topk_logits": out.discovered_logits,
    }.items():
        _close(got, wanted[name], name)
    if "epsilon" in wanted:
        _close(out.residual, wanted["epsilon"], "epsilon")
    assert (out.known_ids.numpy() == wanted["known_topk_indices"]).all()
    assert (out.discovered_ids.numpy() == wanted["unknown_topk_indices"]).all()
    heads = {"known": (model.known_head, config.top_k_known)}
    heads["unknown"] = (model.unknown_head, config.top_k_discovered)
    for name, (head, k) in heads.items():
        logits = head.logits(out.hidden, slice(0, head.num_concepts)).clamp(-15, 15)
        _close(logits, wanted[f"{name}_logits"], f"{name}_logits")
        _close(_weights(logits, k), wanted[f"{name}_weights"], f"{name}_weights")
    layers, inner = _recorded_layers(model, ids)
    _close(torch.stack(layers), wanted["layer_out"], "layer_out")
    _close(inner["attn"], wanted["block0_attn_out"], "block0_attn_out")
    _close(inner["mlp"], wanted["block0_mlp_out"], "block0_mlp_out")


@torch.no_grad()
def test_forward_in_bf16(directory: Path) -> None:
    """bf16 results depend on the kernels: they agree to 3 % of the norm of each array."""
    wanted = np.load(directory / "forward_bf16.npz")
    model = load_model(directory / "checkpoint", dtype=torch.bfloat16)
    out = model(torch.from_numpy(wanted["input_ids"]).long())
    for name, got in {"hidden": out.hidden, "composed": out.composed, "logits": out.logits}.items():
        error = np.linalg.norm(got.float().numpy() - wanted[name]) / np.linalg.norm(wanted[name])
        assert error < 0.03, f"{name}: {error}"


@torch.no_grad()
def test_injection(directory: Path) -> None:
    wanted = np.load(directory / "injection.npz")
    model = load_model(directory / "checkpoint")
    ids = torch.from_numpy(np.load(directory / "forward.npz")["input_ids"]).long()[:1]
    if "input_ids" in wanted:
        ids = torch.from_numpy(wanted["input_ids"]).long()
    mask = torch.from_numpy(wanted["injection_mask"])
    concepts = torch.from_numpy(wanted["concept_ids"]).long()
    total = model.known_head.rows(concepts).sum(0)
    direction = total / (total.norm() + 1e-12)
    _close(direction, wanted["direction"], "direction")
    peak = model.lm_logits(direction).max()
    _close(peak, wanted["peak_alignment"], "peak_alignment")
    strengths = [(f"layer{n}", n, wanted["alpha_normalized"]) for n in range(model.config.num_layers + 2)]
    strengths.append(("raw_layer1", 1, wanted["alpha_raw"]))
    checked = 0
    for name, layer, alpha in strengths:
        out = model(ids, injection=Injection(float(alpha) * direction[None], mask, layer))
        for part, got in (("hidden", out.hidden), ("logits", out.logits)):
            if f"{name}_{part}" in wanted:
                _close(got, wanted[f"{name}_{part}"], f"{name}_{part}")
                checked += 1
    assert checked == sum(name.endswith(("_hidden", "_logits")) for name in wanted.files)


def test_nested_configuration_is_the_same(directory: Path) -> None:
    nested = load_config(directory / "checkpoint_nested_config")
    flat = load_config(directory / "checkpoint")
    assert nested == flat
    assert ModelConfig.from_released(flat.to_released()) == flat
