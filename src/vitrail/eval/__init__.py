"""Evaluation: the steering benchmark."""

from vitrail.eval.arms import Arm, Judges
from vitrail.eval.prompts import Item
from vitrail.eval.steering import (
    HEADLINE,
    SteeringSettings,
    Variant,
    benchmark_concepts,
    choose_strength,
    steering_benchmark,
)

__all__ = [
    "HEADLINE",
    "Arm",
    "Item",
    "Judges",
    "SteeringSettings",
    "Variant",
    "benchmark_concepts",
    "choose_strength",
    "steering_benchmark",
]
