"""The training objective of one micro-batch: forward, composition, terms (§5.3, §5.4, §10.2).

Who receives which gradient (design §3, tested entry by entry): the language loss trains the backbone,
the known predictor, K and the LM head; the concept loss the backbone and the known predictor;
reconstruction and independence the discovered head alone. The discovered part is detached in the language
loss, and its predictor reads a detached h, as in the released model.

Letters: `B` sequences, `T` tokens, `D` width, `n` masked tokens, `J` chunks.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from vitrail.metrics.concept_loss import Aggregation, chunk_concept_loss
from vitrail.model import ConceptLM, Injection
from vitrail.model.streaming import slabs
from vitrail.packed import PackedBatch
from vitrail.settings import Settings
from vitrail.train.losses import Weight, independence_sum, language_sum, reconstruction_sum, token_concept_sum
from vitrail.train.masking import Draws, NoiseSettings, block_noise, draw_dropped, draw_masks, generator
from vitrail.train.schedules import Curve, value_at


class LossSettings(Settings):
    """Weights and forms of the terms. Loss = language + the weighted others.

    `lm_grad_to_activations`: the language loss trains the known predictor. `lm_grad_through_activations`: it
    also reaches the backbone that way, so at positions whose residual is dropped.
    """

    language_weight: Weight = "none"
    lm_grad_to_activations: bool = True
    lm_grad_through_activations: bool = False
    concept: float = 0.035
    aggregation: Aggregation = "log_mean_exp"
    token_concept: float = 0.035
    reconstruction: float = 0.2
    reconstruction_target: Literal["labels", "predicted"] = "predicted"
    independence: float = 0.1
    independence_form: Literal["hsic", "cka"] = "cka"
    independence_of: Literal["discovered", "discovered_and_residual"] = "discovered"


class ComposeSettings(Settings):
    """Teacher forcing, residual dropout and sparsity over training (§5.4.2, §10.2.3); curves of knots."""

    known_forcing: Curve = ((0.0, 1.0), (0.5, 0.5), (0.7, 0.5), (0.7, 0.0))
    discovered_forcing: Curve = ((0.0, 0.0),)
    residual_dropout: Curve = ((0.0, 0.3),)
    discovered_dropout: float = 0.65
    dropout_unit: Literal["token", "block"] = "token"
    top_k_known: Curve | None = None
    top_k_discovered: Curve | None = None


@dataclass(frozen=True)
class Plan:
    """The scheduled values of one step: shares in [0, 1]; None = the model's own top-k."""

    known_forcing: float
    discovered_forcing: float
    top_k_known: int | None
    top_k_discovered: int | None


@dataclass(frozen=True)
class Term:
    """One term of the loss: a sum over its own units, and how many there were."""

    total: Float[Tensor, ""]
    count: float


def plan_at(settings: ComposeSettings, model: ConceptLM, share: float) -> Plan:
    """The scheduled values when `share` of training is done.

    Args:
        settings: the curves.
        model: its configuration gives the top-k where no curve does.
        share: 0..1.

    Returns:
        the plan of the step.
    """
    known, discovered = settings.top_k_known, settings.top_k_discovered
    return Plan(
        known_forcing=value_at(settings.known_forcing, share),
        discovered_forcing=value_at(settings.discovered_forcing, share),
        top_k_known=round(value_at(known, share)) if known else model.config.top_k_known_features,
        top_k_discovered=round(value_at(discovered, share)) if discovered else model.config.top_k_discovered,
    )


