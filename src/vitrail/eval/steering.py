"""The steering benchmark: does the text turn to the concept, at what cost, and is the concept the cause?

Every variant of the model (before and after the steering phase, and a control with equal training and no
injections) meets the same prompts. Arms:

- `target`: the concept amplified; `random`: another concept amplified instead, at the same strength;
  `unsteered`. All three are judged for the concept.
- `suppressed`: the concept switched off on prompts that carry it, beside the same prompts unsteered
  (`carrying`) and with another concept switched off (`suppressed_random`).

Strength buys hits with fluency, so the figures are a curve, and two operating points: the strength with most
hits whose perplexity is at most 3 times, and 1.25 times, that of unsteered text, at distinct-2 ≥ 0.8 of it.
Strengths are chosen on *tuning* prompts, within a margin, by interpolating their curve; rates are of other
prompts. Prompts are held out, the judge was trained on documents that neither model nor atlas saw.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np
from pydantic import Field

from vitrail.atlas import Chunk, ConceptLibrary
from vitrail.eval.arms import (
    Arm,
    Judges,
    distinct2_ratio,
    keyword_difference,
    keyword_rate,
    perplexity_ratio,
    rate,
    rate_difference,
    relative_drops,
    run_arm,
)
from vitrail.eval.prompts import Item, carrying_items, draw_concepts, plain_items
from vitrail.generate import Sampling
from vitrail.metrics.intervals import Interval, plain
from vitrail.model import ConceptLM
from vitrail.settings import Seed, Settings
from vitrail.steer import Calibration, Steer, SteerPlan, plan_steering

HEADLINE = "after"
"""The variant whose figures lead the table."""

# Tuning prompts are few: a part of each limit is kept back, so that the reported prompts stay within it.
_MIN_DISTINCT2 = 0.85
_EXCESS_SHARE = 0.6


class SteeringSettings(Settings):
    """Size of the benchmark.

    Attributes:
        num_concepts: concepts drawn from the library.
        prompts: reporting prompts per concept for the variant `after`.
        prompts_of_others: prompts of every kind per concept, at most, for the other variants.
        tuning_prompts: prompts per concept on which the curve is drawn and strengths are chosen.
        suppression_prompts: prompts per concept that carry it.
        strengths: of the curve, in calibrated units, ascending.
        perplexity_limits: of the operating points, the headline first.
        prompt_tokens: tokens of a prompt.
        carrying_tokens: tokens of a prompt that carries the concept, at most.
        new_tokens: tokens generated.
        tokens_per_step: tokens committed by one forward.
        temperature: of the sampling.
        repetition_penalty: of the sampling; steered text repeats itself without it.
        seed: of concepts, prompts, sampling and bootstrap.
    """

    num_concepts: Annotated[int, Field(ge=1)] = 32
    prompts: Annotated[int, Field(ge=1)] = 10
    prompts_of_others: Annotated[int, Field(ge=1)] = 2
    tuning_prompts: Annotated[int, Field(ge=1)] = 3
    suppression_prompts: Annotated[int, Field(ge=1)] = 5
    strengths: tuple[float, ...] = (0.15, 0.3, 0.5, 1.0)
    perplexity_limits: tuple[float, ...] = (3.0, 1.25)
    prompt_tokens: Annotated[int, Field(ge=2)] = 16
    carrying_tokens: Annotated[int, Field(ge=2)] = 32
    new_tokens: Annotated[int, Field(ge=1)] = 48
    tokens_per_step: Annotated[int, Field(ge=1)] = 4
    temperature: Annotated[float, Field(ge=0)] = 0.8
    repetition_penalty: Annotated[float, Field(ge=0.01, le=100)] = 1.2
    seed: Seed = 0


@dataclass(frozen=True)
class Variant:
    """One model of the comparison.

    Attributes:
        model: the model.
        calibration: what strength 1.0 means for it.
    """

    model: ConceptLM
    calibration: Calibration


@dataclass(frozen=True)
class _Prompts:
    """Prompts of each arm, a list for each concept."""

    tuning: list[list[Item]]
    report: list[list[Item]]
    carrying: list[list[Item]]
    limits: tuple[float, ...]

    def first(self, count: int) -> "_Prompts":
        """At most `count` prompts per concept in every arm."""
        tuning, report, carrying = (
            [items[:count] for items in arm] for arm in (self.tuning, self.report, self.carrying)
        )
        return _Prompts(tuning, report, carrying, self.limits)


def steering_benchmark(
    variants: Mapping[str, Variant],
    library: ConceptLibrary,
    held_out: Sequence[Chunk],
    judges: Judges,
    settings: SteeringSettings,
    *,
    on_progress: Callable[[float], None] | None = None,
) -> dict[str, Any]:
    """Run all arms of all variants.

    Args:
        variants: name → model; `after` is the headline and must be there.
        library: the concepts.
        held_out: chunks of split `heldout`, where prompts come from.
        judges: score the texts; the judge must know the concepts of `benchmark_concepts`.
        settings: size of the benchmark.
        on_progress: called with the share done.

    Returns:
        the table `steering` of `summary.json`. Each variant has `target`, `unsteered`, `random`,
        `suppressed`, `carrying`, `suppressed_random` as {rate, n, ci95, keyword}, `target_minus_unsteered`,
        `target_minus_random`, `suppression`, `points` (one per perplexity limit) and `curve`. At the top
        `perplexity_ratio`, `distinct2_ratio`, `curve` and `strength` of `after` at the first limit,
        `num_concepts`, `chosen_on`, `judge`, `second_judge`, and `examples`.
    """
    concept_ids = benchmark_concepts(library, settings)
    prompts = _draw_prompts(held_out, library, judges, concept_ids, settings)
    tables: dict[str, dict[str, Any]] = {}
    for number, (name, variant) in enumerate(variants.items()):
        bench = _Bench(variant, library, judges, settings)
        tables[name] = bench.table(prompts if name == HEADLINE else prompts.first(settings.prompts_of_others))
        if on_progress:
            on_progress((number + 1) / len(variants))
    headline = tables[HEADLINE]
    table = {
        **tables,
        **{key: headline["points"][0][key] for key in ("strength", "perplexity_ratio", "distinct2_ratio")},
        "curve": headline["curve"],
        "num_concepts": len(concept_ids),
        "chosen_on": f"{settings.tuning_prompts} other prompts per concept than those reported",
        "judge": judges.judge.quality(held_out),
        "second_judge": judges.keyword.name,
        "examples": headline.pop("examples"),
    }
    return dict(plain(table))


def benchmark_concepts(library: ConceptLibrary, settings: SteeringSettings) -> list[int]:
    """The concepts that the benchmark will use: what the judge must be fitted for."""
    return draw_concepts(library.num_known, settings.num_concepts, settings.seed)


def choose_strength(curve: Sequence[Mapping[str, Any]], limit: float) -> float:
    """The strength with most hits within a perplexity limit, on a curve between whose points one may stand.

    Args:
        curve: points with `strength`, `hit`, `perplexity_ratio`, `distinct2_ratio`, from strength zero up.
        limit: largest perplexity ratio.

    Returns:
        the strength, above zero; a hundredth of the largest where nothing is within the limit.
    """
    strength, hit, ratio, distinct = (np.array([point[key] for point in curve]) for key in _CURVE_KEYS)
    grid = np.linspace(strength[-1] / 100, strength[-1], 100)
    hit, perplexity, distinct = (np.interp(grid, strength, values) for values in (hit, np.log(ratio), distinct))
    allowed = (perplexity <= np.log1p((limit - 1) * _EXCESS_SHARE)) & (distinct >= _MIN_DISTINCT2)
    return float(grid[np.where(allowed, hit, -1.0).argmax()])


_CURVE_KEYS = ("strength", "hit", "perplexity_ratio", "distinct2_ratio")


class _Bench:
    """The arms of one variant."""

    def __init__(self, variant: Variant, library: ConceptLibrary, judges: Judges, settings: SteeringSettings) -> None:
        self.variant, self.library, self.judges, self.settings = variant, library, judges, settings
        self.sampling = Sampling(
            max_new_tokens=settings.new_tokens,
            temperature=settings.temperature,
            tokens_per_step=settings.tokens_per_step,
            repetition_penalty=settings.repetition_penalty,
        )
        self._plans: dict[Steer, SteerPlan] = {}

    def table(self, prompts: _Prompts) -> dict[str, Any]:
        """All figures of the variant."""
        tuning = [item for items in prompts.tuning for item in items]
        curve = self.curve(tuning)
        report = [item for items in prompts.report for item in items]
        unsteered = self.unsteered(report)
        points, targets = [], []
        for limit in prompts.limits:
            strength = choose_strength(curve, limit)
            target = self.amplified(report, _own(report), strength)
            random = self.amplified(report, _other(report), strength)
            points.append(self.point(limit, strength, target, random, unsteered))
            targets.append(target)
        carrying = [item for items in prompts.carrying for item in items]
        headline = points[0]
        return {
            **{key: headline[key] for key in ("target", "unsteered", "random")},
            **self.suppression(carrying),
            **{key: headline[key] for key in ("target_minus_unsteered", "target_minus_random")},
            "points": points,
            "curve": curve,
            "examples": _examples(self.library, report, unsteered, targets[0]),
        }

    def curve(self, items: Sequence[Item]) -> list[dict[str, Any]]:
        """Hits and fluency at each strength, from zero (unsteered)."""
        unsteered = self.unsteered(items)
        points = []
        for strength in (0.0, *self.settings.strengths):
            arm = self.amplified(items, _own(items), strength) if strength else unsteered
            hit = rate(arm, self.settings.seed)
            points.append(
                {
                    "strength": strength,
                    "hit": hit.value,
                    "ci95": hit.ci95,
                    "n": len(arm.hit),
                    "keyword": float(arm.keyword.mean()),
                    **self.fluency(arm, unsteered),
                }
            )
        return points

    def point(self, limit: float, strength: float, target: Arm, random: Arm, unsteered: Arm) -> dict[str, Any]:
        """One operating point."""
        seed = self.settings.seed
        return {
            "limit": limit,
            "strength": strength,
            **self.fluency(target, unsteered),
            "target": self.rates(target),
            "unsteered": self.rates(unsteered),
            "random": self.rates(random),
            "random_perplexity_ratio": perplexity_ratio(random, unsteered, seed).value,
            "target_minus_unsteered": _difference(rate_difference(target, unsteered, seed)),
            "target_minus_random": _difference(rate_difference(target, random, seed)),
            "keyword_minus_unsteered": _difference(keyword_difference(target, unsteered, seed)),
            "keyword_minus_random": _difference(keyword_difference(target, random, seed)),
        }

    def suppression(self, items: Sequence[Item]) -> dict[str, Any]:
        """The arms on prompts that carry the concept."""
        base = self.unsteered(items)
        target = self.suppressed(items, _own(items))
        control = self.suppressed(items, _other(items))
        drops = relative_drops(base, target, control, self.settings.seed)
        return {
            "suppressed": self.rates(target),
            "carrying": self.rates(base),
            "suppressed_random": self.rates(control),
            "suppression": {
                **{f"relative_drop_{name}": drop.value for name, drop in drops.items()},
                "ci95": {name: drop.ci95 for name, drop in drops.items()},
                **self.fluency(target, base),
            },
        }

    def rates(self, arm: Arm) -> dict[str, Any]:
        hit, keyword = rate(arm, self.settings.seed), keyword_rate(arm, self.settings.seed)
        return {"rate": hit.value, "n": len(arm.hit), "ci95": hit.ci95, "keyword": keyword.as_json("rate")}

    def fluency(self, arm: Arm, base: Arm) -> dict[str, Any]:
        perplexity = perplexity_ratio(arm, base, self.settings.seed)
        distinct = distinct2_ratio(arm, base, self.settings.seed)
        return {
            "perplexity_ratio": perplexity.value,
            "distinct2_ratio": distinct.value,
            "ci95_fluency": {"perplexity_ratio": perplexity.ci95, "distinct2_ratio": distinct.ci95},
        }

    def unsteered(self, items: Sequence[Item]) -> Arm:
        return self._run(items, [None] * len(items))

    def amplified(self, items: Sequence[Item], concept_ids: Sequence[int], strength: float) -> Arm:
        return self._run(items, [self.plan(Steer(concept_id, strength)) for concept_id in concept_ids])

    def suppressed(self, items: Sequence[Item], concept_ids: Sequence[int]) -> Arm:
        return self._run(items, [self.plan(Steer(concept_id, is_off=True)) for concept_id in concept_ids])

    def _run(self, items: Sequence[Item], plans: Sequence[SteerPlan | None]) -> Arm:
        return run_arm(self.variant.model, items, plans, self.sampling, self.judges)

    def plan(self, steer: Steer) -> SteerPlan:
        if steer not in self._plans:
            made = plan_steering(self.variant.model, [steer], self.library, self.variant.calibration)
            self._plans[steer] = made
        return self._plans[steer]


def _draw_prompts(
    held_out: Sequence[Chunk],
    library: ConceptLibrary,
    judges: Judges,
    concept_ids: Sequence[int],
    settings: SteeringSettings,
) -> _Prompts:
    plain = plain_items(
        held_out,
        judges.tokenizer,
        concept_ids,
        library.num_known,
        per_concept=settings.tuning_prompts + settings.prompts,
        num_tokens=settings.prompt_tokens,
        seed=settings.seed,
    )
    carrying = carrying_items(
        held_out,
        judges.tokenizer,
        concept_ids,
        library.num_known,
        per_concept=settings.suppression_prompts,
        num_tokens=settings.carrying_tokens,
        seed=settings.seed,
    )
    cut = settings.tuning_prompts
    tuning, report = [items[:cut] for items in plain], [items[cut:] for items in plain]
    return _Prompts(tuning, report, carrying, settings.perplexity_limits)


def _own(items: Sequence[Item]) -> list[int]:
    return [item.concept_id for item in items]


def _other(items: Sequence[Item]) -> list[int]:
    return [item.other_id for item in items]


def _difference(interval: Interval) -> dict[str, Any]:
    return interval.as_json("value")


def _examples(
    library: ConceptLibrary, items: Sequence[Item], unsteered: Arm, target: Arm, count: int = 12
) -> list[dict[str, Any]]:
    """The first text of some concepts, unsteered and steered: in the order drawn, not chosen."""
    first = {item.concept_id: row for row, item in reversed(list(enumerate(items)))}
    return [
        {
            "concept": library.card("known", concept_id).name,
            "unsteered": unsteered.texts[row],
            "target": target.texts[row],
            "hit": bool(target.hit[row]),
        }
        for concept_id, row in sorted(first.items())[:count]
    ]
