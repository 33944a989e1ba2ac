"""Steering batches: where, how strong, and what the two terms ask for (§10.2.4)."""

import math
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise

import pytest
import torch

from vitrail.model import ConceptLM
from vitrail.packed import PackedBatch, PackedCorpus
from vitrail.train.masking import Draws
from vitrail.train.objective import LossSettings, Plan, draw, forward
from vitrail.train.settings import SteeringSettings, TrainSettings
from vitrail.train.steering_phase import (
    SteeringDraw,
    calibrated_scales,
    deaf_share,
    draw_steering,
    injection_of,
    is_steering_step,
    steering_terms,
)

Model = Callable[..., ConceptLM]
Batch = Callable[..., PackedBatch]
PLAN = Plan(0.0, 0.0, 3, 6)


def _drawn(batch: PackedBatch, steering: SteeringSettings, seed: int = 0) -> tuple[Draws, SteeringDraw]:
    settings = TrainSettings()
    draws = draw(settings.noise, settings.compose, batch.tokens != 0, 4, 0.9, seed, 0)
    return draws, draw_steering(batch, draws, steering, 7, seed, 0)


def test_steering_steps_have_their_density_and_warm_up() -> None:
    settings = SteeringSettings(density=((0.0, 0.5), (1.0, 0.25)), warmup_steps=20)
    taken = [is_steering_step(settings, step, 400) for step in range(400)]
    assert not any(taken[:20])
    assert sum(taken[20:210]) > sum(taken[210:]), "front-loaded"
    assert sum(taken) == pytest.approx(0.375 * 390, rel=0.05)
    assert not any(a and b for a, b in pairwise(taken)), "interleaved with plain batches"


def test_a_concept_is_injected_at_masked_tokens_of_chunks_that_carry_it(tiny_batch: Batch) -> None:
    steering = SteeringSettings(weakest=0.2, strongest=0.6)
    for seed in range(5):
        batch = tiny_batch(rows=6, seed=seed)
        draws, drawn = _drawn(batch, steering, seed)
        pairs = set(zip(batch.label_chunk.tolist(), batch.label_concept.tolist(), strict=True))
        assert not bool((drawn.at & ~draws.masked).any())
        for row, pos in drawn.at.nonzero().tolist():
            assert (int(batch.chunk[row, pos]), int(drawn.concept[row])) in pairs
        assert float(drawn.strength.min()) >= 0.2
        assert float(drawn.strength.max()) <= 0.6
    assert int(drawn.at.sum()) > 0


def test_injection_has_the_calibrated_norm_and_leaves_k_alone(tiny_model: Model, tiny_batch: Batch) -> None:
    model, batch = tiny_model(), tiny_batch(rows=6)
    _, drawn = _drawn(batch, SteeringSettings())
    scales = torch.arange(1.0, 8.0, dtype=torch.float64)
    injection = injection_of(model, drawn, scales, layer=1)
    carries = drawn.concept >= 0
    wanted = drawn.strength.double() * scales[drawn.concept.clamp_min(0)] * carries
    torch.testing.assert_close(injection.vector.norm(dim=-1), wanted)
    assert not injection.vector.requires_grad


def test_respond_and_express_follow_their_formulas(tiny_model: Model, tiny_batch: Batch) -> None:
    model, batch = tiny_model(), tiny_batch(rows=6)
    steering = SteeringSettings(express_mass=0.3)
    draws, drawn = _drawn(batch, steering)
    lifted = torch.rand((7, 41), generator=torch.Generator().manual_seed(2)) < 0.1
    states = forward(model, batch, draws, PLAN, LossSettings())
    found = steering_terms(model, draws, drawn, states, lifted, steering)
    respond, express, rows = 0.0, 0.0, 0
    logits = torch.zeros(*draws.masked.shape, 41, dtype=torch.float64)
    logits[draws.masked] = states.logits_n.detach()
    z = model.known_head.logits(states.hidden, slice(0, 7)).detach()
    for row in range(6):
        positions = drawn.at[row].nonzero()[:, 0]
        if len(positions):
            c = int(drawn.concept[row])
            respond -= float(torch.log(z[row, positions, c].sigmoid()).sum())
            mass = float(logits[row, positions].softmax(-1)[:, lifted[c]].sum(-1).mean())
            express += max(0.0, math.log(0.3) - math.log(max(mass, 1e-9)))
            rows += 1
    assert float(found["respond"].total.detach()) == pytest.approx(respond, rel=1e-5)
    assert float(found["express"].total.detach()) == pytest.approx(express, rel=1e-5)
    assert (found["respond"].count, found["express"].count) == (int(drawn.at.sum()), rows)


