"""The certificate passes for true parts and fails for false ones, even where their sum is right."""

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch

from vitrail.explain import (
    Certificate,
    Decomposition,
    HeadShare,
    certify,
    decompose_tokens,
    snapshots_of,
    target_hidden,
)
from vitrail.explain.snapshots import recorded
from vitrail.generate import Trace
from vitrail.model import ConceptLM
from vitrail.steer import SteerPlan

CPU = torch.device("cpu")


def claims(model: ConceptLM, trace: Trace) -> tuple[torch.Tensor, Decomposition, torch.Tensor]:
    snapshots = snapshots_of(trace, CPU)
    hidden = target_hidden(model, snapshots, trace.plan)
    return hidden, decompose_tokens(model, hidden, torch.tensor(trace.token_ids)), recorded(snapshots)[0]


def with_known(parts: Decomposition, known: HeadShare) -> Decomposition:
    """A false claim whose parts still sum to the logit: the residual takes up the difference."""
    return replace(parts, known=known, residual=parts.logit - known.total - parts.discovered.total)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("is_steered", [False, True])
def test_true_parts_pass(
    dtype: torch.dtype,
    is_steered: bool,
    make_model: Callable[..., ConceptLM],
    make_plan: Callable[..., SteerPlan],
    make_trace: Callable[..., Trace],
) -> None:
    model = make_model(6, dtype)
    hidden, parts, logits = claims(model, make_trace(model, make_plan(model) if is_steered else None))
    certificate = certify(model, hidden, parts, logits)
    assert certificate.passed, certificate
    assert certificate.num_tokens == len(hidden)
    assert certificate.num_deletions == 4 * len(hidden)


@pytest.mark.parametrize(
    "changes",
    [
        {"use_residual": False},
        {"factorize_discovered": False},
        {"use_attention_known": True, "use_attention_discovered": True},
        {"use_attention_discovered": True, "factorize_discovered": False},
        {"top_k_known": None, "top_k_known_features": None, "apply_top_k_to_discovered": False},
        {"top_k_known": 3, "top_k_known_features": 7},
        {"use_discovered": False},
    ],
)
def test_true_parts_pass_for_every_kind_of_head(
    changes: dict[str, object], make_model: Callable[..., ConceptLM], make_trace: Callable[..., Trace]
) -> None:
    model = make_model(7, **changes)
    hidden, parts, logits = claims(model, make_trace(model))
    assert certify(model, hidden, parts, logits).passed


def failed(certificate: Certificate) -> set[str]:
    assert not certificate.passed
    return {name for name, error in certificate.parts.items() if error > certificate.tolerance}


def test_permuted_rows_of_k_fail(model: ConceptLM, make_model: Callable[..., ConceptLM], trace: Trace) -> None:
    """A head that reads the wrong embedding rows: activations are right, the sum is right, k̂ is not."""
    hidden, parts, logits = claims(model, trace)
    permuted = make_model()
    weight = dict(permuted.known_head.named_parameters())["concept_embedding.weight"]
    weight[:17] = weight[torch.randperm(17, generator=torch.Generator().manual_seed(1))]
    false = decompose_tokens(permuted, hidden, parts.token_ids)
    certificate = certify(model, hidden, with_known(parts, false.known), logits)
    assert failed(certificate) == {"known", "known_alignment", "residual"}
    assert certificate.deletion_max_abs_error > certificate.tolerance


def test_a_doubled_activation_fails(model: ConceptLM, trace: Trace) -> None:
    hidden, parts, logits = claims(model, trace)
    weights = parts.known.weights.clone()
    weights[3, 1] *= 2
    known = replace(parts.known, weights=weights)
    known = replace(known, total=known.contribution.sum(1))
    certificate = certify(model, hidden, with_known(parts, known), logits)
    assert {"known_weight", "known", "residual"} <= failed(certificate)


def test_a_concept_that_is_not_among_the_strongest_fails(model: ConceptLM, trace: Trace) -> None:
    """Claimed activations are those of the weakest concepts: each is right by itself, the choice is not."""
    hidden, parts, logits = claims(model, trace)
    every = model.known_head.features(hidden, model.known_head.num_concepts)
    weakest = every.ids[:, -5:]
    rows = model.known_head.rows(weakest)
    alignment = torch.einsum("qkd,qd->qk", rows, model.transformer.lm_head.weight[parts.token_ids])
    known = replace(parts.known, ids=weakest, weights=every.logits[:, -5:].sigmoid(), alignment=alignment)
    known = replace(known, total=known.contribution.sum(1))
    assert "known_selection" in failed(certify(model, hidden, with_known(parts, known), logits))


def test_deletions_may_be_left_out(model: ConceptLM, trace: Trace) -> None:
    certificate = certify(model, *claims(model, trace), num_deletions=0)
    assert certificate.passed
    assert (certificate.num_deletions, certificate.deletion_max_abs_error) == (0, 0.0)


def test_more_concepts_claimed_than_the_head_sums_fail(model: ConceptLM, trace: Trace) -> None:
    """Each activation and row is right and so is their sum, but the head does not add the sixth."""
    hidden, parts, logits = claims(model, trace)
    six = model.known_head.features(hidden, 6)
    targets = model.transformer.lm_head.weight[parts.token_ids]
    known = replace(
        parts.known,
        ids=six.ids,
        weights=six.logits.sigmoid(),
        alignment=model.known_head.dots_for(targets, six.ids),
        common=model.known_head.dots_for(model.transformer.lm_head.weight.mean(0).expand_as(targets), six.ids),
        total=(six.features * targets).sum(1),
    )
    assert {"known", "known_weight", "residual"} <= failed(certify(model, hidden, with_known(parts, known), logits))


def test_another_models_logits_fail(model: ConceptLM, trace: Trace) -> None:
    hidden, parts, logits = claims(model, trace)
    assert failed(certify(model, hidden, parts, logits + 0.01)) == {"generated_logit"}


def test_deletion_error_is_the_prediction_error(model: ConceptLM, trace: Trace) -> None:
    hidden, parts, logits = claims(model, trace)
    alignment = parts.known.alignment.clone()
    strongest = parts.known.contribution[0].abs().argmax()
    alignment[0, strongest] += 0.5
    false = replace(parts, known=replace(parts.known, alignment=alignment))
    expected = 0.5 * float(parts.known.weights[0, strongest])
    certificate = certify(model, hidden, false, logits, num_deletions=16)
    assert certificate.deletion_max_abs_error == pytest.approx(expected, abs=1e-4)
