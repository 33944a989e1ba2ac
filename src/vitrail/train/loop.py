"""The training loop: which step comes next, and what surrounds it: checkpoints, log, evaluation, monitors (§5.4, §9.4).

One step is in `step`. Every random choice depends on (seed, step) alone, and everything else that a later step needs
is in the training state, so a run that is interrupted and resumed ends bit for bit like one that was not.
"""

import logging
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from vitrail.atlas import ConceptLibrary
from vitrail.errors import ConfigError, RunFailed
from vitrail.packed import Loader, PackedBatch, PackedCorpus
from vitrail.train.answers import open_ended
from vitrail.train.distributed import Root, World
from vitrail.train.evaluation import Evaluation
from vitrail.train.interrupts import StopRequest, stop_signals
from vitrail.train.log import Log
from vitrail.train.masking import expected_noise
from vitrail.train.monitors import Monitors
from vitrail.train.optim import Optimisers
from vitrail.train.schedules import rate_at
from vitrail.train.settings import SteeringSettings, TrainSettings
from vitrail.train.speed import Speed, Speedometer
from vitrail.train.state import Checkpoints, TrainState, load_checkpoint
from vitrail.train.steering_phase import draw_steering, lifted_tokens, steering_steps
from vitrail.train.steering_probe import calibrated_scales, deaf_share, pool_of
from vitrail.train.step import Steered, draws_of, gradients
from vitrail.train.tracking import Tracker

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
        speed: tokens a second, use of the device, memory.
    """

    step: int
    num_steps: int
    tokens: int
    elapsed_s: float
    remaining_s: float
    values: Mapping[str, float]
    speed: Speed

    @property
    def line(self) -> str:
        """The state in a few words."""
        return f"step {self.step:,}/{self.num_steps:,}, loss {self.values['language']:.2f}, {self.speed.line}"


OnProgress = Callable[[Progress], None]


def num_steps(settings: TrainSettings, length: int) -> int:
    """Steps in a run: total tokens over tokens in a batch, at least one."""
    return max(1, round(settings.total_tokens / (settings.batch_size * length)))


def train(
    root: Root,
    optimisers: Optimisers,
    packed: PackedCorpus,
    settings: TrainSettings,
    work: Path,
    *,
    world: World | None = None,
    library: ConceptLibrary | None = None,
    trackers: Sequence[Tracker] = (),
    on_progress: OnProgress | None = None,
    name: str = "",
) -> None:
    """Train a model in place, resuming from the scratch folder where an earlier attempt left a checkpoint.

    Args:
        root: holds the model, in shards where there are many ranks.
        optimisers: of the model; their state is what the run starts from.
        packed: batches and held-out sequences.
        settings: the run.
        work: scratch: checkpoints and the log (`log.jsonl`).
        world: the ranks; None is one process.
        library: names and words of the known concepts, for the evaluation; None measures no alignment.
        trackers: told every step's figures.
        on_progress: called after every step.
        name: what identifies the run, so that a checkpoint of another one is refused; empty takes any.

    Raises:
        CheckpointError: the checkpoint is damaged, or of another model or run.
        ConfigError: the batch cannot be shared equally by the ranks.
        RunFailed: the loss is not a number, or the disk is full; the last checkpoint stays.
        KeyboardInterrupt: SIGINT came; the step was finished and its checkpoint written.
        Stopped: the same for SIGTERM.
    """
    run = _Run(root, optimisers, packed, settings, work, world or World(), library, trackers, name)
    run.resume()
    run.all_steps(on_progress)


class _Run:
    """One attempt at a run: model, optimisers, state, log."""

    def __init__(
        self,
        root: Root,
        optimisers: Optimisers,
        packed: PackedCorpus,
        settings: TrainSettings,
        work: Path,
        world: World,
        library: ConceptLibrary | None,
        trackers: Sequence[Tracker],
        run: str,
    ) -> None:
        if settings.batch_size % world.size:
            raise ConfigError(
                f"batch_size {settings.batch_size} cannot be shared equally by {world.size} processes; "
                f"set it to a multiple of {world.size}"
            )
        self.root, self.model, self.optimisers = root, root.model, optimisers
        self.packed, self.settings, self.work, self.world = packed, settings, work, world
        self.trackers = trackers
        self.num_steps = num_steps(settings, packed.length)
        self.loader = Loader(packed, settings.batch_size, settings.seed, mixture=settings.data.mixture)
        self.state = TrainState()
        self.monitors = Monitors()
        self.checkpoints = Checkpoints(work, world, run)
        self.evaluation = Evaluation(root, packed, settings, world, library)
        self.speedometer = Speedometer(root.model, settings, packed.length, world)
        self.log = Log(work / "log.jsonl", is_kept=world.is_main)  # last: a start that fails leaves nothing behind
        self.steering = settings.steering
        if self.steering is not None:
            self.is_steering = steering_steps(self.steering, self.num_steps)
            lifted = lifted_tokens(packed, self.steering.lifted_tokens, self.steering.lifted_sequences)
            self.lifted = lifted.to(world.device)

    def resume(self) -> None:
        """Go on where a checkpoint stands."""
        folder = self.checkpoints.latest
        if folder is not None:
            self.state = load_checkpoint(folder, self.model, self.optimisers, self.checkpoints.run)
            self.monitors = Monitors(self.state.monitors)
        self.log.cut(self.state.log_bytes)
        for tracker in self.trackers:
            tracker.begin(self.state.step)

    def all_steps(self, on_progress: OnProgress | None) -> None:
        """Every step that is left; a signal ends the run after the step that it came in."""
        started = self.saved_at = time.monotonic()
        first = self.state.step
        with stop_signals() as stop:
            for step, batch in zip(range(first, self.num_steps), self._batches(first), strict=True):
                values = self._step(step, batch)
                self.state.step = step + 1
                speed = self.speedometer.after(step / self.num_steps)
                is_stopping = self._save_if_due(stop)
                if on_progress is not None:
                    elapsed = time.monotonic() - started
                    left = elapsed / (step + 1 - first) * (self.num_steps - step - 1)
                    tokens = (step + 1) * self.settings.batch_size * self.packed.length
                    on_progress(Progress(step + 1, self.num_steps, tokens, elapsed, left, values, speed))
                for tracker in self.trackers:
                    tracker.speed(step, speed)
                if is_stopping:
                    self.checkpoints.finish()
                    raise stop.reason(step + 1)
            self._checkpoint()
            self.checkpoints.finish()

    def _batches(self, first: int) -> Iterator[PackedBatch]:
        """This rank's part of every batch that is left."""
        part, workers = self.world.part(self.settings.batch_size), self.settings.data.workers
        return self.loader.stream(first, self.num_steps - first, rows=part, workers=workers)

    def _step(self, step: int, batch: PackedBatch) -> dict[str, float]:
        share, num_rows = step / self.num_steps, self.settings.batch_size
        batch = open_ended(batch, self.model.config, self.settings.seed, step, num_rows, self.world.part(num_rows))
        steered = self._steering(step, batch)
        values = gradients(self.root, batch, self.settings, share, step, self.world, steered)
        self._require_finite(step, values)
        norms = self.optimisers.step(rate_at(self.settings.optim.rate, step, self.num_steps))
        self._require_finite(step, {f"gradient_norm_{part}": norm for part, norm in norms.items()})
        self._record(step, values, norms, is_steering=steered is not None)
        return values

    def _steering(self, step: int, batch: PackedBatch) -> Steered | None:
        if self.steering is None or not self.is_steering[step]:
            return None
        layer = self.steering.layer or max(1, self.model.config.num_layers // 2)
        past = self.state.extra
        if "scales" not in past or step >= int(past["scales_until"]):
            past["scales"] = self._scales(step, layer, self.steering)
            past["scales_until"] = torch.tensor(float(step + self.steering.recalibrate_steps))
        draws = draws_of(self.model, batch, self.settings, step / self.num_steps, step, self.world)
        num_rows = self.settings.batch_size
        drawn = draw_steering(
            batch,
            draws,
            self.steering,
            past["scales"],
            self.settings.seed,
            step,
            self.world.part(num_rows),
            num_rows,
        )
        return Steered(self.steering, drawn, past["scales"], self.lifted, layer)

    def _scales(self, step: int, layer: int, steering: SteeringSettings) -> torch.Tensor:
        """Calibrate, and see whether the model hears."""
        model, packed, seed = self.model, self.packed, self.settings.seed
        pool = pool_of(model.known_head.num_concepts, steering.pool, seed, step)
        scales = self.root.look(
            lambda: calibrated_scales(model, packed, layer, steering.target_logit_change, pool, seed)
        )
        deaf = self.root.look(lambda: deaf_share(model, packed, layer, scales, seed))
        self._warn(step, self.monitors.deaf(deaf))
        self.log.write({"step": step, "deaf_share": deaf, "mean_scale": float(scales.nanmean())})
        return scales

    def _record(self, step: int, values: Mapping[str, float], norms: Mapping[str, float], *, is_steering: bool) -> None:
        kind = "steering" if is_steering else "plain"
        self.log.write({"step": step, "batch": kind, **values, "gradient_norm": dict(norms)})
        for tracker in self.trackers:
            tracker.step(step, kind, values, norms)
        warnings = self.monitors.mask_rate(self._mask_rate(step))
        if (step + 1) % self.settings.heldout.every_steps == 0 or step + 1 == self.num_steps:
            found = self.evaluation.run()
            self.log.write({"step": step, "heldout": found})
            for tracker in self.trackers:
                tracker.heldout(step, found)
            warnings += self.monitors.heldout(found, self.settings.heldout.probe_items)
        self._warn(step, warnings)

    def _mask_rate(self, step: int) -> float:
        is_masked = self.model.config.backbone == "cdlm"
        return expected_noise(self.settings.noise, step / self.num_steps) if is_masked else 0.0

    def _warn(self, step: int, warnings: list[str]) -> None:
        for text in warnings:
            self.log.write({"step": step, "warning": text})
            if self.world.is_main:
                logger.warning("step %d: %s", step, text)

    def _save_if_due(self, stop: StopRequest) -> bool:
        """Save where it is time, or where a signal came to any rank; whether one did."""
        self.checkpoints.poll()
        every = self.settings.checkpoint_every_steps
        is_late = self.world.is_main and time.monotonic() - self.saved_at >= self.settings.checkpoint_every_s
        is_stopping, is_due = (flag > 0 for flag in self.world.total([float(stop.number), float(is_late)]))
        if is_stopping or is_due or (every is not None and self.state.step % every == 0):
            self._checkpoint()
            self.saved_at = time.monotonic()
        return is_stopping

    def _checkpoint(self) -> None:
        self.state.log_bytes = self.world.shared(self.log.flush())
        self.state.monitors = dict(self.monitors.memory)
        self.checkpoints.write(self.model, self.optimisers, self.state)

    def _require_finite(self, step: int, values: Mapping[str, float]) -> None:
        names = ", ".join(name for name, value in values.items() if not math.isfinite(value))
        if not names:
            return
        self.checkpoints.finish()
        folder = self.checkpoints.latest
        kept = f"the checkpoint before it is intact ({folder})" if folder else "no checkpoint had been made"
        raise RunFailed(f"step {step}: {names} is not a number; {kept}; lower optim.matrix_rate or optim.head_rate")
