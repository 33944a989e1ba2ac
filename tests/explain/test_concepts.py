"""Parts sum to the logit; what is listed and what is not sum to the part."""

from collections.abc import Callable

import pytest
import torch

from vitrail.explain import Decomposition, decompose_tokens, snapshots_of, target_hidden
from vitrail.generate import Trace
from vitrail.model import ConceptLM
from vitrail.steer import SteerPlan

CPU = torch.device("cpu")
TOLERANCE = {torch.float64: 1e-10, torch.float32: 1e-5, torch.bfloat16: 0.01}
"""Relative to the largest logit: bf16 keeps eight bits of a number."""


def decomposed(model: ConceptLM, trace: Trace) -> tuple[torch.Tensor, Decomposition]:
    hidden = target_hidden(model, snapshots_of(trace, CPU), trace.plan)
    return hidden, decompose_tokens(model, hidden, torch.tensor(trace.token_ids))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("use_residual", [True, False])
def test_parts_sum_to_the_generated_logit(
    dtype: torch.dtype,
    use_residual: bool,
    make_model: Callable[..., ConceptLM],
    make_plan: Callable[..., SteerPlan],
    make_trace: Callable[..., Trace],
) -> None:
    model = make_model(1, dtype, use_residual=use_residual)
    trace = make_trace(model, make_plan(model))
    _, parts = decomposed(model, trace)
    total = parts.known.total + parts.discovered.total + parts.residual
    recorded = [trace.commits[number].logits[place] for number, place in trace.places]
    atol = TOLERANCE[dtype] * float(parts.logit.abs().max())
    torch.testing.assert_close(total, parts.logit, atol=atol, rtol=0)
    torch.testing.assert_close(total, torch.tensor(recorded, dtype=total.dtype), atol=atol, rtol=0)
    assert parts.known.total.abs().mean() > 0.1
    assert bool(parts.residual.any()) == use_residual


def test_contributions_of_kept_concepts_are_the_whole_part(model: ConceptLM, trace: Trace) -> None:
    _, parts = decomposed(model, trace)
    for share in (parts.known, parts.discovered):
        torch.testing.assert_close(share.contribution.sum(1), share.total, atol=1e-4, rtol=0)
        expected = share.total - share.total_common
        torch.testing.assert_close(share.centred.sum(1), expected, atol=1e-4, rtol=0)


def test_centred_is_minus_the_mean_over_the_vocabulary(model: ConceptLM, trace: Trace) -> None:
    hidden, parts = decomposed(model, trace)
    every_word = model.known_head.rows(parts.known.ids) @ model.transformer.lm_head.weight.T
    contributions = parts.known.weights[:, :, None] * every_word
    chosen = contributions[torch.arange(len(hidden)), :, parts.token_ids]
    torch.testing.assert_close(parts.known.contribution, chosen, atol=1e-5, rtol=0)
    torch.testing.assert_close(parts.known.centred, chosen - contributions.mean(2), atol=1e-5, rtol=0)


def test_a_head_without_top_k_lists_its_best(
    make_model: Callable[..., ConceptLM], make_trace: Callable[..., Trace]
) -> None:
    model = make_model(1, top_k_known=None, top_k_known_features=None, use_discovered=False, num_discovered=None)
    hidden, parts = decomposed(model, make_trace(model))
    assert parts.known.ids.shape == (len(hidden), model.config.num_concepts)
    assert parts.discovered.ids.shape == (len(hidden), 0)
    torch.testing.assert_close(parts.known.contribution.sum(1), parts.known.total, atol=1e-4, rtol=0)


def test_states_are_those_of_the_snapshot_not_of_the_finished_text(model: ConceptLM, trace: Trace) -> None:
    hidden, _ = decomposed(model, trace)
    for place, (number, at) in enumerate(trace.places):
        row = trace.snapshot(number)
        position = trace.commits[number].positions[at]
        assert row[position] == model.config.mask_id
        torch.testing.assert_close(hidden[place], model.hidden(row[None])[0, position], atol=1e-5, rtol=0)