def draw(
    noise: NoiseSettings,
    compose: ComposeSettings,
    present: Bool[Tensor, "B T"],
    block: int,
    share: float,
    seed: int,
    step: int,
) -> Draws:
    """All random choices of one step (§5.4.2).

    Args:
        noise: the noise schedule.
        compose: dropout probabilities.
        present: [B T] False at padding.
        block: tokens in a diffusion block.
        share: share of training done.
        seed: the run's seed.
        step: the step; equal (seed, step) draw the same.

    Returns:
        the draws for the whole batch.
    """
    rng = generator(seed, "step", step)
    rows, length = present.shape
    levels = block_noise(noise, (rows, -(-length // block)), share, rng)
    per_token, masked = draw_masks(levels, block, present, rng)
    residual_prob = value_at(compose.residual_dropout, share)
    shape = (rows, length)
    dropped = draw_dropped(shape, block, compose.dropout_unit, residual_prob, rng)
    both = dropped & draw_dropped(shape, block, compose.dropout_unit, compose.discovered_dropout, rng)
    return Draws(per_token, masked, ~dropped, ~both)


def label_embedding(model: ConceptLM, batch: PackedBatch) -> Float[Tensor, "B T D"]:
    """k̂_GT: the sum of K over the chunk's labels, the same at each of its tokens (reported Eq. 11).

    Args:
        model: its known head holds K.
        batch: labels and chunk numbers.

    Returns:
        [B T D]; zero outside chunks.
    """
    rows = model.known_head.rows(batch.label_concept)
    per_chunk = rows.new_zeros(batch.num_chunks + 1, rows.shape[-1]).index_add(0, batch.label_chunk, rows)
    return per_chunk[torch.where(batch.chunk >= 0, batch.chunk, batch.num_chunks)]


def compose(
    hidden: Float[Tensor, "*n D"],
    known: Float[Tensor, "*n D"],
    discovered: Float[Tensor, "*n D"],
    labels: Float[Tensor, "*n D"],
    residual_kept: Bool[Tensor, "*n"],
    discovered_kept: Bool[Tensor, "*n"],
    plan: Plan,
) -> Float[Tensor, "*n D"]:
    """What enters the LM head in training: k̃ + ũ + rho·ε (§5.4.2, design §3).

    k̃ = α_k k̂_GT + (1 - α_k) k̂, ũ = α_u (h - k̂_GT) + (1 - α_u) û, ε = h - k̃ - ũ with nothing detached
    in it. Where rho = 1 the sum is h itself, whatever the concepts say.

    Args:
        hidden: h.
        known: k̂.
        discovered: û, detached by the caller.
        labels: k̂_GT.
        residual_kept: rho as truth values.
        discovered_kept: False where k̂ alone must predict.
        plan: teacher forcing α_k, α_u.

    Returns:
        h̄, shaped like `hidden`.
    """
    mixed_known = known + plan.known_forcing * (labels - known) if plan.known_forcing else known
    mixed = discovered
    if plan.discovered_forcing:
        mixed = discovered + plan.discovered_forcing * (hidden - labels - discovered)
    residual: Tensor = hidden - mixed_known - mixed
    kept = residual_kept[..., None].to(hidden.dtype)
    composed: Tensor = mixed_known + mixed * discovered_kept[..., None].to(hidden.dtype) + residual * kept
    return composed


def masked_ids(batch: PackedBatch, draws: Draws, mask_id: int) -> Int[Tensor, "B T"]:
    """The input of the step: tokens, with [MASK] where masked."""
    return batch.tokens.masked_fill(draws.masked, mask_id)


def counts(batch: PackedBatch, draws: Draws, present: Bool[Tensor, "B T"], settings: LossSettings) -> dict[str, float]:
    """The counts of every term for the whole batch, known before any forward.

    Args:
        batch: the whole batch.
        draws: its draws.
        present: [B T] False at padding.
        settings: forms of the terms.

    Returns:
        name → count; micro-batches' counts add up to these.
    """
    masked = float(draws.masked.sum())
    return {
        "language": float(present.sum()) if settings.language_weight == "elbo" else masked,
        "concept": float(batch.num_chunks),
        "token_concept": float(torch.unique(batch.span_pos).numel()),
        "reconstruction": masked,
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


@dataclass(frozen=True)
class Forward:
    """What the terms of one micro-batch are computed from.

    Attributes:
        hidden: [B T D] h.
        known: [B T D] k̂.
        discovered: [B T D] û, reading a detached h.
        composed_n: [n D] h̄ at the masked tokens, in row-major order.
        logits_n: [n V] at the masked tokens.
    """

    hidden: Float[Tensor, "B T D"]
    known: Float[Tensor, "B T D"]
    discovered: Float[Tensor, "B T D"]
    composed_n: Float[Tensor, "n D"]
    logits_n: Float[Tensor, "n V"]


def forward(
    model: ConceptLM,
    batch: PackedBatch,
    draws: Draws,
    plan: Plan,
    settings: LossSettings,
    injection: Injection | None = None,
) -> Forward:
    """Backbone, heads and composition of a micro-batch; the LM head runs at masked tokens only.

    Args:
        model: the model.
        batch: tokens and labels.
        draws: masks and dropout.
        plan: scheduled values.
        settings: whether the language loss reaches the known activations.
        injection: steering that is in force, if any.

    Returns:
        states and logits.
    """
    hidden = model.hidden(masked_ids(batch, draws, model.config.mask_id), injection=injection)
    read = hidden if settings.lm_grad_through_activations else hidden.detach()
    found = model.known_head.features(read, plan.top_k_known)
    known = found.features
    if not settings.lm_grad_to_activations:
        known = model.known_head.sum_for(found.logits.detach().sigmoid(), found.ids)
    discovered = model.unknown_head.features(hidden.detach(), plan.top_k_discovered).features
    at = draws.masked
    labels = label_embedding(model, batch)[at] if plan.known_forcing or plan.discovered_forcing else known[at]
    composed = compose(
        hidden[at],
        known[at],
        discovered[at].detach(),
        labels.to(hidden.dtype),
        draws.residual_kept[at],
        draws.discovered_kept[at],
        plan,
    )
    return Forward(hidden, known, discovered, composed, model.lm_logits(composed))


def terms(
    model: ConceptLM,
    batch: PackedBatch,
    draws: Draws,
    present: Bool[Tensor, "B T"],
    states: Forward,
    settings: LossSettings,
) -> dict[str, Term]:
    """Every term of the loss with a positive weight, as sum and count (§5.4.1).

    Args:
        model: the model.
        batch: tokens and labels.
        draws: masks and dropout.
        present: [B T] False at padding.
        states: of `forward`.
        settings: weights and forms.

    Returns:
        name → term.
    """
    count = counts(batch, draws, present, settings)
    wanted = weights(settings)
    at = draws.masked
    found = {"language": language_sum(states.logits_n, batch.tokens[at], draws.noise[at], settings.language_weight)}
    if wanted["concept"]:
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
    if wanted["token_concept"]:
        found["token_concept"] = _token_concepts(model, batch, states.hidden)
    if wanted["reconstruction"]:
        with torch.no_grad():
            by_labels = settings.reconstruction_target == "labels"
            known = label_embedding(model, batch)[at] if by_labels else states.known[at]
        found["reconstruction"] = reconstruction_sum(states.discovered[at], states.hidden[at].detach(), known)
    if wanted["independence"]:
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
