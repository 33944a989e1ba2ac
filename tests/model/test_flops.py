"""Counts of parameters and operations: parts against the whole, the formulas against a counter of torch's own."""

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.flop_counter import FlopCounterMode

from tests.model.shapes import FLAGS, small_config
from vitrail.model import ModelConfig, Visibility, dense_mask, empty_model, init_model
from vitrail.model.flops import parameter_count, training_flops, visible_keys

_PRODUCTS = ("aten.mm", "aten.addmm")


@given(FLAGS)
@settings(deadline=None)
def test_parts_add_up_to_the_model(flags: dict[str, Any]) -> None:
    model = empty_model(small_config(**flags))
    count = parameter_count(model)
    assert count.total == sum(parameter.numel() for parameter in model.parameters())
    assert (count.known > 0) == model.config.interpretable
    assert (count.discovered > 0) == (model.config.discovered_count > 0)


def test_the_released_model() -> None:
    count = parameter_count(empty_model(ModelConfig()))
    assert count.total == 8_391_778_304
    assert count.concept_share == pytest.approx(0.04, abs=0.005)


def test_reported_compute() -> None:
    """8B on 1.35 T tokens is reported as 7.6e22 operations; ours leave out what is recomputed."""
    cost = training_flops(ModelConfig(), 4096, 0.5)
    assert cost.total * 1.35e12 == pytest.approx(7.6e22, rel=0.12)
    assert cost.total == cost.backbone + cost.attention + cost.known + cost.discovered + cost.lm_head


@pytest.mark.parametrize("mlp_type", ["swiglu", "standard"])
@pytest.mark.parametrize("kv_heads", [None, 1])
def test_backbone_counts_what_torch_counts(mlp_type: str, kv_heads: int | None) -> None:
    """Products of weights in one forward and backward of 3 x 20 tokens; attention has kernels of its own."""
    model = init_model(small_config(mlp_type=mlp_type, num_kv_heads=kv_heads), seed=0)
    ids = torch.arange(60).reshape(3, 20) % 30
    with FlopCounterMode(display=False) as counter:
        model.hidden(ids).sum().backward()  # type: ignore[no-untyped-call]
    counted = sum(n for op, n in counter.get_flop_counts()["Global"].items() if str(op).startswith(_PRODUCTS))
    assert counted == 60 * training_flops(model.config, 20, 1.0).backbone


def test_known_head_counts_what_torch_counts() -> None:
    """Logits and sum of all concepts; the backward takes each product twice, and makes the logits again."""
    model = init_model(small_config(top_k_known=None), seed=0)
    hidden = torch.randn(1, 60, 12, requires_grad=True)
    with FlopCounterMode(display=False) as counter:
        model.known_head.features(hidden, None).features.sum().backward()  # type: ignore[no-untyped-call]
    counted = sum(n for op, n in counter.get_flop_counts()["Global"].items() if str(op).startswith(_PRODUCTS))
    product, concept_loss = 2 * 13 * 12, 3 * 2 * 13 * 12
    assert counted == 60 * (training_flops(model.config, 20, 1.0).known - concept_loss + product)


def test_known_head_with_a_top_k() -> None:
    """A search over all 13 concepts, then logits and sum of the 5 that are kept, and the concept loss on all."""
    known = training_flops(small_config(top_k_known=5, top_k_known_features=5), 20, 1.0).known
    assert known == 2 * 13 * 12 + 3 * 2 * 2 * 5 * 12 + 3 * 2 * 13 * 12


@given(st.integers(1, 70), st.integers(1, 9), st.sampled_from(["cdlm", "ar"]))
@settings(deadline=None)
def test_visible_keys_is_the_mean_row_of_the_mask(length: int, block: int, backbone: Any) -> None:
    config = small_config(block=block, backbone=backbone)
    mask = dense_mask(Visibility(backbone, block, 0, length), torch.device("cpu"))
    assert visible_keys(config, length) == pytest.approx(mask.sum().item() / length)


def test_only_predicted_positions_run_the_lm_head() -> None:
    half, full = (training_flops(small_config(), 20, share) for share in (0.5, 1.0))
    assert half.lm_head * 2 == full.lm_head == 3 * 2 * 37 * 12
    assert half.backbone == full.backbone


def test_plain_model_has_no_concept_cost() -> None:
    cost = training_flops(small_config(interpretable=False), 20, 1.0)
    assert cost.known == cost.discovered == 0
