"""Calibrated strengths, plans and edits, on a tiny real model."""

from copy import deepcopy
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from vitrail.atlas import Card, ConceptLibrary
from vitrail.errors import ArtifactError, ConceptNotFound, ConfigError
from vitrail.model import ConceptLM, Injection, ModelConfig, init_model
from vitrail.steer import (
    Calibration,
    Head,
    Steer,
    calibrate,
    deployed_logits,
    edit_known,
    known_edit_effect,
    parse_steers,
    plan_steering,
    relu_penalty,
    unit_directions,
)
from vitrail.steer.calibration import Scale, find_scales
from vitrail.steer.probe import make_probe

V, D, BLOCK, LENGTH, C, M = 41, 12, 5, 30, 7, 11
TARGET = 1.5


@cache
def tiny_model() -> ConceptLM:
    config = ModelConfig(
        vocab_size=V,
        num_layers=3,
        num_heads=2,
        num_kv_heads=2,
        width=D,
        max_length=LENGTH,
        block=BLOCK,
        norm_order="pre",
        num_concepts=C,
        num_discovered=M,
        discovered_rank=3,
        slab=4,
        top_k_known=3,
        top_k_known_features=3,
        top_k_discovered=4,
        pad_id=36,
        bos_id=37,
        eos_id=38,
        eoc_id=39,
        mask_id=40,
    )
    model = init_model(config, 0).double().eval()
    with torch.no_grad():
        model.transformer.tok_emb.weight.mul_(20)
    return model


def held_out() -> torch.Tensor:
    return torch.randint(0, 36, (60, LENGTH), generator=torch.Generator().manual_seed(1))


@cache
def tiny_calibration() -> Calibration:
    return calibrate(tiny_model(), held_out(), layer=2, target=TARGET)


def library() -> ConceptLibrary:
    names: list[tuple[Head, int, str]] = [("known", n, f"concept {n}") for n in range(C)]
    names += [("discovered", n, f"found {n}") for n in range(M)]
    return ConceptLibrary([Card(n, head, name, "", "content", (), (), (), 0, 0.0, True) for head, n, name in names])


def measured_change(head: Head, concept_id: int, scale: float) -> float:
    """By the definition: whole rows, no cache, one concept."""
    model, ids = tiny_model(), torch.tensor(tiny_calibration().probe)
    is_masked = ids == model.config.mask_id
    vector = scale * unit_directions(model, head, [concept_id])
    with torch.no_grad():
        plain = deployed_logits(model, model.hidden(ids)[is_masked])
        injection = Injection(vector.expand(len(ids), D), is_masked, 2)
        steered = deployed_logits(model, model.hidden(ids, injection=injection)[is_masked])
    return float((steered - plain).abs().amax(-1).mean())


def test_strength_one_moves_logits_by_the_target() -> None:
    calibration = tiny_calibration()
    assert sum(row.count(tiny_model().config.mask_id) for row in calibration.probe) == 256
    assert sorted(calibration.known) == list(range(C))
    for concept_id, found in calibration.known.items():
        measured = measured_change("known", concept_id, found.scale)
        assert measured == pytest.approx(found.change, rel=1e-9)
        assert measured == pytest.approx(TARGET, rel=0.1)


def test_discovered_concepts_are_calibrated_when_asked_for() -> None:
    calibration = calibrate(tiny_model(), held_out(), layer=2, target=TARGET, concepts=[])
    scale = calibration.scale(tiny_model(), "discovered", 4)
    assert list(calibration.discovered) == [4]
    assert measured_change("discovered", 4, scale) == pytest.approx(TARGET, rel=0.1)
    with pytest.raises(ConceptNotFound, match=f"no discovered concept #{M}; its ids are 0 to {M - 1}"):
        calibration.scale(tiny_model(), "discovered", M)


def test_calibration_is_a_function_of_its_seed_and_survives_saving(tmp_path: Path) -> None:
    again = calibrate(tiny_model(), held_out(), layer=2, target=TARGET)
    assert again == tiny_calibration()
    again.save(tmp_path)
    assert Calibration.load(tmp_path) == again
    (tmp_path / "calibration.json").write_text('{"layer": 2}')
    with pytest.raises(ArtifactError, match="damaged"):
        Calibration.load(tmp_path)
    with pytest.raises(ArtifactError, match="no calibration; run"):
        Calibration.load(tmp_path / "nowhere")


def test_impossible_calibrations_are_refused() -> None:
    with pytest.raises(ConfigError, match="layer 4 is not one of 0 to 3"):
        calibrate(tiny_model(), held_out(), layer=4)
    with pytest.raises(ConfigError, match="none of 2 held-out sequences"):
        calibrate(tiny_model(), torch.full((2, LENGTH), 36), layer=2)
    with pytest.raises(ConfigError, match="none of 60 held-out sequences of 4 tokens"):
        calibrate(tiny_model(), held_out()[:, :4], layer=2)


def test_few_sequences_are_masked_again_until_there_are_enough() -> None:
    probe = make_probe(held_out()[:2], tiny_model().config, 50, seed=3)
    assert (probe == 40).sum() == 50
    assert (probe[:, : probe.shape[1] - BLOCK] != 40).all()


@settings(deadline=None, max_examples=15)
@given(st.integers(0, 10**6))
def test_scales_solve_for_the_target_or_say_how_far_they_got(seed: int) -> None:
    """Saturating curves: limit · (1 − exp(−x/width)), some of which never reach the target."""
    generator = torch.Generator().manual_seed(seed)
    limit = 4 + 16 * torch.rand(13, generator=generator, dtype=torch.float64)
    width = torch.exp(2 * torch.randn(13, generator=generator, dtype=torch.float64))
    scales, values = find_scales(
        lambda which, x: limit[which] * (1 - torch.exp(-x / width[which])), 8.0, torch.ones(13).double()
    )
    torch.testing.assert_close(values, limit * (1 - torch.exp(-scales / width)))
    reachable = limit > 8.2
    assert ((values - 8).abs() <= 0.4)[reachable].all()
    assert (values >= torch.minimum(0.88 * limit, limit.new_tensor(7.6)))[~reachable].all()


