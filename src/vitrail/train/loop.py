"""The training loop: one step, top to bottom, and what surrounds it (§5.4).

Every random choice depends on (seed, step) alone, and everything else that a later step needs is in the
training state, so a run that is interrupted and resumed ends bit for bit like one that was not.
"""

import logging
import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from vitrail.errors import RunFailed
from vitrail.model import ConceptLM, Injection
from vitrail.packed import Loader, PackedBatch, PackedCorpus
from vitrail.train.heldout import evaluate
from vitrail.train.log import Log
from vitrail.train.masking import Draws, expected_noise
from vitrail.train.microbatch import cut, present_tokens, row_slices
from vitrail.train.monitors import Monitors
from vitrail.train.objective import Plan, counts, draw, forward, plan_at, terms, weighted, weights
from vitrail.train.optim import Optimisers
from vitrail.train.schedules import rate_at
from vitrail.train.settings import SteeringSettings, TrainSettings
from vitrail.train.state import TrainState, latest_checkpoint, load_state, write_checkpoint
from vitrail.train.steering_phase import (
    SteeringDraw,
    calibrated_scales,
    deaf_share,
    draw_steering,
    injection_of,
    is_steering_step,
    lifted_tokens,
    steering_counts,
    steering_terms,
)

logger = logging.getLogger("vitrail.train")


@dataclass(frozen=True)
class Progress:
    """Where a run stands.

    Attributes:
        step: steps done.
        num_steps: steps in all.
        tokens: tokens seen.
        elapsed_s: wall time of this attempt.
        remaining_s: estimate for the rest.
        values: the latest step's mean terms, nats.
    """

    step: int
    num_steps: int
    tokens: int
    elapsed_s: float
    remaining_s: float
    values: Mapping[str, float]

    @property
    def line(self) -> str:
        """The state in a few words."""
        return f"step {self.step:,}/{self.num_steps:,}, loss {self.values['language']:.2f}"


OnProgress = Callable[[Progress], None]


def num_steps(settings: TrainSettings, length: int) -> int:
    """Steps in a run: total tokens over tokens in a batch, at least one."""
    return max(1, round(settings.total_tokens / (settings.batch_size * length)))


def train(
    model: ConceptLM,
    packed: PackedCorpus,
    settings: TrainSettings,
    work: Path,
    *,
    optimisers: Optimisers | None = None,
    on_progress: OnProgress | None = None,
) -> Optimisers:
    """Train a model in place, resuming from the scratch folder where an earlier attempt left a checkpoint.

    Args:
        model: trained in place.
        packed: batches and held-out sequences.
        settings: the run.
        work: scratch: checkpoints and the log (`log.jsonl`).
        optimisers: state to start from (a continuation), or None.
        on_progress: called after every step.

    Returns:
        the optimisers, with their final state.

    Raises:
        RunFailed: the loss is not a number; the last checkpoint stays.
    """
    run = _Run(model, packed, settings, work, optimisers or Optimisers(model, settings.optim))
    run.resume()
    run.all_steps(on_progress)
    return run.optimisers


@dataclass(frozen=True)
class _Steered:
    """Steering that is in force in one step."""

    settings: SteeringSettings
    drawn: SteeringDraw
    scales: Tensor
    lifted: Tensor
    layer: int

    def rows(self, rows: slice) -> "_Steered":
        return _Steered(self.settings, self.drawn.rows(rows), self.scales, self.lifted, self.layer)

    def injection(self, model: ConceptLM) -> Injection:
        return injection_of(model, self.drawn, self.scales, self.layer)


