"""Recorded forwards, injections, interventions, embeddings and concept inspections."""

from pathlib import Path

import pytest
import torch

from tests.compat.golden import arrays, assert_close, records
from vitrail.compat import (
    Injector,
    Intervention,
    ReferenceSteering,
    default_layer,
    dense_activations,
    embed,
    peak_alignment,
    reference_forward,
    relu_suppression,
    steering_direction,
    strength,
    top_tokens,
)
from vitrail.compat.interventions import Rule
from vitrail.model import ConceptLM, load_model

_RULES: dict[str, Rule] = {"dense override": "dense", "sparse correction": "sparse"}


def test_forward_with_dense_outputs(directory: Path, model: ConceptLM) -> None:
    wanted = arrays(directory / "forward.npz")
    got = reference_forward(model, wanted["input_ids"])
    known, discovered = dense_activations(model, got.hidden)
    assert discovered is not None
    parts = {
        "logits": got.logits,
        "hidden": got.hidden,
        "known_features": got.known,
        "known_logits": known.logits,
        "known_weights": known.weights,
        "known_topk_logits": got.known_logits,
        "unk_hat": got.discovered,
        "unk_for_lm": got.discovered_for_lm,
        "unknown_logits": discovered.logits,
        "unknown_weights": discovered.weights,
        "unknown_topk_logits": got.discovered_logits,
        "composed": got.composed,
        "epsilon": got.correction,
    }
    for name, part in parts.items():
        if name in wanted:
            assert part is not None, name
            assert_close(part, wanted[name], name)
    assert ("epsilon" in wanted) == (got.correction is not None)
    for name, ids in {"known_topk_indices": got.known_ids, "unknown_topk_indices": got.discovered_ids}.items():
        if name in wanted:
            assert torch.equal(ids, wanted[name]), name
    checked = {*parts, "known_topk_indices", "unknown_topk_indices", "input_ids"}
    assert set(wanted) - checked == {"layer_out", "block0_attn_out", "block0_mlp_out"}


def test_forward_in_bf16(directory: Path) -> None:
    """Kernels differ by a rounding here and there; a concept chosen otherwise would show as 10 % or more."""
    wanted = arrays(directory / "forward_bf16.npz")
    got = reference_forward(load_model(directory / "checkpoint", dtype=torch.bfloat16), wanted["input_ids"])
    for name, part in {
        "hidden": got.hidden,
        "known_features": got.known,
        "unk_hat": got.discovered,
        "composed": got.composed,
        "logits": got.logits,
    }.items():
        error = (part.float() - wanted[name]).norm() / wanted[name].norm()
        assert error < 0.03, f"{name}: {float(error)}"


def test_injection(directory: Path, model: ConceptLM) -> None:
    wanted = arrays(directory / "injection.npz")
    concepts = tuple(wanted["concept_ids"].tolist())
    target = float(wanted["target_normalized"])
    normalised = ReferenceSteering(concept_ids=concepts, target=target)
    raw = ReferenceSteering(concept_ids=concepts, target=float(wanted["alpha_raw"]), is_normalized=False)
    direction = steering_direction(model, concepts)
    assert_close(direction, wanted["direction"], "direction")
    assert peak_alignment(model, direction) == pytest.approx(float(wanted["peak_alignment"]), abs=1e-5)
    assert strength(model, normalised) == pytest.approx(float(wanted["alpha_normalized"]), rel=1e-5)
    assert strength(model, raw) == float(wanted["alpha_raw"])
    assert default_layer(model.config) == int(wanted["default_layer"])
    strengths = dict(zip(wanted["relu_concept_ids"].tolist(), wanted["relu_strengths"].tolist(), strict=True))
    assert_close(relu_suppression(model, strengths), wanted["relu_suppression"], "relu_suppression")
    outputs = [name for name in wanted if name.endswith(("_hidden", "_logits"))]
    for name in outputs:
        prefix, part = name.rsplit("_", 1)
        steering = raw if prefix.startswith("raw_") else normalised
        layer = int(prefix.removeprefix("raw_").removeprefix("layer"))
        injector = Injector.of(model, steering.model_copy(update={"layer": layer}))
        assert injector is not None
        injection = injector.at_masks(wanted["input_ids"], model.config.mask_id)
        assert torch.equal(injection.mask, wanted["injection_mask"])
        assert_close(
            getattr(reference_forward(model, wanted["input_ids"], injection=injection), part), wanted[name], name
        )
    assert len(outputs) >= 4


def test_interventions(directory: Path, model: ConceptLM) -> None:
    wanted, cases = arrays(directory / "interventions.npz"), records(directory / "interventions.json")
    checked = 0
    for name, case in cases.items():
        ids = wanted["input_ids"]
        positions = None if case["positions"] == "all" else wanted["positions"].bool()
        known, discovered = (
            Intervention.of({int(key): value for key, value in case[head].items()}, ids, positions)
            for head in ("known", "unknown")
        )
        rule = _RULES[case["unknown_rule"]]
        got = reference_forward(model, ids, known=known, discovered=discovered, discovered_rule=rule)
        for part, array in {
            "logits": got.logits,
            "known_features": got.known,
            "unk_hat": got.discovered,
            "composed": got.composed,
        }.items():
            assert_close(array, wanted[f"{name}__{part}"], f"{name}__{part}")
            checked += 1
    assert checked == len(wanted) - 2


def test_embeddings(directory: Path, model: ConceptLM) -> None:
    wanted = arrays(directory / "embeddings.npz")
    ids = wanted.pop("input_ids")[None]
    for name, array in wanted.items():
        part, pooling = name.split("_")
        got = embed(model, ids, "discovered" if part == "unknown" else part, pooling)  # type: ignore[arg-type]
        assert_close(got[0], array, name)
    assert len(wanted) >= 3


def test_concept_top_tokens(directory: Path, model: ConceptLM) -> None:
    for concept, wanted in records(directory / "concept_top_tokens.json").items():
        got = top_tokens(model, int(concept), len(wanted))
        assert [token for token, _ in got] == [token for token, _ in wanted]
        assert [value for _, value in got] == pytest.approx([value for _, value in wanted], abs=1e-5)
