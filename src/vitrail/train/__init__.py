"""Training: objective, schedules, optimisers, the loop, steering batches (§5.4, §9, §10)."""

from vitrail.train.loop import OnProgress, Progress, num_steps, train
from vitrail.train.masking import NoiseSettings
from vitrail.train.objective import ComposeSettings, LossSettings
from vitrail.train.optim import OptimSettings
from vitrail.train.run import model_config, train_model
from vitrail.train.schedules import RateSettings
from vitrail.train.settings import HeldoutSettings, ModelSettings, SteeringSettings, TrainSettings

__all__ = [
    "ComposeSettings",
    "HeldoutSettings",
    "LossSettings",
    "ModelSettings",
    "NoiseSettings",
    "OnProgress",
    "OptimSettings",
    "Progress",
    "RateSettings",
    "SteeringSettings",
    "TrainSettings",
    "model_config",
    "num_steps",
    "train",
    "train_model",
]
