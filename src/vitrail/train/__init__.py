"""Training: objective, schedules, optimisers, the loop, steering batches (§5.4, §9, §10)."""

from vitrail.train.loop import OnProgress, Progress, num_steps, train
from vitrail.train.masking import NoiseSettings
from vitrail.train.objective import ComposeSettings, LossSettings
from vitrail.train.optim import OptimSettings
from vitrail.train.run import model_config, train_model
from vitrail.train.schedules import RateSettings
from vitrail.train.settings import HeldoutSettings, ModelSettings, SteeringSettings, TrainSettings
from vitrail.train.sizes import Phases, continued, phases_for

__all__ = [
    "ComposeSettings",
    "HeldoutSettings",
    "LossSettings",
    "ModelSettings",
    "NoiseSettings",
    "OnProgress",
    "OptimSettings",
    "Phases",
    "Progress",
    "RateSettings",
    "SteeringSettings",
    "TrainSettings",
    "continued",
    "model_config",
    "num_steps",
    "phases_for",
    "train",
    "train_model",
]
