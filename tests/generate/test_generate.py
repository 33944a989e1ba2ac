"""What generation owes: cached = uncached, n together = n alone, seeds, limits, and a complete trace."""

import copy
import json
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any, Literal

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from vitrail.errors import ArtifactError, ConfigError, NonFiniteLogits, PromptTooLong
from vitrail.generate import Commit, Request, Sampling, Trace, batch_for, generate, run
from vitrail.generate.policies import Moment
from vitrail.generate.sampling import banned_ids, draw_tokens, log_confidence, penalise_repetition
from vitrail.generate.step import CONFIDENCE_DIGITS
from vitrail.model import BlockCache, ConceptLM, Injection, ModelConfig, init_model
from vitrail.steer import SteerPlan, deployed_logits

V, D, BLOCK, LENGTH, LAYERS = 37, 12, 5, 33, 3
PAD, BOS, EOS, EOC, MASK = 32, 33, 34, 35, 36


@cache
def tiny_model(seed: int = 0, *, use_residual: bool = True, norm_order: Literal["pre", "post"] = "pre") -> ConceptLM:
    """fp64, so that logits never tie by rounding and equalities across batch sizes are exact statements."""
    config = ModelConfig(
        vocab_size=V,
        num_layers=LAYERS,
        num_heads=2,
        num_kv_heads=1,
        width=D,
        max_length=LENGTH,
        block=BLOCK,
        norm_order=norm_order,
        use_residual=use_residual,
        num_concepts=7,
        num_discovered=11,
        discovered_rank=3,
        top_k_known=3,
        top_k_known_features=3,
        top_k_discovered=4,
        pad_id=PAD,
        bos_id=BOS,
        eos_id=EOS,
        eoc_id=EOC,
        mask_id=MASK,
    )
    model = init_model(config, seed).double().eval()
    with torch.no_grad():
        # Larger embeddings than at the start of training: choices then differ between positions.
        model.transformer.tok_emb.weight.mul_(20)
    return model


def plan_of(seed: int, layer: int = 2) -> SteerPlan:
    generator = torch.Generator().manual_seed(seed)
    direction = torch.randn(D, generator=generator, dtype=torch.float64)
    penalty = torch.rand(V, generator=generator, dtype=torch.float64) if seed % 2 else None
    return SteerPlan(direction, layer, penalty, f"#{seed}=+1.0")


def uncached(model: ConceptLM, prompt: Sequence[int], sampling: Sampling, plan: SteerPlan | None) -> list[int]:
    """The slow twin: the whole row through the network at every step; gives the filled positions in order."""
    generator = torch.Generator().manual_seed(sampling.seed)
    row, stop = torch.tensor([*prompt] + [MASK] * sampling.max_new_tokens), len(prompt) + sampling.max_new_tokens
    wanted, blocks = (row == MASK).nonzero()[:, 0], list[int]()
    given = torch.zeros(stop, dtype=torch.bool)
    given[: len(prompt)] = row[: len(prompt)] != MASK
    while (row == MASK).any():
        block = int((row == MASK).nonzero()[0]) // BLOCK
        end = min((block + 1) * BLOCK, LENGTH)
        ids = torch.cat([row, row.new_full((max(0, end - stop),), MASK)])[None, :end]
        logits = _logits(model, ids, plan)
        if sampling.guidance:
            blind = ids.clone()
            blind[0, : len(given[:end])][given[:end]] = MASK
            free = _logits(model, blind, plan)
            logits = free + (1 + sampling.guidance) * (logits - free)
        scores = logits - (0 if plan is None or plan.logit_penalty is None else plan.logit_penalty)
        seen = torch.zeros(V, dtype=torch.bool).index_fill(0, row, True).expand(end, V)
        scores = penalise_repetition(scores, seen, torch.full((end, 1), sampling.repetition_penalty).double())
        scores[:, banned_ids(model.config, sampling)] = -torch.inf
        places = ((ids[0] == MASK) & (torch.arange(end) < stop)).nonzero()[:, 0]
        if block not in blocks:
            opened = len(places)
        moment = Moment(blocks.count(block), opened)
        blocks.append(block)
        confidence = [round(value, CONFIDENCE_DIGITS) for value in log_confidence(scores[places]).tolist()]
        best = places[sampling.policy(confidence, moment)]
        count = len(best)
        uniform = torch.rand(count, generator=generator, dtype=torch.float64)
        heat, top_p = (torch.full((count,), value).double() for value in (sampling.temperature, sampling.top_p))
        row[best] = draw_tokens(scores[best], heat, top_p, torch.full((count,), sampling.top_k or V), uniform)
    return row[wanted].tolist()


