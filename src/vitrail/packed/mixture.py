"""Mixtures: which group each place of the stream takes, and which of the group's sequences.

A stage is cut into cycles of 4,096 places. In each cycle a group has a fixed number of places (largest remainders of
its weight), in shuffled order. So how many places a group had before any place is known without counting from the
start: the stream of each group goes on where it was, over cycles, stages and interruptions.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from jaxtyping import Int64

from vitrail.errors import ConfigError, nearest
from vitrail.packed.settings import MixtureStage
from vitrail.packed.shuffle import permuted

CYCLE = 4_096


@dataclass(frozen=True)
class _Stage:
    """Places first..stop-1, and how many each group had before."""

    first: int
    quotas: Int64[np.ndarray, " G"]
    before: Int64[np.ndarray, " G"]


class Mixture:
    """From places of the stream to groups, and places in the groups' own streams."""

    def __init__(self, stages: Sequence[MixtureStage], groups: Mapping[str, int], batch_size: int, seed: int) -> None:
        """Lay the stages out.

        Args:
            stages: in order of their steps, the first from step 0.
            groups: groups that there are, and their numbers of sequences.
            batch_size: places of a step.
            seed: of the order inside the cycles.

        Raises:
            ConfigError: a group that there is not, or one whose weight is too small for a single place.
        """
        self._seed = seed
        self.groups = sorted({name for stage in stages for name in stage.weights})
        for name in self.groups:
            if name not in groups:
                known = nearest(name, groups) or f"; there are {', '.join(sorted(groups)[:8])}"
                raise ConfigError(f"mixture: no group is called '{name}'{known}")
        self._cycle = lru_cache(maxsize=4)(self._drawn_cycle)
        self._stages: list[_Stage] = []
        before = np.zeros(len(self.groups), dtype=np.int64)
        for number, stage in enumerate(stages):
            if number:
                before = self._had_before(number - 1, stage.from_step * batch_size)
            self._stages.append(_Stage(stage.from_step * batch_size, self._quotas(stage), before))

    def drawn(self, places: Int64[np.ndarray, " n"]) -> tuple[Int64[np.ndarray, " n"], Int64[np.ndarray, " n"]]:
        """What stands at places of the stream.

        Args:
            places: 0, 1, 2, …

        Returns:
            number of the group in `groups`, and place in the group's own stream.
        """
        group, own = np.empty_like(places), np.empty_like(places)
        stages = np.searchsorted([stage.first for stage in self._stages], places, side="right") - 1
        for number in np.unique(stages).tolist():
            stage = self._stages[number]
            cycles, inside = np.divmod(places - stage.first, CYCLE)
            for cycle in np.unique(cycles[stages == number]).tolist():
                here = (stages == number) & (cycles == cycle)
                groups, ranks = self._cycle(number, cycle)
                group[here] = groups[inside[here]]
                own[here] = stage.before[group[here]] + cycle * stage.quotas[group[here]] + ranks[inside[here]]
        return group, own

    def _quotas(self, stage: MixtureStage) -> Int64[np.ndarray, " G"]:
        weights = np.array([stage.weights.get(name, 0.0) for name in self.groups])
        exact = CYCLE * weights / weights.sum()
        quotas: Int64[np.ndarray, " G"] = np.floor(exact).astype(np.int64)
        largest = np.argsort(quotas - exact, kind="stable")[: CYCLE - int(quotas.sum())]
        quotas[largest] += 1
        for name, weight, quota in zip(self.groups, weights.tolist(), quotas.tolist(), strict=True):
            if weight > 0 and quota == 0:
                raise ConfigError(
                    f"mixture from step {stage.from_step}: weight {weight:g} of '{name}' is less than one place in "
                    f"{CYCLE:,}; raise it, or leave the group out"
                )
        return quotas

    def _drawn_cycle(self, stage: int, cycle: int) -> tuple[Int64[np.ndarray, "4096"], Int64[np.ndarray, "4096"]]:
        """Group of each place of a cycle, and how many of the cycle's places before it are of the same group."""
        quotas = self._stages[stage].quotas
        slots = permuted(np.arange(CYCLE), CYCLE, (self._seed, "cycle", stage, cycle))
        groups = np.searchsorted(np.cumsum(quotas), slots, side="right")
        ranks = np.empty(CYCLE, dtype=np.int64)
        ranks[np.argsort(groups, kind="stable")] = np.arange(CYCLE) - np.repeat(np.cumsum(quotas) - quotas, quotas)
        return groups, ranks

    def _had_before(self, number: int, place: int) -> Int64[np.ndarray, " G"]:
        """Places that each group had before a place of a stage, or its end."""
        stage = self._stages[number]
        cycles, rest = divmod(place - stage.first, CYCLE)
        groups, _ = self._cycle(number, cycles)
        had: Int64[np.ndarray, " G"] = (
            stage.before + cycles * stage.quotas + np.bincount(groups[:rest], minlength=len(self.groups))
        )
        return had