def test_respond_trains_backbone_and_predictor_only(tiny_model: Model, tiny_batch: Batch) -> None:
    model, batch = tiny_model(tie_embeddings=False), tiny_batch(rows=6)
    draws, drawn = _drawn(batch, SteeringSettings())
    injection = injection_of(model, drawn, torch.ones(7, dtype=torch.float64), 1)
    states = forward(model, batch, draws, PLAN, LossSettings(), injection)
    lifted = torch.ones(7, 41, dtype=torch.bool)
    steering_terms(model, draws, drawn, states, lifted, SteeringSettings())["respond"].total.backward()  # type: ignore[no-untyped-call]
    reached = {name.split(".")[0] for name, p in model.named_parameters() if p.grad is not None and p.grad.norm() > 0}
    assert reached == {"transformer", "known_head"}
    assert dict(model.named_parameters())["known_head.concept_embedding.weight"].grad is None


def test_the_deafest_concept_is_taught_too(tiny_model: Model, tiny_batch: Batch) -> None:
    """Activations clamp logits at -15; a concept that lies below must still be pulled up, at full slope."""
    model, batch = tiny_model(), tiny_batch(rows=6)
    draws, drawn = _drawn(batch, SteeringSettings())
    states = forward(model, batch, draws, PLAN, LossSettings())
    direction = torch.nn.functional.normalize(states.hidden[drawn.at].mean(0), dim=0).detach()
    predictor = model.get_parameter("known_head.concept_predictor.weight")
    with torch.no_grad():
        predictor.copy_(-100 * direction.expand_as(predictor))
    hidden = (states.hidden * 0 + 3 * direction).requires_grad_()
    deaf = replace(states, hidden=hidden)
    found = steering_terms(model, draws, drawn, deaf, torch.ones(7, 41, dtype=torch.bool), SteeringSettings())
    (grad,) = torch.autograd.grad(found["respond"].total, hidden)
    assert found["respond"].total > 200 * drawn.at.sum()
    torch.testing.assert_close(grad[drawn.at].norm(dim=-1), torch.full((int(drawn.at.sum()),), 100.0).double())


def test_calibration_is_stronger_for_a_larger_target(tiny_model: Model, tiny_packed: PackedCorpus) -> None:
    model = tiny_model(dtype=torch.float32)
    weak, strong = (calibrated_scales(model, tiny_packed, 1, target, 0) for target in (0.01, 0.02))
    assert bool((strong > weak).all())
    assert 0.0 <= deaf_share(model, tiny_packed, 1, strong, 0) <= 1.0


def test_concepts_probed_at_once_do_not_change_the_deaf_share(
    tiny_model: Model, tiny_packed: PackedCorpus, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every second concept is injected backwards, so that some are deaf and some are not."""
    model = tiny_model()
    scales = torch.tensor([0.1, -0.1, 0.1, -0.1, 0.1, -0.1, 0.1], dtype=torch.float64)
    whole = deaf_share(model, tiny_packed, 1, scales, 0)
    assert 0.0 < whole < 1.0
    monkeypatch.setattr("vitrail.train.steering_phase._CONCEPTS_AT_ONCE", 2)
    assert deaf_share(model, tiny_packed, 1, scales, 0) == whole
