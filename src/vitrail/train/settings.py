"""Settings of a training run, and the sizes one dial gives.

Groups: `model` (shape; the vocabulary and the numbers of concepts come from the packed corpus), `noise`,
`loss`, `compose`, `optim`, `heldout`, and `steering` where a continuation trains the model to obey
injections (§10.2.4). A control is the same settings without `steering`.
"""

from typing import Literal

from pydantic import Field, model_validator

from vitrail.settings import Seed, Settings
from vitrail.train.masking import NoiseSettings
from vitrail.train.objective import ComposeSettings, LossSettings
from vitrail.train.optim import OptimSettings
from vitrail.train.schedules import Curve


class ModelSettings(Settings):
    """Shape of a new model; ignored by a continuation, which keeps the shape of what it continues.

    `known_bias` is where the known logits start (rare concepts: low). `discovered_ratio` is M / C (§9.2).
    """

    width: int = 128
    num_layers: int = 6
    num_heads: int = 4
    num_kv_heads: int | None = None
    block: int = 32
    norm_order: Literal["pre", "post"] = "pre"
    use_rms_norm: bool = True
    mlp_type: Literal["swiglu", "standard"] = "swiglu"
    intermediate_size: int | None = 256
    discovered_ratio: float = 3.0
    discovered_rank: int = 32
    top_k_known: int = 16
    top_k_discovered: int = 64
    known_bias: float = -4.0


class HeldoutSettings(Settings):
    """Evaluation on held-out sequences during the run: one noise level, the same draws each time."""

    every_steps: int = 250
    sequences: int = 32
    noise: float = 0.5


class SteeringSettings(Settings):
    """Steering batches, interleaved with plain ones (§10.2.4).

    `density` is the share of steps that are steering batches, as a curve over the run; none come before
    `warmup_steps`. The strength is uniform between `weakest` and `strongest`, in calibrated units. `express`
    asks for `express_mass` of the probability on the concept's characteristic tokens, and for no more.
    """

    layer: int | None = Field(default=None, ge=1)
    density: Curve = ((0.0, 0.5), (1.0, 0.25))
    warmup_steps: int = 0
    weakest: float = 0.25
    strongest: float = 1.0
    respond: float = 0.1
    express: float = 0.5
    express_mass: float = 0.2
    lifted_tokens: int = 24
    target_logit_change: float = 8.0
    recalibrate_steps: int = 150


class TrainSettings(Settings):
    """One training run: what, how long, from which seed."""

    model: ModelSettings = ModelSettings()
    noise: NoiseSettings = NoiseSettings()
    loss: LossSettings = LossSettings()
    compose: ComposeSettings = ComposeSettings()
    optim: OptimSettings = OptimSettings()
    heldout: HeldoutSettings = HeldoutSettings()
    steering: SteeringSettings | None = None
    total_tokens: int = Field(default=1_300_000, ge=1)
    batch_size: int = Field(default=4, ge=1)
    micro_batch: int | None = Field(default=None, ge=1)
    seed: Seed = 0
    precision: Literal["fp32", "bf16"] = "bf16"
    checkpoint_every_s: float = 60.0
    checkpoint_every_steps: int | None = Field(default=None, ge=1)

    @model_validator(mode="after")
    def _fits_together(self) -> "TrainSettings":
        if self.micro_batch is not None and self.micro_batch > self.batch_size:
            raise ValueError(f"micro_batch {self.micro_batch} is larger than batch_size {self.batch_size}")
        return self
