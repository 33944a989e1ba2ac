"""What a request asks for: concepts to turn up, down or off, as objects and as text (§6.2).

    NAME=+1.0; OTHER NAME=-0.5; #12=+1; discovered:#5=+2; THIRD=off

Parts are separated by `;`. A concept is a name, or `#` and its id, after an optional `known:` or
`discovered:` (known is the default). A strength is a number in calibrated units (1.0 moves the logits by
the calibration's target), negative ones suppress, and `off` is the preset for complete suppression.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NoReturn

from vitrail.errors import ConfigError

Head = Literal["known", "discovered"]

OFF_STRENGTH = -0.1
"""Injection of `off`, in calibrated units: weak, since a strong one turns all text into garbage."""

_HEADS: tuple[Head, ...] = ("known", "discovered")


@dataclass(frozen=True)
class Steer:
    """One concept of a steering request.

    Attributes:
        concept: its name, or its id within its head.
        strength: in calibrated units; negative suppresses.
        head: `known` or `discovered`.
        is_off: whether the preset for complete suppression is meant; `strength` is then `OFF_STRENGTH`.
    """

    concept: str | int
    strength: float = 1.0
    head: Head = "known"
    is_off: bool = False

    def __post_init__(self) -> None:
        if self.head not in _HEADS:
            raise ConfigError(f"steer: unknown head '{self.head}' of '{self.concept}'; known or discovered")
        if not math.isfinite(self.strength):
            raise ConfigError(f"steer: strength {self.strength} of '{self.concept}' is not finite; give a number")
        if self.is_off:
            object.__setattr__(self, "strength", OFF_STRENGTH)

    def __str__(self) -> str:
        head = "" if self.head == "known" else f"{self.head}:"
        concept = f"#{self.concept}" if isinstance(self.concept, int) else self.concept
        return f"{head}{concept}={'off' if self.is_off else format(self.strength, '+')}"


def parse_steers(text: str) -> list[Steer]:
    """The steering request in a text such as `"NAME=+1.0; OTHER=off"`.

    Args:
        text: the request; empty parts are skipped, so the empty text steers nothing.

    Returns:
        its concepts, in order.

    Raises:
        ConfigError: one line with the position (1 = first character), the fault, and how to mend it.
    """
    steers: list[Steer] = []
    start = 0
    for part in text.split(";"):
        if part.strip():
            steer = _parse_part(part.strip(), start + len(part) - len(part.lstrip()) + 1)
            if any(_is_same(steer, other) for other in steers):
                _refuse(part, start + 1, "names this concept twice; give it one strength")
            steers.append(steer)
        start += len(part) + 1
    return steers


def format_steers(steers: Sequence[Steer]) -> str:
    """The text that `parse_steers` reads back as the same request.

    Args:
        steers: the request.

    Returns:
        its text.
    """
    return "; ".join(str(steer) for steer in steers)


def _parse_part(part: str, position: int) -> Steer:
    concept, equals, value = (piece.strip() for piece in part.rpartition("="))
    if not equals:
        _refuse(part, position, f"has no strength; write '{part}=+1.0' or '{part}=off'")
    head: Head = "known"
    for name in _HEADS:
        if concept.casefold().startswith(f"{name}:"):
            head, concept = name, concept[len(name) + 1 :].strip()
            break
    if not concept:
        _refuse(part, position, "names no concept; write NAME=+1.0, #12=+1.0 or discovered:#5=+1.0")
    return Steer(_concept(concept, part, position), _strength(value, part, position), head, value.casefold() == "off")


def _concept(text: str, part: str, position: int) -> str | int:
    if not text.startswith("#"):
        return text
    if not text[1:].isdecimal():
        _refuse(part, position, f"has '{text}' where an id belongs; write a whole number after #, as in #12")
    return int(text[1:])


def _strength(text: str, part: str, position: int) -> float:
    if text.casefold() == "off":
        return OFF_STRENGTH
    try:
        strength = float(text)
    except ValueError:
        strength = math.nan
    if not math.isfinite(strength):
        _refuse(part, position, f"has strength '{text}'; write a number such as +1.0 or -0.5, or off")
    return strength


def _is_same(steer: Steer, other: Steer) -> bool:
    return steer.head == other.head and str(steer.concept).casefold() == str(other.concept).casefold()


def _refuse(part: str, position: int, fault: str) -> NoReturn:
    raise ConfigError(f"steer, character {position}: '{part.strip()}' {fault}")
