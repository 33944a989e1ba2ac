"""From a micro-batch to the states that the terms of the loss are computed from (§5.3, §5.4, §10.2).

The settings of the objective, the scheduled values of a step, its random draws, and the forward: backbone, heads,
composition, LM head. The terms are in `terms`.

Who receives which gradient (design §3, tested entry by entry): the language loss trains the backbone,
the known predictor, K and the LM head; the concept loss the backbone and the known predictor;
reconstruction and independence the discovered head alone. The discovered part is detached in the language
loss, and its predictor reads a detached h, as in the released model.

`cdlm` sees [MASK] at the predicted positions and predicts the tokens there; `ar` sees clean tokens and predicts
the next ones. Everything else is one path. A model without concepts has the language term alone, on h itself.

Letters: `B` sequences, `T` tokens, `D` width, `V` vocabulary, `n` predicted positions, `J` chunks.
"""

from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Bool, Float, Int
from pydantic import Field, model_validator
from torch import Tensor
from torch.nn import functional

from vitrail.errors import ConfigError
from vitrail.metrics.concept_loss import Aggregation
from vitrail.model import ConceptHead, ConceptLM, Injection, ModelConfig
from vitrail.packed import PackedBatch
from vitrail.settings import Settings
from vitrail.train.losses import Weight
from vitrail.train.masking import (
    BackboneName,
    Draws,
    NoiseSettings,
    RawDraws,
    block_noise,
    draw_dropped,
    draw_masks,
    generator,
)
from vitrail.train.schedules import Curve, value_at
from vitrail.train.shape import ModelSettings

_LENGTHS = 32
"""Different numbers of rows that the LM head sees in training."""


class LossSettings(Settings):
    """Weights and forms of the terms: loss = language + the weighted others (R, Eq. 15; here λ are chosen).

    (S) is stated by the paper, (R) reported by others, (C) chosen by us. `lm_grad_to_activations`: the
    language loss trains the known predictor. `lm_grad_through_activations`: it also reaches the backbone that way, so
    at positions whose residual is dropped. `aggregation`: noisy_or (S), max or log_mean_exp (C).
    `reconstruction_target`: labels (R, Eq. 12) or predicted (C). `independence_form`: hsic (S) or cka (C).
    `independence_of`: discovered (pretraining) or discovered_and_residual (S, §10.2.2: at the same total weight). A
    model without concepts has the language term alone, one without discovered concepts neither reconstruction nor
    independence.
    """

    language_weight: Weight = "none"
    lm_grad_to_activations: bool = True
    lm_grad_through_activations: bool = False
    concept: float = Field(default=0.035, ge=0)
    aggregation: Aggregation = "log_mean_exp"
    token_concept: float = Field(default=0.035, ge=0)
    reconstruction: float = Field(default=0.2, ge=0)
    reconstruction_target: Literal["labels", "predicted"] = "predicted"
    independence: float = Field(default=0.1, ge=0)
    independence_form: Literal["hsic", "cka"] = "cka"
    independence_of: Literal["discovered", "discovered_and_residual"] = "discovered"

    @model_validator(mode="after")
    def _fits_together(self) -> "LossSettings":
        if self.lm_grad_through_activations and not self.lm_grad_to_activations:
            raise ValueError(
                "lm_grad_through_activations needs lm_grad_to_activations, which is off; switch both on, or both off"
            )
        return self


class ComposeSettings(Settings):
    """Teacher forcing, dropout and sparsity over training (§5.4.2, §10.2.3); curves of knots.

    For pretraining (R): known forcing 1 for the first 15 %, by cosine to 0.5 at 50 %; discovered forcing 1 for the
    first 25 %, then straight to its floor; residual dropout 0.1. In a share `discovered_dropout` of the places without
    residual the discovered part goes too (C: known concepts alone must predict there). `known_dropout` is the share of
    sequences whose known part is left out, so that the model survives suppressed concepts (R: 0.1, in the style of
    classifier-free guidance; C: whole sequences, and they keep all else). A top-k curve anneals how many concepts are
    summed. Without concepts nothing here has an effect.
    """

    known_forcing: Curve = ((0.0, 1.0), (0.5, 0.5), (0.7, 0.5), (0.7, 0.0))
    discovered_forcing: Curve = ((0.0, 0.0),)
    residual_dropout: Curve = ((0.0, 0.3),)
    discovered_dropout: float = Field(default=0.65, ge=0, le=1)
    known_dropout: float = Field(default=0.0, ge=0, le=1)
    dropout_unit: Literal["token", "block"] = "token"
    top_k_known: Curve | None = None
    top_k_discovered: Curve | None = None

    @model_validator(mode="after")
    def _in_range(self) -> "ComposeSettings":
        for name in ("known_forcing", "discovered_forcing", "residual_dropout"):
            values = [knot[1] for knot in getattr(self, name)]
            if min(values) < 0 or max(values) > 1:
                raise ValueError(f"{name} is a share from 0 to 1, its knots go from {min(values):g} to {max(values):g}")
        for name in ("top_k_known", "top_k_discovered"):
            lowest = min((knot[1] for knot in getattr(self, name) or ()), default=1.0)
            if lowest < 1:
                raise ValueError(f"{name} falls to {lowest:g}; keep at least 1 concept")
        return self


