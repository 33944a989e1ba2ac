"""Values that change over training: curves over the share of training done, and the learning rate.

A curve is a list of knots `(share, value)`; between two knots the value follows half a cosine, or a straight line
to a knot `(share, value, "linear")`; before the first and after the last it is constant. Two knots at the same share
make a jump (the later one holds from there on). One form serves teacher forcing (§5.4.2), residual dropout, noise
levels and the top-k anneal.
"""

import math
from typing import Annotated, Literal

from pydantic import AfterValidator, BeforeValidator, Field

from vitrail.settings import Settings

Knot = tuple[float, float] | tuple[float, float, Literal["linear"]]
"""Share of training done, the value there, and how it is reached from the knot before."""


def _formed(value: object) -> object:
    if not (isinstance(value, list | tuple) and value and all(_is_knot(knot) for knot in value)):
        raise ValueError("a curve is a list of knots [share, value] or [share, value, linear]")
    return value


def _is_knot(value: object) -> bool:
    if not isinstance(value, list | tuple) or len(value) not in (2, 3):
        return False
    return all(isinstance(number, int | float) for number in value[:2]) and list(value[2:]) in ([], ["linear"])


def _ordered(knots: tuple[Knot, ...]) -> tuple[Knot, ...]:
    shares = [knot[0] for knot in knots]
    if shares != sorted(shares) or shares[0] < 0 or shares[-1] > 1:
        raise ValueError("a curve needs knots [share, value] with shares rising within 0..1")
    return knots


Curve = Annotated[tuple[Knot, ...], BeforeValidator(_formed), AfterValidator(_ordered)]


def value_at(curve: tuple[Knot, ...], share: float) -> float:
    """The curve's value when `share` of training is done.

    Args:
        curve: knots in order.
        share: 0 at the first step, 1 after the last.

    Returns:
        the value; half a cosine between knots, or a straight line where the later one says so.
    """
    before = [knot for knot in curve if knot[0] <= share]
    after = [knot for knot in curve if knot[0] > share]
    if not before:
        return curve[0][1]
    if not after:
        return curve[-1][1]
    (left, start), (right, end) = before[-1][:2], after[0][:2]
    done = (share - left) / (right - left)
    is_linear = after[0][2:] == ("linear",)
    remaining = 1 - done if is_linear else 0.5 * (1 + math.cos(math.pi * done))
    return end + (start - end) * remaining


class RateSettings(Settings):
    """Warm-up, stable, decay (WSD; appendix G, S): what the peak learning rates are multiplied by.

    At step s of n: min(1, (s + 1) / warmup_steps) · max(floor, min(1, (n - s) / (decay_share · n))).
    """

    warmup_steps: int = Field(default=40, ge=0)
    decay_share: float = Field(default=0.3, ge=0, le=1)
    floor: float = Field(default=0.0, ge=0, le=1)


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
