"""Steering batches: where, how strong, and what the two terms ask for (§10.2.4)."""

import math
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from typing import Literal

import pytest
import torch

from vitrail.model import ConceptLM
from vitrail.packed import PackedBatch, PackedCorpus
from vitrail.train.masking import Draws
from vitrail.train.microbatch import cut
from vitrail.train.objective import LossSettings, Plan, draw, forward
from vitrail.train.settings import SteeringSettings, TrainSettings
from vitrail.train.steering_phase import (
    SteeringDraw,
    draw_steering,
    injection_of,
    steering_steps,
    steering_terms,
)
from vitrail.train.steering_probe import calibrated_scales, deaf_share, pool_of, probe_steering

Model = Callable[..., ConceptLM]
Batch = Callable[..., PackedBatch]
PLAN = Plan(0.0, 0.0, 3, 6)


ALL = torch.ones(7)


def _drawn(batch: PackedBatch, steering: SteeringSettings, seed: int = 0) -> tuple[Draws, SteeringDraw]:
    settings, rows = TrainSettings(), len(batch.tokens)
    shape = (rows, batch.tokens.shape[1])
    draws = draw(settings.noise, settings.compose, shape, 4, 0.9, seed, 0, "cdlm").over(batch.loss_mask)
    return draws, draw_steering(batch, draws, steering, ALL, seed, 0, slice(0, rows), rows)


def test_steering_steps_have_their_density_and_warm_up() -> None:
    settings = SteeringSettings(density=((0.0, 0.5), (1.0, 0.25)), warmup_steps=20)
    taken = steering_steps(settings, 400).tolist()
    assert not any(taken[:20])
    assert sum(taken[20:210]) > sum(taken[210:]), "front-loaded"
    assert sum(taken) == pytest.approx(0.375 * 390, rel=0.05)
    assert not any(a and b for a, b in pairwise(taken)), "interleaved with plain batches"


def test_a_share_of_one_steers_every_batch_after_the_warm_up_and_zero_none() -> None:
    assert (
        steering_steps(SteeringSettings(density=((0.0, 1.0),), warmup_steps=3), 8).tolist() == [False] * 3 + [True] * 5
    )
    assert not steering_steps(SteeringSettings(density=((0.0, 0.0),)), 8).any()


@pytest.mark.parametrize("attributed", ["chunk", "spans"])
def test_ranks_draw_what_one_process_draws(attributed: Literal["chunk", "spans"], tiny_batch: Batch) -> None:
    batch, steering = tiny_batch(rows=6), SteeringSettings(attributed=attributed)
    draws, whole = _drawn(batch, steering)
    for rows in (slice(0, 3), slice(3, 6)):
        part = draw_steering(cut(batch, rows), draws.rows(rows), steering, ALL, 0, 0, rows, 6)
        for field in ("concept", "strength", "at"):
            assert torch.equal(getattr(part, field), getattr(whole, field)[rows]), field


def test_spans_attribute_tokens_and_the_pool_limits_concepts(tiny_batch: Batch) -> None:
    for seed in range(5):
        batch = tiny_batch(rows=6, seed=seed)
        spans = set(zip(batch.span_pos.tolist(), batch.span_concept.tolist(), strict=True))
        draws, drawn = _drawn(batch, SteeringSettings(attributed="spans"), seed)
        for row, pos in drawn.at.nonzero().tolist():
            assert (row * batch.tokens.shape[1] + pos, int(drawn.concept[row])) in spans
        few = ALL.masked_fill(torch.arange(7) > 2, torch.nan)
        limited = draw_steering(batch, draws, SteeringSettings(), few, seed, 0, slice(0, 6), 6)
        assert int(limited.concept.max()) <= 2
    assert pool_of(7, 10, 0, 0) == list(range(7))
    assert len(set(pool_of(1000, 64, 0, 3))) == 64
    assert pool_of(1000, 64, 0, 3) != pool_of(1000, 64, 0, 4)


def test_a_concept_is_injected_at_masked_tokens_of_chunks_that_carry_it(tiny_batch: Batch) -> None:
    steering = SteeringSettings(weakest=0.2, strongest=0.6)
    for seed in range(5):
        batch = tiny_batch(rows=6, seed=seed)
        draws, drawn = _drawn(batch, steering, seed)
        pairs = set(zip(batch.label_chunk.tolist(), batch.label_concept.tolist(), strict=True))
        assert not bool((drawn.at & ~draws.predicted).any())
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
    lifted = torch.randint(41, (7, 5), generator=torch.Generator().manual_seed(2)).sort(1).values
    lifted[:, 1:][lifted[:, 1:] == lifted[:, :-1]] = -1
    states = forward(model, batch, draws, PLAN, LossSettings())
    found = steering_terms(model, draws, drawn, states, lifted, steering)
    respond, express, rows = 0.0, 0.0, 0
    logits = torch.zeros(*draws.predicted.shape, 41, dtype=torch.float64)
    logits[draws.predicted] = states.logits_n.detach()
    z = model.known_head.logits(states.hidden, slice(0, 7)).detach()
    for row in range(6):
        positions = drawn.at[row].nonzero()[:, 0]
        if len(positions):
            c = int(drawn.concept[row])
            respond -= float(torch.log(z[row, positions, c].sigmoid()).sum())
            mass = float(logits[row, positions].softmax(-1)[:, lifted[c][lifted[c] >= 0]].sum(-1).mean())
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
    lifted = torch.arange(41).repeat(7, 1)
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
    found = steering_terms(model, draws, drawn, deaf, torch.arange(41).repeat(7, 1), SteeringSettings())
    (grad,) = torch.autograd.grad(found["respond"].total, hidden)
    assert found["respond"].total > 200 * drawn.at.sum()
    torch.testing.assert_close(grad[drawn.at].norm(dim=-1), torch.full((int(drawn.at.sum()),), 100.0).double())


def test_calibration_is_stronger_for_a_larger_target(tiny_model: Model, tiny_packed: PackedCorpus) -> None:
    model = tiny_model(dtype=torch.float32)
    weak, strong = (calibrated_scales(model, tiny_packed, 1, target, range(7), 0) for target in (0.01, 0.02))
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
    monkeypatch.setattr("vitrail.train.steering_probe._CONCEPTS_AT_ONCE", 2)
    assert deaf_share(model, tiny_packed, 1, scales, 0) == whole


def test_a_stronger_injection_puts_more_on_its_tokens(tiny_model: Model, tiny_packed: PackedCorpus) -> None:
    """With tied embeddings a direction along a token's row raises that token."""
    model = tiny_model()
    lifted = torch.arange(10, 17)[:, None]
    with torch.no_grad():
        model.get_parameter("known_head.concept_embedding.weight")[:7] = model.transformer.tok_emb.weight[10:17]
    strong, weak = (
        probe_steering(model, tiny_packed, 1, torch.full((7,), size, dtype=torch.float64), lifted, 0)
        for size in (50.0, 0.5)
    )
    assert strong["steering_mass"] > weak["steering_mass"] > weak["steering_mass_plain"]
    assert strong["steering_mass_plain"] == weak["steering_mass_plain"]