@dataclass(frozen=True)
class Plan:
    """The scheduled values of one step: teacher forcing as shares in [0, 1], and top-k; None sums all concepts."""

    known_forcing: float
    discovered_forcing: float
    top_k_known: int | None
    top_k_discovered: int | None


def check_objective(model: ModelSettings | ModelConfig, loss: LossSettings, compose: ComposeSettings) -> None:
    """Refuse an objective that cannot train the model.

    Args:
        model: shape of the model.
        loss: forms of the terms.
        compose: what is dropped.

    Raises:
        ConfigError: the terms do not fit the backbone, or the backbone would get no language gradient.
    """
    if model.backbone == "ar" and loss.language_weight == "elbo":
        raise ConfigError(
            "loss.language_weight elbo divides by a noise level, which backbone ar has not; set it to none"
        )
    if not model.interpretable or loss.lm_grad_through_activations:
        return
    # û is detached and k̂ reads a detached h: then the language gradient reaches the backbone through ε alone.
    if not model.use_residual:
        raise ConfigError(
            "model.use_residual false leaves the backbone no language gradient; set "
            "loss.lm_grad_through_activations true"
        )
    if min(knot[1] for knot in compose.residual_dropout) >= 1:
        raise ConfigError(
            "compose.residual_dropout 1 leaves the backbone no language gradient; lower it, or set "
            "loss.lm_grad_through_activations true"
        )


def plan_at(settings: ComposeSettings, model: ConceptLM, share: float) -> Plan:
    """The scheduled values when `share` of training is done.

    Args:
        settings: the curves.
        model: its heads give the top-k where no curve does; without discovered concepts none are forced.
        share: 0..1.

    Returns:
        the plan of the step.
    """
    known, discovered = model.known_head, model.unknown_head
    forced = value_at(settings.discovered_forcing, share) if discovered.num_concepts else 0.0
    return Plan(
        known_forcing=value_at(settings.known_forcing, share),
        discovered_forcing=forced,
        top_k_known=_top_k(settings.top_k_known, share, known),
        top_k_discovered=_top_k(settings.top_k_discovered, share, discovered),
    )


def _top_k(curve: Curve | None, share: float, head: ConceptHead) -> int | None:
    if curve is None:
        return head.selection.summed
    top_k = round(value_at(curve, share))
    # All concepts are summed in slabs, without a search that would hold every logit.
    return top_k if top_k < head.num_concepts else None