def test_a_plan_adds_up_its_concepts() -> None:
    model, calibration = tiny_model(), tiny_calibration()
    steers = parse_steers("concept 2=+1.5; #5=-0.5; discovered:#3=+1")
    plan = plan_steering(model, steers, library(), calibration)
    expected = torch.zeros(D).double()
    parts: list[tuple[Head, int, float]] = [("known", 2, 1.5), ("known", 5, -0.5), ("discovered", 3, 1.0)]
    for head, concept_id, strength in parts:
        scale = calibration.scale(model, head, concept_id)
        expected += strength * scale * unit_directions(model, head, [concept_id])[0]
    torch.testing.assert_close(plan.direction, expected)
    assert plan.layer == 2
    assert plan.text == "concept 2=+1.5; #5=-0.5; discovered:#3=+1.0"
    assert plan.logit_penalty is not None
    assert plan.logit_penalty.max() == pytest.approx(0.5 * TARGET)


def test_amplification_leaves_logits_unpenalised_and_off_presses_more_than_it_injects() -> None:
    model, calibration = tiny_model(), tiny_calibration()
    assert plan_steering(model, [Steer("concept 1")], library(), calibration).logit_penalty is None
    off = plan_steering(model, [Steer("concept 1", is_off=True)], library(), calibration)
    assert off.logit_penalty is not None
    assert off.logit_penalty.max() == pytest.approx(TARGET)
    assert off.direction.norm() == pytest.approx(0.1 * calibration.scale(model, "known", 1))


def test_the_penalty_touches_only_what_the_vector_raises() -> None:
    model = tiny_model()
    vector = unit_directions(model, "known", [3])[0]
    raised = (model.transformer.lm_head.weight @ vector).detach()
    penalty = relu_penalty(model, vector, 5.0)
    assert (penalty[raised <= 0] == 0).all()
    assert (penalty[raised > 0] > 0).all()
    assert penalty.max() == pytest.approx(5.0)


def test_one_concept_by_name_and_by_id_is_refused() -> None:
    """Their strengths would add up, or one would switch off what the other turns up."""
    with pytest.raises(ConfigError, match="known concept #3 again"):
        plan_steering(tiny_model(), parse_steers("#3=+1; concept 3=off"), library(), tiny_calibration())


def test_unknown_concepts_are_refused_with_the_nearest() -> None:
    model, calibration = tiny_model(), tiny_calibration()
    with pytest.raises(ConceptNotFound, match="concept 3"):
        plan_steering(model, [Steer("concpt 3")], library(), calibration)
    with pytest.raises(ConceptNotFound, match=f"no known concept #{C}; its ids are 0 to {C - 1}"):
        plan_steering(model, [Steer(C)], library(), calibration)


@settings(deadline=None, max_examples=10)
@given(st.integers(0, 10**6), st.integers(0, 2 * 7 * 3 - 1), st.sampled_from([0.0, 0.5, 3.0]))
def test_predicted_is_measured_effect_of_a_known_edit(seed: int, place: int, value: float) -> None:
    """Measured: all activations laid out, one overwritten, features and logits computed anew.

    The concept is one that some position keeps: to delete any other changes nothing, by right.
    """
    model = tiny_model()
    ids = torch.randint(0, V, (2, 7), generator=torch.Generator().manual_seed(seed))
    with torch.no_grad():
        output = model(ids)
        concept_id = int(output.known_ids.flatten()[place])
        weights = torch.zeros(2, 7, C).double().scatter(2, output.known_ids, output.known_logits.sigmoid())
        weights[..., concept_id] = value
        known = weights @ model.known_head.embedding(slice(0, C))
        measured = model.lm_logits(output.discovered + output.residual + known) - output.logits
        predicted = known_edit_effect(model, output, concept_id, value)
        edited = edit_known(model, output, concept_id, value) - output.logits
    torch.testing.assert_close(predicted, measured, atol=1e-10, rtol=0)
    torch.testing.assert_close(edited, measured, atol=1e-10, rtol=0)
    assert predicted.abs().max() > 1e-6


@pytest.mark.parametrize(
    "changes",
    [{"layer": 4}, {"layer": -1}, {"probe": ((V,),)}, {"known": {C: Scale(scale=1, change=1)}}],
)
def test_calibration_of_another_model_is_refused(changes: dict[str, object]) -> None:
    """A layer beyond the last one was taken silently, and nothing was injected."""
    wrong = replace(tiny_calibration(), **changes)  # type: ignore[arg-type]
    with pytest.raises(ArtifactError, match="calibrate it again"):
        plan_steering(tiny_model(), parse_steers("#1=+1"), library(), wrong)


def test_a_concept_that_raises_no_token_is_penalised_nowhere() -> None:
    """It gave 0 · inf: a sampled token outside the vocabulary, and a greedy one by chance."""
    model = deepcopy(tiny_model())
    with torch.no_grad():
        model.transformer.lm_head.weight.abs_()
    ones = torch.ones(D, dtype=torch.float64)
    assert torch.equal(relu_penalty(model, -ones, 5.0), torch.zeros(V, dtype=torch.float64))
    assert torch.isfinite(relu_penalty(model, 1e-308 * ones, 5.0)).all()