class _Run:
    """One attempt at a run: model, optimisers, state, log."""

    def __init__(
        self,
        model: ConceptLM,
        packed: PackedCorpus,
        settings: TrainSettings,
        work: Path,
        optimisers: Optimisers,
    ) -> None:
        self.model, self.packed, self.settings, self.work = model, packed, settings, work
        self.optimisers = optimisers
        self.num_steps = num_steps(settings, packed.length)
        self.loader = Loader(packed, settings.batch_size, settings.seed)
        self.state = TrainState()
        self.monitors = Monitors()
        self.log = Log(work / "log.jsonl")
        self.lifted = lifted_tokens(packed, settings.steering.lifted_tokens) if settings.steering else None

    def resume(self) -> None:
        folder = latest_checkpoint(self.work)
        if folder is not None:
            self.state = load_state(folder, self.model, self.optimisers)
            self.monitors = Monitors(self.state.monitors)
        self.log.cut(self.state.log_bytes)

    def all_steps(self, on_progress: OnProgress | None) -> None:
        started = saved_at = time.monotonic()
        first = self.state.step
        for step in range(first, self.num_steps):
            values = self._step(step)
            self.state.step = step + 1
            if self._is_checkpoint_due(time.monotonic() - saved_at):
                self._checkpoint()
                saved_at = time.monotonic()
            if on_progress is not None:
                elapsed = time.monotonic() - started
                left = elapsed / (step + 1 - first) * (self.num_steps - step - 1)
                tokens = (step + 1) * self.settings.batch_size * self.packed.length
                on_progress(Progress(step + 1, self.num_steps, tokens, elapsed, left, values))
        self._checkpoint()

    def _step(self, step: int) -> dict[str, float]:
        share = step / self.num_steps
        batch = self.loader.batch_at(step)
        steered = self._steering(step, batch)
        values = gradients(self.model, batch, self.settings, share, step, steered)
        if not all(math.isfinite(value) for value in values.values()):
            raise RunFailed(self._failure(step, values))
        norm = self.optimisers.step(rate_at(self.settings.optim.rate, step, self.num_steps))
        if not math.isfinite(norm):
            raise RunFailed(self._failure(step, {"gradient_norm": norm}))
        self._record(step, share, {**values, "gradient_norm": norm}, steered)
        return values

    def _steering(self, step: int, batch: PackedBatch) -> _Steered | None:
        steering = self.settings.steering
        if steering is None or self.lifted is None or not is_steering_step(steering, step, self.num_steps):
            return None
        layer = steering.layer or max(1, self.model.config.num_layers // 2)
        past = self.state.extra
        if "scales" not in past or step >= int(past["scales_until"]):
            past["scales"] = calibrated_scales(
                self.model, self.packed, layer, steering.target_logit_change, self.settings.seed
            )
            past["scales_until"] = torch.tensor(step + steering.recalibrate_steps)
            deaf = deaf_share(self.model, self.packed, layer, past["scales"], self.settings.seed)
            self._warn(step, self.monitors.deaf(deaf))
            self.log.write({"step": step, "deaf_share": deaf, "mean_scale": float(past["scales"].mean())})
        draws = _draws(self.model, batch, self.settings, step / self.num_steps, step)
        drawn = draw_steering(batch, draws, steering, self.model.config.num_concepts, self.settings.seed, step)
        return _Steered(steering, drawn, past["scales"], self.lifted, layer)

    def _record(self, step: int, share: float, values: dict[str, float], steered: _Steered | None) -> None:
        kind = "plain" if steered is None else "steering"
        self.log.write({"step": step, "batch": kind, **values})
        warnings = self.monitors.mask_rate(expected_noise(self.settings.noise, share))
        heldout = self.settings.heldout
        if (step + 1) % heldout.every_steps == 0 or step + 1 == self.num_steps:
            found = evaluate(self.model, self.packed, heldout, self.settings.loss.aggregation, self.settings.seed)
            self.log.write({"step": step, "heldout": found})
            warnings += self.monitors.heldout(found)
        self._warn(step, warnings)

    def _warn(self, step: int, warnings: list[str]) -> None:
        for text in warnings:
            self.log.write({"step": step, "warning": text})
            logger.warning("step %d: %s", step, text)

    def _is_checkpoint_due(self, since_s: float) -> bool:
        every = self.settings.checkpoint_every_steps
        return since_s >= self.settings.checkpoint_every_s or (every is not None and self.state.step % every == 0)

    def _checkpoint(self) -> None:
        self.state.log_bytes = self.log.flush()
        self.state.monitors = self.monitors.memory
        write_checkpoint(self.work, self.model, self.optimisers, self.state)

    def _failure(self, step: int, values: Mapping[str, float]) -> str:
        names = ", ".join(name for name, value in values.items() if not math.isfinite(value))
        folder = latest_checkpoint(self.work)
        kept = f"the checkpoint before it is intact ({folder})" if folder else "no checkpoint had been made"
        return f"step {step}: {names} is not a number; {kept}; lower optim.matrix_rate or optim.head_rate"


def _draws(model: ConceptLM, batch: PackedBatch, settings: TrainSettings, share: float, step: int) -> Draws:
    present = present_tokens(batch, model.config.pad_id)
    return draw(settings.noise, settings.compose, present, model.config.block, share, settings.seed, step)


def gradients(
    model: ConceptLM,
    batch: PackedBatch,
    settings: TrainSettings,
    share: float,
    step: int,
    steered: _Steered | None = None,
) -> dict[str, float]:
    """Gradients of one step, accumulated over micro-batches; equal for any micro-batch size.

    Args:
        model: its `grad` fields are added to.
        batch: the whole batch.
        settings: of the run.
        share: share of training done.
        step: seeds the draws.
        steered: steering in force, or None.

    Returns:
        mean of every term over the batch, and `loss`.
    """
    present = present_tokens(batch, model.config.pad_id)
    draws = _draws(model, batch, settings, share, step)
    plan = plan_at(settings.compose, model, share)
    count = counts(batch, draws, present, settings.loss)
    weight = weights(settings.loss)
    if steered is not None:
        count |= steering_counts(steered.drawn)
        weight |= {"respond": steered.settings.respond, "express": steered.settings.express}
    totals: dict[str, float] = {}
    for rows in row_slices(len(batch.tokens), settings.micro_batch):
        part = steered.rows(rows) if steered else None
        loss, sums = _micro_loss(
            model, cut(batch, rows), draws.rows(rows), present[rows], plan, settings, (weight, count), part
        )
        loss.backward()  # type: ignore[no-untyped-call]
        for name, value in sums.items():
            totals[name] = totals.get(name, 0.0) + value
    means = {name: value / max(count[name], 1.0) for name, value in totals.items()}
    return {**means, "loss": sum(weight[name] * value for name, value in means.items())}


def _micro_loss(
    model: ConceptLM,
    batch: PackedBatch,
    draws: Draws,
    present: Bool[Tensor, "B T"],
    plan: Plan,
    settings: TrainSettings,
    scale: tuple[dict[str, float], dict[str, float]],
    steered: _Steered | None,
) -> tuple[Float[Tensor, ""], dict[str, float]]:
    device = batch.tokens.device.type
    with torch.autocast(device, torch.bfloat16, enabled=settings.precision == "bf16"):
        injection = steered.injection(model) if steered else None
        states = forward(model, batch, draws, plan, settings.loss, injection)
        found = terms(model, batch, draws, present, states, settings.loss)
        if steered is not None:
            found |= steering_terms(model, draws, steered.drawn, states, steered.lifted, steered.settings)
    sums: dict[str, Any] = {name: float(term.total.detach()) for name, term in found.items()}
    return weighted(found, *scale), sums