def _logits(model: ConceptLM, ids: Tensor, plan: SteerPlan | None) -> Tensor:
    injection = None if plan is None else Injection(plan.direction[None], ids == MASK, plan.layer)
    return deployed_logits(model, model.hidden(ids, injection=injection)[0])


PROMPTS = st.lists(st.integers(0, PAD - 1), max_size=12)
WITH_GAPS = st.lists(st.one_of(st.integers(0, PAD - 1), st.just(MASK)), max_size=22)
DRAWS = st.one_of(
    st.just({"temperature": 0.0}),
    st.fixed_dictionaries(
        {
            "temperature": st.sampled_from([0.7, 1.5]),
            "top_p": st.sampled_from([0.6, 1.0]),
            "top_k": st.sampled_from([None, 1, 5]),
        }
    ),
)
COUNTS = st.one_of(
    st.builds(lambda n: {"tokens_per_step": n}, st.integers(1, 4)),
    st.builds(lambda n: {"steps_per_block": n}, st.integers(1, 7)),
    st.builds(lambda p: {"threshold": p}, st.sampled_from([0.05, 0.3, 1.0])),
    st.builds(lambda f: {"factor": f}, st.sampled_from([0.5, 1.5, 3.0])),
    st.builds(lambda n: {"order": "left_to_right", "tokens_per_step": n}, st.integers(1, 3)),
)


def sampling_of(draw: dict[str, Any], count: dict[str, Any], **rest: Any) -> Sampling:
    return Sampling(**draw, **count, **rest)


SAMPLINGS = st.builds(
    sampling_of,
    DRAWS,
    COUNTS,
    max_new_tokens=st.integers(1, 9),
    repetition_penalty=st.sampled_from([1.0, 1.3]),
    guidance=st.sampled_from([0.0, 0.0, 1.5]),
    seed=st.integers(0, 9),
)
PLANS = st.one_of(st.none(), st.builds(plan_of, st.integers(0, 9), st.integers(0, LAYERS)))
REQUESTS = st.lists(st.tuples(st.one_of(PROMPTS, WITH_GAPS), SAMPLINGS, PLANS), min_size=2, max_size=4)


@settings(deadline=None, max_examples=10)
@given(st.one_of(PROMPTS, WITH_GAPS), SAMPLINGS, PLANS, st.booleans(), st.sampled_from(["pre", "post"]))
def test_cached_is_uncached_token_for_token(
    prompt: list[int],
    sampling: Sampling,
    plan: SteerPlan | None,
    use_residual: bool,
    norm_order: Literal["pre", "post"],
) -> None:
    model = tiny_model(use_residual=use_residual, norm_order=norm_order)
    (trace,) = generate(model, [prompt], sampling, [plan])
    with torch.no_grad():
        assert list(trace.token_ids) == uncached(model, prompt, sampling, plan)


@settings(deadline=None, max_examples=10)
@given(REQUESTS)
def test_together_is_alone_token_for_token(requests: list[tuple[list[int], Sampling, SteerPlan | None]]) -> None:
    model = tiny_model()
    prompts, samplings, plans = zip(*requests, strict=True)
    together = generate(model, prompts, samplings, plans)
    for trace, (prompt, sampling, plan) in zip(together, requests, strict=True):
        (alone,) = generate(model, [prompt], [sampling], [plan])
        assert trace.token_ids == alone.token_ids
        assert [c.positions for c in trace.commits] == [c.positions for c in alone.commits]
        assert trace.plan == alone.plan


def test_together_is_alone_in_fp32_on_a_fixed_draw() -> None:
    model = init_model(tiny_model().config, 3).eval()
    with torch.no_grad():
        model.transformer.tok_emb.weight.mul_(20)
    prompts = [[n] * n for n in range(9)]
    samplings = [Sampling(max_new_tokens=13, temperature=0.8, seed=n, tokens_per_step=2) for n in range(9)]
    together = generate(model, prompts, samplings)
    alone = [generate(model, [p], s)[0] for p, s in zip(prompts, samplings, strict=True)]
    assert [t.token_ids for t in together] == [t.token_ids for t in alone]


