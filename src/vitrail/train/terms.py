"""The terms of the training loss, gathered: counts, weights, sums, and the weighted whole (§5.4.1, §10.2.2).

Every term is a sum over its own units. The counts of a batch are known before any forward and add up over
micro-batches and ranks; the step divides by the counts of the global batch, once. So neither can change the result.

Letters: `B` sequences, `T` tokens, `n` predicted positions, `J` chunks.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from vitrail.metrics.concept_loss import chunk_concept_loss
from vitrail.model import ConceptLM
from vitrail.model.streaming import slabs
from vitrail.packed import PackedBatch
from vitrail.train.losses import independence_sum, language_sum, reconstruction_sum, token_concept_sum
from vitrail.train.masking import Draws
from vitrail.train.objective import Forward, LossSettings, label_embedding, targets


@dataclass(frozen=True)
class Term:
    """One term of the loss: a sum over its own units, and how many there were."""

    total: Float[Tensor, ""]
    count: float


def counts(batch: PackedBatch, draws: Draws, present: Bool[Tensor, "B T"], settings: LossSettings) -> dict[str, float]:
    """The counts of every term, known before any forward.

    Args:
        batch: some sequences: a micro-batch, a rank's part or the whole.
        draws: their draws.
        present: [B T] False at padding.
        settings: forms of the terms.

    Returns:
        name → count; those of parts add up to those of the whole.
    """
    predicted = float(draws.predicted.sum())
    return {
        "language": float(batch.loss_mask.sum()) if settings.language_weight == "elbo" else predicted,
        "concept": float(batch.num_chunks),
        "token_concept": float(torch.unique(batch.span_pos).numel()),
        "reconstruction": predicted,
        "independence": float(present.any(1).sum()),
    }


def weights(settings: LossSettings) -> dict[str, float]:
    """Weight of every term in the loss, by name."""
    return {
        "language": 1.0,
        "concept": settings.concept,
        "token_concept": settings.token_concept,
        "reconstruction": settings.reconstruction,
        "independence": settings.independence,
    }


def terms(
    model: ConceptLM,
    batch: PackedBatch,
    draws: Draws,
    present: Bool[Tensor, "B T"],
    states: Forward,
    settings: LossSettings,
) -> dict[str, Term]:
    """Every term of the loss with a positive weight that the model can have, as sum and count (§5.4.1).

    Args:
        model: without concepts it has the language term alone.
        batch: tokens and labels.
        draws: what is predicted and dropped.
        present: [B T] False at padding.
        states: of `forward`.
        settings: weights and forms.

    Returns:
        name → term.
    """
    count = counts(batch, draws, present, settings)
    wanted = _wanted(model, settings)
    at = draws.predicted
    asked = targets(batch.tokens, model.config.backbone)[at]
    found = {"language": language_sum(states.logits_n, asked, draws.noise[at], settings.language_weight)}
    if "concept" in wanted:
        found["concept"], _ = chunk_concept_loss(
            model.known_head,
            states.hidden,
            batch.chunk,
            batch.num_chunks,
            batch.label_chunk,
            batch.label_concept,
            how=settings.aggregation,
            slab_size=model.config.slab,
        )
    if "token_concept" in wanted:
        found["token_concept"] = _token_concepts(model, batch, states.hidden)
    if "reconstruction" in wanted:
        with torch.no_grad():
            by_labels = settings.reconstruction_target == "labels"
            known = label_embedding(model, batch)[at] if by_labels else states.known[at]
        found["reconstruction"] = reconstruction_sum(states.discovered[at], states.hidden[at], known)
    if "independence" in wanted:
        found["independence"] = _independence(states, present, settings)
    return {name: Term(total, count[name]) for name, total in found.items()}


def weighted(found: Mapping[str, Term], weight: Mapping[str, float], count: Mapping[str, float]) -> Tensor:
    """The loss of a micro-batch: weighted sums over the counts of the whole batch.

    Args:
        found: terms of the micro-batch.
        weight: name → weight.
        count: name → count of the whole batch.

    Returns:
        a scalar; over all micro-batches these add up to the loss of the batch.
    """
    parts = [weight[name] * term.total / max(count[name], 1.0) for name, term in found.items()]
    return torch.stack(parts).sum()


def _wanted(model: ConceptLM, settings: LossSettings) -> set[str]:
    possible = {"language"}
    if model.known_head.num_concepts:
        possible |= {"concept", "token_concept"}
    if model.unknown_head.num_concepts:
        possible |= {"reconstruction", "independence"}
    return {name for name, weight in weights(settings).items() if weight and name in possible}


def _token_concepts(model: ConceptLM, batch: PackedBatch, hidden: Tensor) -> Tensor:
    positions, row = torch.unique(batch.span_pos, return_inverse=True)
    states = hidden.flatten(0, 1)[positions][None]
    head = model.known_head

    def of_slab(states: Tensor, slab: slice) -> Tensor:
        inside = (batch.span_concept >= slab.start) & (batch.span_concept < slab.stop)
        return token_concept_sum(
            head.logits(states, slab)[0],
            row[inside],
            batch.span_concept[inside] - slab.start,
            slab.stop - slab.start,
        )

    total = hidden.new_zeros(())
    for slab in slabs(head.num_concepts, model.config.slab):
        if head.num_concepts > model.config.slab:
            # As in the chunk loss: the backward makes each slab's logits again, none waits for it.
            total = total + checkpoint(of_slab, states, slab, use_reentrant=False)
        else:
            total = total + of_slab(states, slab)
    return total


def _independence(states: Forward, present: Tensor, settings: LossSettings) -> Tensor:
    known, form = states.known.detach(), settings.independence_form
    discovered = independence_sum(states.discovered, known, present, form)
    if settings.independence_of == "discovered":
        return discovered
    residual = (states.hidden - states.known).detach() - states.discovered
    return 0.5 * (discovered + independence_sum(residual, known, present, form))
