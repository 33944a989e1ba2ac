"""Training: objective, schedules, optimisers, the loop, steering batches (§5.4, §9, §10)."""

from vitrail.train.distributed import Root, World, joined
from vitrail.train.loop import OnProgress, Progress, num_steps, train
from vitrail.train.masking import NoiseSettings
from vitrail.train.objective import ComposeSettings, LossSettings
from vitrail.train.optim import OptimSettings
from vitrail.train.plan import PlanReport, describe_plan
from vitrail.train.run import train_model
from vitrail.train.schedules import RateSettings
from vitrail.train.settings import (
    HeldoutSettings,
    LoraSettings,
    ModelSettings,
    SteeringSettings,
    TrainSettings,
)
from vitrail.train.shape import model_config
from vitrail.train.sizes import Phases, continued, phases_for
from vitrail.train.tracking import TensorBoard, Tracker, WeightsAndBiases

__all__ = [
    "ComposeSettings",
    "HeldoutSettings",
    "LoraSettings",
    "LossSettings",
    "ModelSettings",
    "NoiseSettings",
    "OnProgress",
    "OptimSettings",
    "Phases",
    "PlanReport",
    "Progress",
    "RateSettings",
    "Root",
    "SteeringSettings",
    "TensorBoard",
    "Tracker",
    "TrainSettings",
    "WeightsAndBiases",
    "World",
    "continued",
    "describe_plan",
    "joined",
    "model_config",
    "num_steps",
    "phases_for",
    "train",
    "train_model",
]
