"""Settings of a training run, and the sizes one dial gives.

Groups: `model` (shape; the vocabulary and the numbers of concepts come from the packed corpus), `noise`,
`loss`, `compose`, `optim`, `heldout`, and `steering` where a continuation trains the model to obey
injections (§10.2.4). A control is the same settings without `steering`.
"""

from pathlib import Path
from typing import Any, Literal

from pydantic import Field, model_validator

from vitrail.errors import ConfigError
from vitrail.packed.settings import DataSettings
from vitrail.settings import Seed, Settings
from vitrail.train.adapters import LoraSettings, check_adapters
from vitrail.train.consistency import check_consistent
from vitrail.train.dial import with_dial
from vitrail.train.masking import NoiseSettings
from vitrail.train.objective import ComposeSettings, LossSettings, check_objective
from vitrail.train.optim import OptimSettings
from vitrail.train.schedules import Curve
from vitrail.train.shape import ModelSettings

__all__ = ["HeldoutSettings", "LoraSettings", "ModelSettings", "SteeringSettings", "TrainSettings"]


class HeldoutSettings(Settings):
    """Evaluation on held-out sequences during the run: one noise level, the same draws each time.

    `probes` are small multiple-choice tasks (JSON lines with `query`, `choices`, `gold`), each cut to `probe_items`;
    beside them one is made of the held-out text itself. `steering_concepts` are injected at strength 1 in every
    evaluation, to see whether the model hears them and obeys (0: not probed).
    """

    every_steps: int = Field(default=250, ge=1)
    sequences: int = Field(default=32, ge=1)
    noise: float = Field(default=0.5, gt=0, lt=1)
    probes: tuple[Path, ...] = ()
    probe_items: int = Field(default=32, ge=0)
    steering_concepts: int = Field(default=0, ge=0)


class SteeringSettings(Settings):
    """Steering batches, interleaved with plain ones (§10.2.4).

    `density` is the share of steps that are steering batches, as a curve over the run; none come before
    `warmup_steps`. The strength is uniform between `weakest` and `strongest`, in calibrated units. `express`
    asks for `express_mass` of the probability on the concept's characteristic tokens, and for no more. `attributed`
    says where a concept is injected: at its token-level labels, or in the whole chunks that carry it. Strengths are
    calibrated anew every `recalibrate_steps`, for at most `pool` concepts; until then others are not drawn.
    """

    layer: int | None = Field(default=None, ge=1)
    density: Curve = ((0.0, 0.5), (1.0, 0.25))
    warmup_steps: int = Field(default=0, ge=0)
    weakest: float = Field(default=0.25, ge=0)
    strongest: float = Field(default=1.0, gt=0)
    respond: float = Field(default=0.1, ge=0)
    express: float = Field(default=0.5, ge=0)
    express_mass: float = Field(default=0.2, gt=0, le=1)
    attributed: Literal["chunk", "spans"] = "chunk"
    lifted_tokens: int = Field(default=24, ge=1)
    lifted_sequences: int = Field(default=20_000, ge=1)
    target_logit_change: float = Field(default=8.0, gt=0)
    recalibrate_steps: int = Field(default=150, ge=1)
    pool: int = Field(default=512, ge=1)

    @model_validator(mode="after")
    def _in_range(self) -> "SteeringSettings":
        if self.weakest > self.strongest:
            raise ValueError(f"weakest {self.weakest:g} is above strongest {self.strongest:g}; change one of them")
        shares = [knot[1] for knot in self.density]
        if min(shares) < 0 or max(shares) > 1:
            raise ValueError(f"density is a share from 0 to 1, its knots go from {min(shares):g} to {max(shares):g}")
        return self


class TrainSettings(Settings):
    """One training run: what, how long, from which seed.

    `batch_size` counts the sequences of the global batch, `micro_batch` those that one process runs at once; neither
    it nor the number of processes changes the result. `compile` and `activation_checkpointing` change cost only.
    `size` (such as 30M) or `flops` (a budget) sets the shape and the run at once; keys given beside it win (`dial`).
    """

    size: str | None = None
    flops: float | None = Field(default=None, gt=0)
    model: ModelSettings = ModelSettings()
    data: DataSettings = DataSettings()
    noise: NoiseSettings = NoiseSettings()
    loss: LossSettings = LossSettings()
    compose: ComposeSettings = ComposeSettings()
    optim: OptimSettings = OptimSettings()
    heldout: HeldoutSettings = HeldoutSettings()
    steering: SteeringSettings | None = None
    lora: LoraSettings | None = None
    total_tokens: int = Field(default=1_300_000, ge=1)
    batch_size: int = Field(default=4, ge=1)
    micro_batch: int | None = Field(default=None, ge=1)
    seed: Seed = 0
    precision: Literal["fp32", "bf16"] = "bf16"
    compile: bool = False
    activation_checkpointing: bool = False
    checkpoint_every_s: float = Field(default=60.0, ge=0)
    checkpoint_every_steps: int | None = Field(default=None, ge=1)

    @model_validator(mode="before")
    @classmethod
    def _turn_the_dial(cls, values: Any) -> Any:
        return with_dial(values) if isinstance(values, dict) else values

    @model_validator(mode="after")
    def _fits_together(self) -> "TrainSettings":
        if self.micro_batch is not None and self.micro_batch > self.batch_size:
            raise ValueError(f"micro_batch {self.micro_batch} is larger than batch_size {self.batch_size}")
        try:
            check_consistent(self.model, self.loss, self.compose, has_steering=self.steering is not None)
            if self.lora is not None:
                check_adapters(self.lora, self.optim, self.loss)
            check_objective(self.model, self.loss, self.compose)
        except ConfigError as error:
            raise ValueError(str(error)) from error
        return self
