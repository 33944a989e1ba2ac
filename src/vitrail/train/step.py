"""One step of training, on one page: draws, micro-batches, gradients, and the means that are logged (§5.4).

Every random choice depends on (seed, step) alone. Draws are made for the global batch and cut to a rank's part;
counts are added up over ranks before any forward; so the gradient is divided once, by the counts of the global
batch, and neither micro-batches nor ranks can change it.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from vitrail.model import ConceptLM, Injection
from vitrail.packed import PackedBatch
from vitrail.train.distributed import Root, World, moved, sync_gradients
from vitrail.train.masking import Draws
from vitrail.train.microbatch import cut, present_tokens, row_slices
from vitrail.train.objective import Plan, draw, forward, plan_at
from vitrail.train.settings import SteeringSettings, TrainSettings
from vitrail.train.steering_phase import SteeringDraw, injection_of, steering_counts, steering_terms
from vitrail.train.terms import counts, terms, weighted, weights


@dataclass(frozen=True)
class Steered:
    """Steering that is in force in one step.

    Attributes:
        settings: weights of the two terms.
        drawn: who is injected where, for this rank's sequences.
        scales: [C] norm that is strength 1.
        lifted: [C n] characteristic tokens of each concept, -1 where there are fewer.
        layer: from which layer on.
    """

    settings: SteeringSettings
    drawn: SteeringDraw
    scales: Tensor
    lifted: Tensor
    layer: int

    def rows(self, rows: slice) -> "Steered":
        """The steering of some of these sequences."""
        return Steered(self.settings, self.drawn.rows(rows), self.scales, self.lifted, self.layer)

    def injection(self, model: ConceptLM) -> Injection:
        """The vectors to add."""
        return injection_of(model, self.drawn, self.scales, self.layer)


def draws_of(
    model: ConceptLM, batch: PackedBatch, settings: TrainSettings, share: float, step: int, world: World
) -> Draws:
    """The draws of this rank's sequences, cut out of those of the global batch.

    Args:
        model: its block and backbone.
        batch: this rank's sequences.
        settings: noise and dropout.
        share: share of training done.
        step: seeds the draws.
        world: which part is this rank's.

    Returns:
        draws on the device of the batch.
    """
    config, shape = model.config, (settings.batch_size, batch.tokens.shape[1])
    raw = draw(settings.noise, settings.compose, shape, config.block, share, settings.seed, step, config.backbone)
    return raw.rows(world.part(settings.batch_size)).over(batch.loss_mask)


def gradients(
    root: Root,
    batch: PackedBatch,
    settings: TrainSettings,
    share: float,
    step: int,
    world: World,
    steered: Steered | None = None,
) -> dict[str, float]:
    """Gradients of one step, accumulated over micro-batches and ranks.

    Args:
        root: holds the model; its `grad` fields are added to.
        batch: this rank's part of the global batch.
        settings: of the run.
        share: share of training done.
        step: seeds the draws.
        world: the ranks.
        steered: steering in force, or None.

    Returns:
        mean of every term over the global batch, and `loss`.
    """
    model = root.model
    draws = draws_of(model, batch, settings, share, step, world)
    plan = plan_at(settings.compose, model, share)
    count = counts(batch, draws, present_tokens(batch, model.config.pad_id), settings.loss)
    weight = weights(settings.loss)
    if steered is not None:
        count |= steering_counts(steered.drawn)
        weight |= {"respond": steered.settings.respond, "express": steered.settings.express}
    count = world.totals(count)
    sums = dict.fromkeys(count, 0.0)
    slices = list(row_slices(len(batch.tokens), settings.micro_batch))
    for number, rows in enumerate(slices, start=1):
        part = _Part(cut(batch, rows), draws.rows(rows), plan, steered.rows(rows) if steered else None)
        part = moved(part, world.device)
        sync_gradients(root, is_last=number == len(slices))
        loss, found = root(lambda part=part: _micro_step(model, part, settings, weight, count))
        loss.backward()
        for name, total in found.items():
            sums[name] += float(total)
    present = {name: total for name, total in world.totals(sums).items() if name in found}
    means = {name: total / max(count[name], 1.0) for name, total in present.items()}
    return {**means, "loss": sum(weight[name] * value for name, value in means.items())}


@dataclass(frozen=True)
class _Part:
    """What one micro-batch needs."""

    batch: PackedBatch
    draws: Draws
    plan: Plan
    steered: Steered | None


def _micro_step(
    model: ConceptLM, part: _Part, settings: TrainSettings, weight: dict[str, float], count: dict[str, float]
) -> tuple[Float[Tensor, ""], dict[str, Tensor]]:
    """Loss of a micro-batch, over the counts of the global batch, and the sums of its terms."""
    batch, draws, steered = part.batch, part.draws, part.steered
    with torch.autocast(batch.tokens.device.type, torch.bfloat16, enabled=settings.precision == "bf16"):
        injection = steered.injection(model) if steered else None
        states = forward(model, batch, draws, part.plan, settings.loss, injection)
        found = terms(model, batch, draws, present_tokens(batch, model.config.pad_id), states, settings.loss)
        if steered is not None:
            found |= steering_terms(model, draws, steered.drawn, states, steered.lifted, steered.settings)
    return weighted(found, weight, count), {name: term.total.detach() for name, term in found.items()}