def draw(
    noise: NoiseSettings,
    compose: ComposeSettings,
    shape: tuple[int, int],
    block: int,
    share: float,
    seed: int,
    step: int,
    backbone: BackboneName,
) -> RawDraws:
    """All random choices of one step (§5.4.2), for the whole global batch on every rank.

    Args:
        noise: the noise schedule.
        compose: dropout probabilities.
        shape: sequences of the global batch, and tokens in each.
        block: tokens in a diffusion block.
        share: share of training done.
        seed: the run's seed.
        step: the step; equal (seed, step) draw the same.
        backbone: `ar` draws no noise.

    Returns:
        the draws; a rank takes its `rows`, and puts them `over` its batch's loss mask.
    """
    rng = generator(seed, "step", step)
    rows, length = shape
    if backbone == "cdlm":
        levels = block_noise(noise, (rows, -(-length // block)), share, rng)
        per_token, chosen = draw_masks(levels, block, length, rng)
    else:
        per_token, chosen = torch.zeros(shape), torch.ones(shape, dtype=torch.bool)
    residual_prob = value_at(compose.residual_dropout, share)
    dropped = draw_dropped(shape, block, compose.dropout_unit, residual_prob, rng)
    both = dropped & draw_dropped(shape, block, compose.dropout_unit, compose.discovered_dropout, rng)
    known_kept = torch.rand(rows, generator=rng) >= compose.known_dropout
    without_known = ~known_kept[:, None]
    return RawDraws(per_token, chosen, ~dropped | without_known, ~both | without_known, known_kept, backbone)


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


Kept = tuple[Bool[Tensor, "*n"], Bool[Tensor, "*n"], Bool[Tensor, "*n"]]
"""Whether k̃, ũ and ε enter the composed state, position by position."""


def compose(
    hidden: Float[Tensor, "*n D"],
    known: Float[Tensor, "*n D"],
    discovered: Float[Tensor, "*n D"],
    labels: Float[Tensor, "*n D"],
    kept: Kept,
    plan: Plan,
) -> Float[Tensor, "*n D"]:
    """What enters the LM head in training: k̃ + ũ + rho·ε (§5.4.2, design §3).

    k̃ = α_k k̂_GT + (1 - α_k) k̂, ũ = α_u (h - k̂_GT) + (1 - α_u) û, ε = h - k̃ - ũ with nothing detached
    in it. Where rho = 1 the sum is h itself, whatever the concepts say. A part that is left out is missing from the
    sum; ε stays what it was (so K learns language where rho = 0, and where k̃ is left out).

    Args:
        hidden: h.
        known: k̂.
        discovered: û, detached by the caller.
        labels: k̂_GT.
        kept: which parts enter.
        plan: teacher forcing α_k, α_u.

    Returns:
        h̄, shaped like `hidden`.
    """
    mixed_known = known + plan.known_forcing * (labels - known) if plan.known_forcing else known
    mixed = discovered
    if plan.discovered_forcing:
        mixed = discovered + plan.discovered_forcing * (hidden - labels - discovered)
    residual: Tensor = hidden - mixed_known - mixed
    with_known, with_discovered, rho = (part[..., None].to(hidden.dtype) for part in kept)
    composed: Tensor = mixed_known * with_known + mixed * with_discovered + residual * rho
    return composed


def inputs(tokens: Int[Tensor, "B T"], predicted: Bool[Tensor, "B T"], config: ModelConfig) -> Int[Tensor, "B T"]:
    """What the backbone reads: [MASK] at predicted positions under `cdlm`, clean tokens under `ar`.

    Args:
        tokens: [B T] the text.
        predicted: [B T] True where the model predicts.
        config: backbone and mask id.

    Returns:
        [B T] token ids.
    """
    return tokens if config.backbone == "ar" else tokens.masked_fill(predicted, config.mask_id)


def targets(tokens: Int[Tensor, "B T"], backbone: BackboneName) -> Int[Tensor, "B T"]:
    """The token that the logits at each position predict (§2.2, §2.3).

    Args:
        tokens: [B T] the text.
        backbone: `cdlm` predicts in place, `ar` the next token.

    Returns:
        [B T] token ids; under `ar` the last position is never asked (see `masking.predictable`).
    """
    return tokens if backbone == "cdlm" else tokens.roll(-1, dims=1)


@dataclass(frozen=True)
class Forward:
    """What the terms of one micro-batch are computed from.

    Attributes:
        hidden: [B T D] h.
        known: [B T D] k̂.
        discovered: [B T D] û, reading a detached h.
        composed_n: [n D] h̄ at the predicted positions, in row-major order.
        logits_n: [n V] at the predicted positions.
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
    """Backbone, heads and composition of a micro-batch; the LM head runs at predicted positions only.

    Args:
        model: the model.
        batch: tokens and labels.
        draws: what is predicted and dropped.
        plan: scheduled values.
        settings: whether the language loss reaches the known activations.
        injection: steering that is in force, if any.

    Returns:
        states and logits.
    """
    hidden = model.hidden(inputs(batch.tokens, draws.predicted, model.config), injection=injection)
    read = hidden if settings.lm_grad_through_activations else hidden.detach()
    known = model.known_head.features(
        read, plan.top_k_known, learns_activations=settings.lm_grad_to_activations
    ).features
    discovered = model.unknown_head.features(hidden.detach(), plan.top_k_discovered).features
    at = draws.predicted
    composed = hidden[at]
    if model.config.interpretable:
        is_forced = plan.known_forcing or plan.discovered_forcing
        labels = label_embedding(model, batch)[at].to(hidden.dtype) if is_forced else known[at]
        composed = compose(composed, known[at], discovered[at].detach(), labels, _kept(model, draws), plan)
    return Forward(hidden, known, discovered, composed, _lm_logits(model, composed, at.numel()))


def _lm_logits(model: ConceptLM, composed: Float[Tensor, "n D"], num_positions: int) -> Float[Tensor, "n V"]:
    """The LM head, over rows of zeros up to one of few lengths.

    How many positions are predicted differs from step to step. For every new shape oneDNN makes bf16 kernels that it
    keeps: the process grew by more than 1 MB a step.
    """
    unit = max(1, num_positions // _LENGTHS)
    padding = -len(composed) % unit
    return model.lm_logits(functional.pad(composed, (0, 0, 0, padding)))[: len(composed)]


def _kept(model: ConceptLM, draws: Draws) -> Kept:
    """The parts that enter at predicted positions; without a residual in the model rho = 0 everywhere."""
    at = draws.predicted
    residual_kept = draws.residual_kept if model.has_residual else torch.zeros_like(at)
    return draws.known_kept[:, None].expand_as(at)[at], draws.discovered_kept[at], residual_kept[at]
