"""An `ar` model's generation: cached = uncached, together = alone, steering at continued positions, its trace."""

from collections.abc import Sequence
from functools import cache
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from vitrail.errors import ConfigError
from vitrail.explain import integrated_gradients, snapshots_of, target_hidden
from vitrail.generate import Request, Sampling, Trace, batch_for, generate
from vitrail.generate.sampling import banned_ids, draw_tokens
from vitrail.model import ConceptLM, Injection, ModelConfig, init_model
from vitrail.steer import SteerPlan, deployed_logits

V, D, LENGTH, LAYERS = 37, 12, 33, 3


@cache
def tiny_model(use_residual: bool = True) -> ConceptLM:
    config = ModelConfig(
        backbone="ar",
        vocab_size=V,
        num_layers=LAYERS,
        num_heads=2,
        num_kv_heads=1,
        width=D,
        max_length=LENGTH,
        block=5,
        use_residual=use_residual,
        num_concepts=7,
        num_discovered=11,
        discovered_rank=3,
        top_k_known=3,
        top_k_known_features=3,
        top_k_discovered=4,
        pad_id=32,
        bos_id=33,
        eos_id=34,
        eoc_id=35,
        mask_id=36,
    )
    model = init_model(config, 0).double().eval()
    with torch.no_grad():
        model.transformer.tok_emb.weight.mul_(20)
    return model


def plan_of(seed: int, layer: int) -> SteerPlan:
    direction = torch.randn(D, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return SteerPlan(direction, layer, None, f"#{seed}=+1.0")


def uncached(model: ConceptLM, prompt: Sequence[int], sampling: Sampling, plan: SteerPlan | None) -> list[int]:
    """The slow twin: the whole text through the network for each token."""
    generator, row = torch.Generator().manual_seed(sampling.seed), list(prompt)
    for _ in range(sampling.max_new_tokens):
        ids = torch.tensor([row])
        is_continued = torch.arange(len(row))[None] >= len(prompt) - 1
        injection = None if plan is None else Injection(plan.direction[None], is_continued, plan.layer)
        scores = deployed_logits(model, model.hidden(ids, injection=injection)[0, -1:])
        scores[:, banned_ids(model.config, sampling)] = -torch.inf
        uniform = torch.rand(1, generator=generator, dtype=torch.float64)
        heat, top_p = torch.tensor([sampling.temperature]).double(), torch.tensor([sampling.top_p]).double()
        row.append(int(draw_tokens(scores, heat, top_p, torch.tensor([V]), uniform)))
    return row[len(prompt) :]


PROMPTS = st.lists(st.integers(0, 31), min_size=1, max_size=11)
SAMPLINGS = st.builds(
    Sampling,
    max_new_tokens=st.integers(1, 9),
    temperature=st.sampled_from([0.0, 1.5]),
    seed=st.integers(0, 9),
)
PLANS = st.one_of(st.none(), st.builds(plan_of, st.integers(0, 9), st.integers(0, LAYERS)))


@settings(deadline=None, max_examples=10)
@given(PROMPTS, SAMPLINGS, PLANS, st.booleans())
def test_cached_is_uncached(prompt: list[int], sampling: Sampling, plan: SteerPlan | None, use_residual: bool) -> None:
    model = tiny_model(use_residual)
    (trace,) = generate(model, [prompt], sampling, [plan])
    with torch.no_grad():
        assert list(trace.token_ids) == uncached(model, prompt, sampling, plan)


@settings(deadline=None, max_examples=8)
@given(st.lists(st.tuples(PROMPTS, SAMPLINGS, PLANS), min_size=2, max_size=4))
def test_together_is_alone(requests: list[tuple[list[int], Sampling, SteerPlan | None]]) -> None:
    prompts, samplings, plans = zip(*requests, strict=True)
    together = generate(tiny_model(), prompts, samplings, plans)
    alone = [generate(tiny_model(), [prompt], [sampling], [plan])[0] for prompt, sampling, plan in requests]
    assert [trace.token_ids for trace in together] == [trace.token_ids for trace in alone]


def test_requests_join_and_leave_at_any_token() -> None:
    model = tiny_model()
    prompts = [[n + 1] * (1 + 3 * n % 7) for n in range(6)]
    samplings = [Sampling(max_new_tokens=2 + 5 * n % 9, temperature=0.9, seed=n) for n in range(6)]
    plans = [plan_of(n, n % 2) if n % 3 else None for n in range(6)]
    waiting = [Request(n, model.config, prompts[n], samplings[n], plans[n]) for n in range(6)]
    batch, done = batch_for(model, max_requests=3), list[Request]()
    with torch.inference_mode():
        while waiting or batch.requests:
            count = min(1, batch.room)
            batch.join(waiting[:count])
            waiting = waiting[count:]
            done += batch.advance()
    assert len(done) == 6
    for request in done:
        n = request.number
        (alone,) = generate(model, [prompts[n]], samplings[n], [plans[n]])
        assert request.trace("").token_ids == alone.token_ids


@settings(deadline=None, max_examples=6)
@given(PROMPTS, PLANS)
def test_the_trace_rebuilds_the_forward_of_each_token(prompt: list[int], plan: SteerPlan | None) -> None:
    model = tiny_model()
    (trace,) = generate(model, [prompt], Sampling(max_new_tokens=6, temperature=1.0), [plan])
    snapshots = snapshots_of(trace, torch.device("cpu"))
    assert [snapshot.ids.tolist() for snapshot in snapshots] == [
        [*prompt, *trace.token_ids[:n]] for n in range(len(trace.token_ids))
    ]
    logits = deployed_logits(model, target_hidden(model, snapshots, plan))
    chosen = logits.gather(1, torch.tensor(trace.token_ids)[:, None])[:, 0]
    recorded = torch.tensor([commit.logits[0] for commit in trace.commits], dtype=torch.float64)
    torch.testing.assert_close(chosen, recorded, atol=1e-10, rtol=0)


def test_input_scores_add_up_to_the_change_of_the_logit() -> None:
    model, plan = tiny_model(), plan_of(1, 1)
    (trace,) = generate(model, [[3, 4, 5]], Sampling(max_new_tokens=4), [plan])
    snapshot = snapshots_of(trace, torch.device("cpu"))[2]
    scores = integrated_gradients(model, snapshot, torch.ones(1, 1), plan, num_steps=64)
    total = scores.tokens.sum() + scores.injection.sum()
    assert float(total) == pytest.approx(float(scores.change[0]), rel=1e-2)


def test_a_trace_survives_saving(tmp_path: Path) -> None:
    (trace,) = generate(tiny_model(), [[1, 2]], Sampling(max_new_tokens=5, num_concepts=2), [plan_of(3, 1)])
    trace.save(tmp_path / "trace")
    assert Trace.load(tmp_path / "trace") == trace


@pytest.mark.parametrize(
    ("prompt", "options", "message"),
    [
        ([], {}, "prompt 0: it is empty"),
        ([1, 36, 2], {}, "an ar model cannot fill gaps"),
        ([1], {"threshold": 0.9}, "threshold has no effect on an ar model"),
        ([1], {"guidance": 1.0}, "guidance has no effect on an ar model"),
        ([1], {"grid": "prompt"}, "grid has no effect on an ar model"),
    ],
)
def test_what_an_ar_model_cannot_have_is_refused(prompt: list[int], options: dict[str, float], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        generate(tiny_model(), [prompt], Sampling.parse({"max_new_tokens": 3, **options}))
