"""Integrated Gradients against finite sums, and what must hold of every attribution."""

from collections.abc import Callable

import pytest
import torch

from vitrail.explain import InputScores, Snapshot, integrated_gradients, score_inputs, snapshots_of
from vitrail.generate import Trace
from vitrail.model import ConceptLM, Injection
from vitrail.steer import SteerPlan

CPU = torch.device("cpu")


def logits_at(model: ConceptLM, snapshot: Snapshot, ends: torch.Tensor, plan: SteerPlan | None) -> torch.Tensor:
    """[B] the first target's logit where input t has gone `ends[b, t]` of its way; the injection is the last."""
    embeddings = model.embed(snapshot.ids[None])
    mask = model.embed(torch.full_like(snapshot.ids[None], model.config.mask_id))
    points = mask + ends[:, :-1, None] * (embeddings - mask)
    injection = None
    if plan is not None:
        is_masked = (snapshot.ids == model.config.mask_id).expand(len(ends), -1)
        injection = Injection(vector=ends[:, -1:] * plan.direction, mask=is_masked, layer=plan.layer)
    out = model.decompose(model.hidden(embeddings=points, injection=injection))
    return out.logits[:, snapshot.reads[0], snapshot.token_ids[0]]


def brute_force(model: ConceptLM, snapshot: Snapshot, plan: SteerPlan | None, num_steps: int) -> torch.Tensor:
    """[T + 1] scores: midpoint sums of central differences, each input nudged by itself, in fp64."""
    size = len(snapshot.ids) + 1
    nudges = 1e-5 * torch.eye(size, dtype=torch.float64)
    scores = torch.zeros(size, dtype=torch.float64)
    for step in range(num_steps):
        s = (step + 0.5) / num_steps
        logits = logits_at(model, snapshot, torch.cat([s + nudges, s - nudges]), plan)
        scores += (logits[:size] - logits[size:]) / 2e-5 / num_steps
    return scores


@pytest.mark.parametrize(("is_steered", "use_residual"), [(False, True), (True, True), (True, False)])
def test_scores_are_the_integral_of_derivatives(
    is_steered: bool,
    use_residual: bool,
    make_model: Callable[..., ConceptLM],
    make_plan: Callable[..., SteerPlan],
    make_trace: Callable[..., Trace],
) -> None:
    # Without top-k the function is smooth, also where the logits come from the concept heads alone.
    smooth = {"top_k_known": None, "top_k_known_features": None, "apply_top_k_to_discovered": False}
    model = make_model(2, torch.float64, use_residual=use_residual, num_layers=2, **smooth)
    plan = make_plan(model) if is_steered else None
    snapshot = snapshots_of(make_trace(model, plan, max_new_tokens=5), CPU)[1]
    first = torch.zeros(1, len(snapshot.places), dtype=torch.float64)
    first[0, 0] = 1.0
    ours = integrated_gradients(model, snapshot, first, plan, num_steps=48)
    expected = brute_force(model, snapshot, plan, num_steps=100)
    found = torch.cat([ours.tokens[0], ours.injection])
    # The midpoint sum is the coarser of the two: its error falls with the square of its steps.
    torch.testing.assert_close(found, expected, atol=5e-4 * float(expected.abs().sum()), rtol=0)
    assert expected.abs().max() > 0.1, "an attribution near zero could not tell right from wrong"


@pytest.mark.parametrize("is_steered", [False, True])
def test_scores_sum_to_the_change(
    is_steered: bool,
    make_model: Callable[..., ConceptLM],
    make_plan: Callable[..., SteerPlan],
    make_trace: Callable[..., Trace],
) -> None:
    model = make_model(3, torch.float64)
    plan = make_plan(model) if is_steered else None
    for snapshot in snapshots_of(make_trace(model, plan), CPU):
        scores = integrated_gradients(model, snapshot, torch.eye(len(snapshot.places)), plan, num_steps=64)
        total = scores.tokens.sum(1) + scores.injection
        torch.testing.assert_close(total, scores.change, atol=2e-3, rtol=0)
        assert bool((scores.injection != 0).all()) == is_steered


def test_change_starts_from_the_recorded_logit(
    model: ConceptLM, make_plan: Callable[..., SteerPlan], make_trace: Callable[..., Trace]
) -> None:
    """The end of the path is the prediction that was made: the logit in the trace."""
    plan = make_plan(model)
    for snapshot in snapshots_of(make_trace(model, plan), CPU):
        scores = integrated_gradients(model, snapshot, torch.eye(len(snapshot.places)), plan, num_steps=1)
        nothing = torch.full_like(snapshot.ids[None], model.config.mask_id)
        baseline = model(nothing).logits[0, snapshot.reads, snapshot.token_ids]
        torch.testing.assert_close(scores.change + baseline, snapshot.logits.to(scores.change), atol=1e-4, rtol=0)


def test_masked_positions_score_zero(model: ConceptLM, make_trace: Callable[..., Trace]) -> None:
    for snapshot in snapshots_of(make_trace(model), CPU):
        scores = integrated_gradients(model, snapshot, torch.eye(len(snapshot.places)))
        is_masked = snapshot.ids == model.config.mask_id
        assert not scores.tokens[:, is_masked].any()
        assert scores.tokens[:, ~is_masked].any(1).all()


@pytest.mark.parametrize("is_steered", [False, True])
def test_summed_targets_equal_the_sum_over_tokens(
    is_steered: bool,
    make_model: Callable[..., ConceptLM],
    make_plan: Callable[..., SteerPlan],
    make_trace: Callable[..., Trace],
) -> None:
    model = make_model(4, torch.float64)
    plan = make_plan(model) if is_steered else None
    trace = make_trace(model, plan, tokens_per_step=3)
    spans = [(0, 5), (5, 13)]
    snapshots = snapshots_of(trace, CPU)
    chunks, tokens = score_inputs(model, snapshots, spans, plan, 8, per_token=True)
    summed, nothing = score_inputs(model, snapshots, spans, plan, 8, per_token=False)
    assert nothing is None
    assert tokens is not None
    for part in ("tokens", "injection", "change"):
        by_token = torch.stack([getattr(tokens, part)[start:stop].sum(0) for start, stop in spans])
        torch.testing.assert_close(getattr(chunks, part), by_token, atol=1e-9, rtol=0)
        torch.testing.assert_close(getattr(summed, part), by_token, atol=1e-9, rtol=0)


def test_slabs_do_not_change_scores(
    model: ConceptLM, monkeypatch: pytest.MonkeyPatch, make_trace: Callable[..., Trace]
) -> None:
    snapshot = snapshots_of(make_trace(model), CPU)[2]

    def scores() -> InputScores:
        return integrated_gradients(model, snapshot, torch.eye(len(snapshot.places)))

    whole = scores()
    monkeypatch.setattr("vitrail.explain.inputs.PASS_TOKENS", 3 * len(snapshot.ids))
    torch.testing.assert_close(scores().tokens, whole.tokens, atol=1e-5, rtol=0)
