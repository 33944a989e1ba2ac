"""Steering: concepts turned up, down or off in calibrated units (§6.2)."""

from vitrail.steer.calibration import Calibration, Scale, calibrate, concept_head, unit_directions
from vitrail.steer.edit import edit_known, known_edit_effect
from vitrail.steer.logits import deployed_logits
from vitrail.steer.plan import SteerPlan, concept_contrast, find_concept, mean_row, plan_steering, relu_penalty
from vitrail.steer.spec import Head, Steer, format_steers, parse_steers

__all__ = [
    "Calibration",
    "Head",
    "Scale",
    "Steer",
    "SteerPlan",
    "calibrate",
    "concept_contrast",
    "concept_head",
    "deployed_logits",
    "edit_known",
    "find_concept",
    "format_steers",
    "known_edit_effect",
    "mean_row",
    "parse_steers",
    "plan_steering",
    "relu_penalty",
    "unit_directions",
]
