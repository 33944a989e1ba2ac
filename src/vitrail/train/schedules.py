"""Values that change over training: curves over the share of training done, and the learning rate.

A curve is a list of knots `(share, value)`; between two knots the value follows half a cosine, before the
first and after the last it is constant. Two knots at the same share make a jump (the later one holds from
there on). One form serves teacher forcing (§5.4.2), residual dropout, noise levels and the top-k anneal.
"""

import math
from typing import Annotated

from pydantic import AfterValidator

from vitrail.settings import Settings

Knot = tuple[float, float]


def _ordered(knots: tuple[Knot, ...]) -> tuple[Knot, ...]:
    shares = [share for share, _ in knots]
    if not shares or shares != sorted(shares) or shares[0] < 0 or shares[-1] > 1:
        raise ValueError(f"a curve needs knots [share, value] with shares rising within 0..1, got {list(knots)}")
    return knots


Curve = Annotated[tuple[Knot, ...], AfterValidator(_ordered)]


def value_at(curve: tuple[Knot, ...], share: float) -> float:
    """The curve's value when `share` of training is done.

    Args:
        curve: knots `(share, value)` in order.
        share: 0 at the first step, 1 after the last.

    Returns:
        the value; half a cosine between knots.
    """
    before = [knot for knot in curve if knot[0] <= share]
    after = [knot for knot in curve if knot[0] > share]
    if not before:
        return curve[0][1]
    if not after:
        return curve[-1][1]
    (left, start), (right, end) = before[-1], after[0]
    return end + (start - end) * 0.5 * (1 + math.cos(math.pi * (share - left) / (right - left)))


class RateSettings(Settings):
    """Warm-up, stable, decay (WSD): what the peak learning rates are multiplied by."""

    warmup_steps: int = 40
    decay_share: float = 0.3
    floor: float = 0.0


def rate_at(settings: RateSettings, step: int, num_steps: int) -> float:
    """The factor on every learning rate at one step.

    Args:
        settings: warm-up steps, share of training in the linear decay, and where it ends.
        step: 0..num_steps-1.
        num_steps: length of training.

    Returns:
        a factor in (0, 1]: never 0, so that every step learns.
    """
    warm = min(1.0, (step + 1) / max(settings.warmup_steps, 1))
    decay_steps = settings.decay_share * num_steps
    left = min(1.0, (num_steps - step) / decay_steps) if decay_steps else 1.0
    return warm * max(left, settings.floor)
