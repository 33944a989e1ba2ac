"""How figures and texts are written for a reader: numbers, intervals, durations, marked words."""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from vitrail.demo.report.figures import Figure, number

MAX_EXAMPLE_CHARS = 220


@dataclass(frozen=True)
class Marked:
    """A stretch of text, marked where it is one of the concept's words."""

    text: str
    is_marked: bool


def decimals(value: Any, digits: int = 2, unit: str = "") -> str:
    """A number for reading, or "not measured".

    Args:
        value: number or None.
        digits: decimals; very small numbers are written as powers of ten.
        unit: what to append.

    Returns:
        text with a true minus sign.
    """
    finite = number(value)
    if finite is None:
        return "not measured"
    tiny = finite != 0 and abs(finite) < 0.5 * 10**-digits
    text = _power(finite) if tiny and abs(finite) < 1e-3 else f"{finite:,.{digits + 1 if tiny else digits}f}"
    return text.replace("-", "\u2212") + (f"\u00a0{unit}" if unit else "")


def _power(value: float) -> str:
    mantissa, exponent = f"{value:.1e}".split("e")
    raised = str(int(exponent)).translate(str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹"))
    return f"{mantissa.removesuffix('.0')}\u00a0×\u00a010{raised}"


def interval(value: Figure, digits: int = 2) -> str:
    """The 95 % interval and count of a figure, or an empty string.

    Args:
        value: the figure.
        digits: decimals.

    Returns:
        text such as `0.21 to 0.28, n = 3,000`.
    """
    parts = []
    if value.low is not None and value.high is not None:
        parts.append(f"{decimals(value.low, digits)} to {decimals(value.high, digits)}")
    if value.n is not None:
        parts.append(f"n\u00a0=\u00a0{value.n:,}")
    return ", ".join(parts)


def count(value: Any) -> str:
    """A whole number with thousands separators, or a dash.

    Args:
        value: number or None.

    Returns:
        text.
    """
    finite = number(value)
    return "–" if finite is None else f"{int(finite):,}"


def duration(value: Any) -> str:
    """Seconds as `7 min 12 s`.

    Args:
        value: seconds or None.

    Returns:
        text.
    """
    finite = number(value)
    if finite is None:
        return "not measured"
    if finite < 60:
        return f"{finite:.1f}\u00a0s" if finite < 10 else f"{finite:.0f}\u00a0s"
    minutes, seconds = divmod(round(finite), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}\u00a0h {minutes}\u00a0min" if hours else f"{minutes}\u00a0min {seconds}\u00a0s"


def size(value: Any) -> str:
    """Bytes as MB or GB.

    Args:
        value: bytes or None.

    Returns:
        text.
    """
    finite = number(value)
    if finite is None:
        return "not measured"
    return f"{finite / 1e9:.2f}\u00a0GB" if finite >= 1e9 else f"{finite / 1e6:.1f}\u00a0MB"


def shorten(text: str, length: int = MAX_EXAMPLE_CHARS) -> str:
    """The beginning of a text, cut at a space.

    Args:
        text: the text.
        length: most characters.

    Returns:
        the text, with an ellipsis where it was cut.
    """
    flat = " ".join(text.split())
    return flat if len(flat) <= length else flat[:length].rsplit(" ", 1)[0] + " …"


def mark_words(text: str, words: Iterable[str]) -> list[Marked]:
    """A text cut at the words of a concept.

    Args:
        text: any text.
        words: the concept's words or phrases; matched whole, whatever their case.

    Returns:
        the pieces in order; joined they are the text.
    """
    choices = "|".join(re.escape(word) for word in sorted({w for w in words if w.strip()}, key=lambda w: (-len(w), w)))
    if not choices:
        return [Marked(text, False)]
    pieces = re.split(rf"(?<!\w)((?:{choices})(?:e?s)?)(?!\w)", text, flags=re.IGNORECASE)
    return [Marked(piece, place % 2 == 1) for place, piece in enumerate(pieces) if piece]