@settings(deadline=None, max_examples=6)
@given(PROMPTS, SAMPLINGS, PLANS)
def test_each_snapshot_gives_the_committed_logits_again(
    prompt: list[int], sampling: Sampling, plan: SteerPlan | None
) -> None:
    """The trace suffices to rebuild the forward in which each token was chosen."""
    model = tiny_model()
    (trace,) = generate(model, [prompt], sampling, [plan])
    for number, commit in enumerate(trace.commits):
        ids = trace.snapshot(number)[None]
        assert len(ids[0]) == min((commit.positions[0] // BLOCK + 1) * BLOCK, LENGTH)
        injection = None if plan is None else Injection(plan.direction[None], ids == MASK, plan.layer)
        with torch.no_grad():
            logits = deployed_logits(model, model.hidden(ids, injection=injection)[0])[list(commit.positions)]
        picked = logits.gather(1, torch.tensor(commit.tokens)[:, None])[:, 0]
        torch.testing.assert_close(picked, torch.tensor(commit.logits, dtype=torch.float64), atol=1e-10, rtol=0)
        expected = picked - logits.logsumexp(-1)
        torch.testing.assert_close(expected, torch.tensor(commit.logprobs, dtype=torch.float64), atol=1e-10, rtol=0)
        assert (ids[0, list(commit.positions)] == MASK).all()
    filled = dict(pair for c in trace.commits for pair in zip(c.positions, c.tokens, strict=True))
    assert [filled[pos] for pos in sorted(filled)] == list(trace.token_ids)


def test_a_step_commits_tokens_per_step_inside_one_block() -> None:
    (trace,) = generate(tiny_model(), [[1, 2, 3]], Sampling(max_new_tokens=12, tokens_per_step=3))
    assert [len(c.positions) for c in trace.commits] == [2, 3, 2, 3, 2]
    assert all(len({pos // BLOCK for pos in c.positions}) == 1 for c in trace.commits)
    assert [c.step for c in trace.commits] == [0, 1, 2, 3, 4]


def test_commits_stream_in_the_order_of_the_trace_with_their_request() -> None:
    seen: list[Commit] = []
    traces = generate(tiny_model(), [[1], [2, 3]], Sampling(max_new_tokens=9), on_commit=seen.append)
    for number, trace in enumerate(traces):
        assert tuple(c for c in seen if c.request == number) == trace.commits


def test_seeds_decide_and_repeat() -> None:
    hot = Sampling(max_new_tokens=16, temperature=2.0)
    texts = [generate(tiny_model(), [[5]], hot.model_copy(update={"seed": s}))[0].token_ids for s in (1, 1, 2)]
    assert texts[0] == texts[1] != texts[2]


def test_a_stop_id_ends_the_text_and_is_kept() -> None:
    free = generate(tiny_model(), [[5, 6]], Sampling(max_new_tokens=20))[0]
    stop = free.token_ids[7]
    (trace,) = generate(tiny_model(), [[5, 6]], Sampling(max_new_tokens=20, stop_ids=(stop,)))
    assert trace.token_ids == free.token_ids[: free.token_ids.index(stop) + 1]
    assert len(trace.places) == len(trace.token_ids)
    for pos, (number, place) in enumerate(trace.places):
        assert trace.commits[number].positions[place] == pos + 2
        assert trace.commits[number].tokens[place] == trace.token_ids[pos]


@pytest.mark.parametrize(("allowed", "special"), [(("eoc",), EOC), (("eos",), EOS)])
def test_special_tokens_are_sampled_only_where_allowed(allowed: tuple[str, ...], special: int) -> None:
    penalty = torch.zeros(V, dtype=torch.float64)
    penalty[[PAD, BOS, MASK]] = -2000.0
    penalty[[EOS, EOC]] = -1000.0
    penalty[special] = -1001.0
    plan = SteerPlan(torch.zeros(D, dtype=torch.float64), 1, penalty, "")
    sampling = Sampling.parse({"max_new_tokens": 12, "allowed_specials": allowed})
    (free,) = generate(tiny_model(), [[1]], Sampling(max_new_tokens=12), [plan])
    assert max(free.token_ids) < PAD
    (trace,) = generate(tiny_model(), [[1]], sampling, [plan])
    assert set(trace.token_ids) == {special}
    assert len(trace.token_ids) == (12 if special == EOC else 1)


def test_a_trace_survives_saving(tmp_path: Path) -> None:
    prompts, plans = [[1, 2], [], [7] * 9], [plan_of(1), plan_of(2), None]
    traces = generate(tiny_model(), prompts, Sampling(temperature=1.0, max_new_tokens=9), plans, model_id="abc")
    for number, trace in enumerate(traces):
        manifest = trace.save(tmp_path / str(number))
        assert manifest.kind == "trace"
        assert Trace.load(tmp_path / str(number)) == trace
        assert replace(trace, model_id="").save(tmp_path / "again").id != manifest.id


def test_a_damaged_trace_is_refused_in_one_line(tmp_path: Path) -> None:
    (trace,) = generate(tiny_model(), [[1]], Sampling(max_new_tokens=3))
    trace.save(tmp_path / "trace")
    file = tmp_path / "trace" / "trace.safetensors"
    file.write_bytes(file.read_bytes()[:-20])
    with pytest.raises(ArtifactError, match="damaged trace"):
        Trace.load(tmp_path / "trace")


def test_a_prompt_that_does_not_fit_is_refused_with_both_lengths() -> None:
    with pytest.raises(PromptTooLong, match=f"prompt 1: {LENGTH} tokens do not fit the context of {LENGTH} tokens"):
        generate(tiny_model(), [[1], [1] * LENGTH], Sampling(max_new_tokens=1))
    with pytest.raises(PromptTooLong, match=r"30 tokens and 4 new ones exceed .* at most 3 new tokens"):
        generate(tiny_model(), [[1] * 30], Sampling(max_new_tokens=4))
    assert len(generate(tiny_model(), [[1] * 30], Sampling(max_new_tokens=3))[0].token_ids) == 3


def test_a_wrong_id_in_a_prompt_is_named() -> None:
    with pytest.raises(ConfigError, match="id 37 at position 1 is outside the vocabulary of 37"):
        generate(tiny_model(), [[1, V]], Sampling(max_new_tokens=1))


def test_no_prompts_no_traces() -> None:
    assert generate(tiny_model(), [], Sampling()) == []


def test_the_nucleus_keeps_what_its_mass_needs_and_the_draw_inverts_it() -> None:
    scores = torch.tensor([[0.5, 0.3, 0.2]]).log().double().expand(4, 3)
    uniform = torch.tensor([0.0, 0.6, 0.63, 0.99]).double()
    heat, top_p = torch.ones(4).double(), torch.tensor([0.7, 0.7, 0.7, 0.49]).double()
    # Mass 0.5 + 0.3 is kept: 0.6 · 0.8 < 0.5 <= 0.63 · 0.8. Below 0.5 the first alone is kept.
    assert draw_tokens(scores, heat, top_p, torch.full((4,), 3), uniform).tolist() == [0, 0, 1, 0]


def test_a_draw_never_lands_behind_the_last_possible_token() -> None:
    """In fp32 the largest uniform numbers round to 1, and the draw went to a banned id (the mask, for one)."""
    scores = torch.tensor([[0.0, 1.0, -torch.inf, -torch.inf]])
    almost_one = torch.tensor([1 - 2**-53], dtype=torch.float64)
    heat, top_p = torch.ones(1).double(), torch.tensor([1.0]).double()
    assert draw_tokens(scores, heat, top_p, torch.tensor([4]), almost_one).tolist() == [1]


def test_a_cache_of_selected_rows_continues_each_row() -> None:
    model, rows = tiny_model(), torch.tensor([2, 0, 2])
    ids = torch.randint(0, PAD, (3, 3 * BLOCK), generator=torch.Generator().manual_seed(0))
    whole, parts = BlockCache(), [BlockCache(), BlockCache()]
    model.extend_cache(ids[:, : 2 * BLOCK], whole)
    model.extend_cache(ids[:1, : 2 * BLOCK], parts[0])
    model.extend_cache(ids[1:, : 2 * BLOCK], parts[1])
    with torch.no_grad():
        expected: Tensor = model.hidden(ids)[rows, 2 * BLOCK :]
        for cached in (whole, BlockCache.join(parts)):
            hidden = model.hidden(ids[rows, 2 * BLOCK :], cache=cached.select(rows))
            torch.testing.assert_close(hidden, expected, atol=1e-12, rtol=0)


@pytest.mark.parametrize(
    "changes",
    [
        {"token_ids": [1, 2, 3]},
        {"prompt_ids": list(range(20))},
        {"commits": []},
        {"commits": [{"step": 0, "positions": [999], "tokens": [1], "row_length": 8}]},
    ],
)
def test_a_trace_that_contradicts_itself_is_refused(tmp_path: Path, changes: dict[str, object]) -> None:
    (trace,) = generate(tiny_model(), [[1]], Sampling(max_new_tokens=3))
    trace.save(tmp_path / "trace")
    file = tmp_path / "trace" / "trace.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | changes))
    with pytest.raises(ArtifactError, match="damaged trace"):
        Trace.load(tmp_path / "trace")


def test_requests_join_and_leave_between_blocks() -> None:
    """Each as if alone, whenever it came: the tokens of a batch that changes all the time."""
    model = tiny_model()
    prompts = [[n] * (3 * n % 11) for n in range(8)]
    samplings = [Sampling(max_new_tokens=3 + 5 * n % 16, temperature=0.9, seed=n) for n in range(8)]
    waiting = [Request(n, model.config, prompts[n], samplings[n], plan_of(n) if n % 3 else None) for n in range(8)]
    batch, done = batch_for(model, max_requests=3), list[Request]()
    with torch.inference_mode():
        while waiting or batch.requests:
            count = min(1 + len(done) % 2, batch.room)
            batch.join(waiting[:count])
            waiting = waiting[count:]
            assert len(batch.requests) <= 3
            done += batch.advance()
    assert sorted(request.number for request in done) == list(range(8))
    for request in done:
        n = request.number
        (alone,) = generate(model, [prompts[n]], samplings[n], [plan_of(n) if n % 3 else None])
        assert request.trace("").token_ids == alone.token_ids


def test_a_request_that_is_cut_ends_there_and_leaves_others_alone() -> None:
    model = tiny_model()
    samplings = [Sampling(max_new_tokens=14, temperature=1.0, seed=n) for n in range(3)]
    requests = [Request(n, model.config, [n, n], samplings[n], None) for n in range(3)]
    batch = batch_for(model)

    def stop_early(commit: Commit) -> None:
        if commit.request == 1 and commit.step == 3:
            requests[1].cut(4)
        if commit.request == 2:
            requests[2].cut(0)

    with torch.inference_mode():
        batch.join(requests)
        while batch.requests:
            batch.advance(stop_early)
    alone = generate(model, [[n, n] for n in range(3)], samplings)
    assert requests[0].trace("").token_ids == alone[0].token_ids
    assert requests[1].trace("").token_ids == alone[1].token_ids[:2]
    assert len(requests[1].commits) < len(alone[1].commits)
    assert len(requests[2].commits) == 1, "an abandoned request stops at the next step"


def test_alternatives_are_the_likeliest_and_change_nothing() -> None:
    model, sampling = tiny_model(), Sampling(max_new_tokens=9, temperature=1.0, seed=4)
    (plain,) = generate(model, [[1, 2]], sampling)
    (told,) = generate(model, [[1, 2]], sampling.model_copy(update={"num_alternatives": 3}))
    assert told.token_ids == plain.token_ids
    for number, commit in enumerate(told.commits):
        logprobs = deployed_logits(model, model.hidden(told.snapshot(number)[None])[0]).log_softmax(-1)
        for pos, token, logprob, others in zip(
            commit.positions, commit.tokens, commit.logprobs, commit.alternatives, strict=True
        ):
            values, ids = logprobs[pos].topk(3)
            assert [token_id for token_id, _ in others] == ids.tolist()
            assert [value for _, value in others] == pytest.approx(values.tolist(), abs=1e-9)
            assert logprob == pytest.approx(logprobs[pos, token].item(), abs=1e-9)
    assert all(commit.alternatives == () for commit in plain.commits)


@pytest.mark.parametrize("temperature", [1e-7, 1e-40, 1e-161])
def test_a_temperature_near_zero_takes_the_most_likely_token(temperature: float) -> None:
    """A request for 1e-161 divided by zero in fp32; the draw fell behind the vocabulary and broke the engine."""
    cold, frozen = (Sampling(max_new_tokens=9, temperature=value, seed=1) for value in (temperature, 0.0))
    (drawn,), (likely,) = (generate(tiny_model(), [[5, 7]], sampling) for sampling in (cold, frozen))
    assert drawn.token_ids == likely.token_ids


def test_the_active_concepts_are_recorded_and_change_nothing(tmp_path: Path) -> None:
    model, sampling = tiny_model(), Sampling(max_new_tokens=9, temperature=1.0, seed=4, tokens_per_step=2)
    (plain,) = generate(model, [[1, 2]], sampling)
    (told,) = generate(model, [[1, 2]], sampling.model_copy(update={"num_concepts": 2, "num_alternatives": 3}))
    assert told.token_ids == plain.token_ids
    for number, commit in enumerate(told.commits):
        out = model(told.snapshot(number)[None])
        for pos, known, discovered in zip(commit.positions, commit.known, commit.discovered, strict=True):
            assert [concept for concept, _ in known] == out.known_ids[0, pos, :2].tolist()
            weights = out.discovered_logits[0, pos, :2].sigmoid().tolist()
            assert [weight for _, weight in discovered] == pytest.approx(weights, abs=1e-9)
    told.save(tmp_path / "trace")
    assert Trace.load(tmp_path / "trace") == told


def test_one_request_that_fails_leaves_the_others_alone() -> None:
    model = copy.deepcopy(tiny_model())
    with torch.no_grad():
        model.transformer.tok_emb.weight[31] = torch.nan  # the row of the prompt and of its logit
    model.transformer.lm_head.weight = torch.nn.Parameter(tiny_model().transformer.lm_head.weight.detach().clone())
    requests = [Request(n, model.config, [31 if n == 1 else n], Sampling(max_new_tokens=7), None) for n in range(3)]
    run(model, requests)
    assert str(requests[1].failure) == (
        "prompt 1: the model's logits at position 1 are not finite (step 0); are its weights damaged?"
    )
    (alone,) = generate(tiny_model(), [[2]], Sampling(max_new_tokens=7))
    assert requests[2].failure is None
    assert requests[2].trace("").token_ids == alone.token_ids
    with pytest.raises(NonFiniteLogits, match="not finite"):
        generate(model, [[1], [31]], Sampling(max_new_tokens=7))


def test_gaps_are_filled_and_the_given_text_stays() -> None:
    row = [1, 2, MASK, 4, MASK, MASK, 7, 8, 9, 10, 11, 12, MASK, 14]
    (trace,) = generate(tiny_model(), [row], Sampling(max_new_tokens=3))
    assert trace.positions == (2, 4, 5, 12, 14, 15, 16)
    assert all(given in (MASK, filled) for given, filled in zip(row, trace.row, strict=False))
    assert MASK not in trace.row
    assert len(trace.row) == len(row) + 3
    (only,) = generate(tiny_model(), [row], Sampling(max_new_tokens=0))
    assert len(only.row) == len(row)
    assert only.token_ids == trace.token_ids[:4]


def test_without_gaps_and_new_tokens_there_is_nothing_to_write() -> None:
    with pytest.raises(ConfigError, match="max_new_tokens is 0 and it has no gaps"):
        generate(tiny_model(), [[1, 2]], Sampling(max_new_tokens=0))
    with pytest.raises(ConfigError, match="gaps are filled on the attention grid"):
        generate(tiny_model(), [[1, MASK]], Sampling(max_new_tokens=3, grid="prompt"))


def test_in_batches_of_one_shape_a_request_is_bitwise_the_same_whatever_its_companions() -> None:
    """fp32: equal batch size, prefix and window run the same kernels, row by row."""
    model = init_model(tiny_model().config, 3).eval()
    sampling = Sampling(max_new_tokens=BLOCK + 2, tokens_per_step=2, temperature=0.8, seed=1)
    found = []
    for n in (4, 9, 13):
        steered = SteerPlan(plan_of(n).direction.float(), 2, None, f"#{n}=+1.0")
        prompts = [[1, 2, 3], [n, n + 1, n + 2], [2 * n] * 3]
        found.append(generate(model, prompts, sampling, [None, steered, None])[0])
    assert found[0].commits == found[1].commits == found[2].commits
