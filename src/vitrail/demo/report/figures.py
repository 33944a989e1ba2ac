"""The measured figures, each with its interval, its aim and a plain sentence (§7, appendix H).

A `Figure` is a value with n and a 95 % interval, read leniently from summary.json: `ci95` may be a pair
beside the value or a mapping by key, a value may be a record of its own. A missing or non-finite number
is None, and a verdict on it is "not measured".
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

Verdict = Literal["reached", "missed", "not measured", "no aim"]
VALUE_KEYS = ("value", "rate", "mean", "hit")


@dataclass(frozen=True)
class Figure:
    """A number with its 95 % interval and the count of samples behind it."""

    value: float | None = None
    low: float | None = None
    high: float | None = None
    n: int | None = None


@dataclass(frozen=True)
class Aim:
    """One row of the table of truth: what was measured, what was hoped for, whether it was reached."""

    name: str
    figure: Figure
    unit: str
    aim: str
    verdict: Verdict
    meaning: str


def number(value: Any) -> float | None:
    """A finite number, or None.

    Args:
        value: anything found in a JSON document.

    Returns:
        the number as float; None for other types, NaN and infinities.
    """
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return None
    return float(value)


def part(summary: Mapping[str, Any], *path: str) -> dict[str, Any]:
    """A nested group of the summary; empty where it is missing.

    Args:
        summary: the summary or one of its groups.
        path: keys from the outside in.

    Returns:
        the group.
    """
    inner: Any = summary
    for key in path:
        inner = inner.get(key) if isinstance(inner, Mapping) else None
    return dict(inner) if isinstance(inner, Mapping) else {}


def figure(group: Mapping[str, Any], key: str, *, is_main: bool = False) -> Figure:
    """The figure under a key, with the interval and count that stand beside it.

    Args:
        group: a group of the summary, such as `bits_per_byte`.
        key: the figure's key in it.
        is_main: a bare `ci95` pair of the group belongs to this key.

    Returns:
        the figure; parts that are missing are None.
    """
    value = group.get(key)
    if isinstance(value, Mapping):
        name = next((name for name in VALUE_KEYS if name in value), "value")
        return figure(value, name, is_main=True)
    interval = group.get("ci95")
    if isinstance(interval, Mapping):
        interval = interval.get(key)
    elif not is_main:
        interval = group.get(f"ci95_{key}", group.get(f"{key}_ci95"))
    count = group.get("n", group.get("num_scored"))
    count = number(count.get(key) if isinstance(count, Mapping) else count)
    pair = interval if isinstance(interval, list | tuple) and len(interval) == 2 else (None, None)
    return Figure(number(value), number(pair[0]), number(pair[1]), None if count is None else int(count))


def deletion(summary: Mapping[str, Any], name: str, how: str) -> Figure:
    """Nats per masked token lost when one part is replaced.

    Args:
        summary: the content of summary.json.
        name: known, discovered, residual, shuffled or random.
        how: resample, mean or zero.

    Returns:
        the figure; its n is that of the whole test.
    """
    group = part(summary, "deletion_nats")
    return figure({"n": group.get("n"), **part(group, name)}, how, is_main=how == "mean")


def difference(first: Figure, second: Figure) -> Figure:
    """First minus second, with Newcombe's interval for independent figures.

    Args:
        first: a rate with its interval.
        second: the rate to subtract.

    Returns:
        the difference; no interval where one of the two has none; n is the smaller count.
    """
    if first.value is None or second.value is None:
        return Figure()
    value = first.value - second.value
    counts = [n for n in (first.n, second.n) if n is not None]
    n = min(counts, default=None)
    if first.low is None or first.high is None or second.low is None or second.high is None:
        return Figure(value, n=n)
    below = math.hypot(first.value - first.low, second.high - second.value)
    above = math.hypot(first.high - first.value, second.value - second.low)
    return Figure(value, value - below, value + above, n)


def aims(summary: Mapping[str, Any]) -> list[Aim]:
    """Every figure that has an aim, in the order of the story.

    Args:
        summary: the content of summary.json.

    Returns:
        one row per aim; rows whose figure is missing say "not measured".
    """
    return [
        *_exactness(summary),
        *_language(summary),
        *_detection(summary),
        *_weight(summary),
        *_steering(summary),
        *_retrieval(summary),
        *_cost(summary),
    ]


def _row(
    name: str, value: Figure, unit: str, aim: str, is_reached: Callable[[float], bool] | None, meaning: str
) -> Aim:
    verdict: Verdict = "no aim"
    if value.value is None:
        verdict = "not measured"
    elif is_reached is not None:
        verdict = "reached" if is_reached(value.value) else "missed"
    return Aim(name, value, unit, aim, verdict, meaning)


def _exactness(summary: Mapping[str, Any]) -> list[Aim]:
    error = figure(part(summary, "decomposition"), "max_abs_error")
    return [
        _row(
            "Largest error of the sum",
            error,
            "logits",
            "≤ 10⁻⁴",
            lambda v: v <= 1e-4,
            "The pieces add up to the score, up to the rounding of the arithmetic.",
        )
    ]


def _language(summary: Mapping[str, Any]) -> list[Aim]:
    group = part(summary, "bits_per_byte")
    unigram = number(group.get("unigram"))
    return [
        _row(
            "Bits per byte of unseen text",
            figure(group, "model", is_main=True),
            "bits",
            "below word frequencies" if unigram is None else f"< {unigram:.2f} (word frequencies)",
            None if unigram is None else lambda v: v < unigram,
            "Lower is better: how well the model predicts text it never saw.",
        )
    ]


def _detection(summary: Mapping[str, Any]) -> list[Aim]:
    group = part(summary, "concepts")
    base, count = number(group.get("base_rate")), number(group.get("count"))
    scored = figure(group, "num_scored").value
    share = Figure(scored / count) if scored is not None and count else Figure()
    wanted = None if base is None else 12 * base
    return [
        _row(
            "Finding concepts in unseen text (AUC)",
            figure(group, "auc_macro"),
            "",
            "≥ 0.90",
            lambda v: v >= 0.90,
            "0.5 is guessing, 1 is perfect: does a passage about X light up the concept X?",
        ),
        _row(
            "Precision of concepts (mAP)",
            figure(group, "map"),
            "",
            "≥ 12 × base rate" if wanted is None else f"≥ {wanted:.2f} (12 × base rate)",
            None if wanted is None else lambda v: v >= wanted,
            "Of the passages a concept marks first, how many really carry it.",
        ),
        _row(
            "Share of the library that was scored",
            share,
            "",
            "≥ 0.80",
            lambda v: v >= 0.80,
            "Concepts with at least ten held-out examples; the others are too rare to judge.",
        ),
    ]


def _weight(summary: Mapping[str, Any]) -> list[Aim]:
    known, random = (deletion(summary, name, "mean") for name in ("known", "random"))
    ratio = Figure()
    if known.value is not None and random.value is not None and random.value > 0:
        ratio = Figure(known.value / random.value)
    is_clear = known.low is not None and known.low > 0
    return [
        _row(
            "Known share of the prediction, from context",
            figure(part(summary, "contribution"), "known_context"),
            "",
            "≥ 0.30",
            lambda v: v >= 0.30,
            "How much of a word's score, beyond its general frequency, comes from named concepts.",
        ),
        _row(
            "Cost of removing the known concepts",
            known,
            "nats",
            "≥ 0.25, interval above 0",
            lambda v: v >= 0.25 and is_clear,
            "Replace them by their average: the prediction must get worse, or they were decoration.",
        ),
        _row(
            "… against random directions of the same size",
            ratio,
            "×",
            "≥ 3 ×",
            lambda v: v >= 3,
            "Removing anything hurts a little; removing the concepts must hurt much more.",
        ),
        _row(
            "Cost of shuffling the names",
            deletion(summary, "shuffled", "mean"),
            "nats",
            "≥ 0.30",
            lambda v: v >= 0.30,
            "Give every concept another one's meaning: the prediction must get worse.",
        ),
    ]


def _steering(summary: Mapping[str, Any]) -> list[Aim]:
    after = part(summary, "steering", "after")
    points = [point for point in after.get("points") or [] if isinstance(point, Mapping)]
    strong = next((point for point in points if number(point.get("limit")) == 3), None)
    gentle = next((point for point in points if number(point.get("limit")) == 1.25), {})
    strong = strong or {**part(summary, "steering"), **after}
    above, control = _hits_above(strong, "unsteered"), _hits_above(strong, "random")
    varieties = [value for point in (strong, gentle) if (value := number(point.get("distinct2_ratio"))) is not None]
    drop = figure(_renamed(part(after, "suppression"), "relative_drop_"), "difference")
    is_fluent, is_clear = _is_within(strong, 3.0), above.low is not None and above.low >= 0.05
    return [
        _row(
            "Turned up: hits above the unsteered text",
            above,
            "",
            "≥ 0.10, interval above 0.05, perplexity ≤ 3 ×",
            lambda v: v >= 0.10 and is_clear and is_fluent,
            "How much more often a judge, who never saw the training text, finds the concept.",
        ),
        _row(
            "Turned up: hits above a random concept",
            control,
            "",
            "≥ 0.10, perplexity ≤ 3 ×",
            lambda v: v >= 0.10 and is_fluent,
            "Pushing on any other concept must not do the same.",
        ),
        _row(
            "Turned up gently: hits above the unsteered text",
            _hits_above(gentle, "unsteered"),
            "",
            "≥ 0.05, perplexity ≤ 1.25 ×",
            lambda v: v >= 0.05 and _is_within(gentle, 1.25),
            "The same where the text hardly becomes stranger.",
        ),
        _row(
            "Variety of words when turned up",
            Figure(min(varieties, default=None)),
            "×",
            "≥ 0.80 ×",
            lambda v: v >= 0.80,
            "Repeating one word for ever would also count as a hit; this guards against it.",
        ),
        _row(
            "Turned down: drop beyond a random concept",
            drop,
            "",
            "≥ 0.30",
            lambda v: v >= 0.30,
            "On prompts about the concept, how much more it fades than when another is turned down.",
        ),
    ]


def _hits_above(point: Mapping[str, Any], baseline: str) -> Figure:
    target = figure(point, "target")
    given = figure(point, f"target_minus_{baseline}")
    if given.value is None:
        return difference(target, figure(point, baseline))
    return Figure(given.value, given.low, given.high, given.n or target.n)


def _is_within(point: Mapping[str, Any], limit: float) -> bool:
    ratio = number(point.get("perplexity_ratio"))
    return ratio is not None and ratio <= limit


def _renamed(group: Mapping[str, Any], prefix: str) -> dict[str, Any]:
    return {key.removeprefix(prefix): value for key, value in group.items()}


def _retrieval(summary: Mapping[str, Any]) -> list[Aim]:
    recall = part(summary, "recall")
    chance = number(recall.get("chance"))
    return [
        _row(
            "Finding the passage again (recall at 10)",
            figure(recall, "at10", is_main=True),
            "",
            "above chance" if chance is None else f"above chance ({chance:.4f})",
            None if chance is None else lambda v: v > chance,
            "From the model's own state on a training passage: is that passage among the index's ten best?",
        )
    ]


def _cost(summary: Mapping[str, Any]) -> list[Aim]:
    wall, memory = number(summary.get("wall_s")), number(summary.get("peak_rss_bytes"))
    minutes = number(summary.get("minutes")) or 8.0
    return [
        _row(
            "Time for everything",
            Figure(None if wall is None else wall / 60),
            "minutes",
            f"≤ {minutes:g}",
            lambda v: v <= minutes,
            "From raw text to this page, on the machine named below.",
        ),
        _row(
            "Memory at its highest",
            Figure(None if memory is None else memory / 1e9),
            "GB",
            "≤ 4",
            lambda v: v <= 4,
            "So that it runs on a laptop.",
        ),
    ]
