"""Which open positions one forward fills in, and in which order (§5.2).

A policy sees how sure the model is of each open position of one request, and picks. More than one position a
step is faster and, since positions filled together do not see each other, less exact: `Threshold` and `Factor`
take several only where the model is sure.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Moment:
    """Where in its block a request stands.

    Attributes:
        step: forwards made in this block before, from 0.
        opened: positions that were open when the block began.
    """

    step: int
    opened: int


Policy = Callable[[Sequence[float], Moment], list[int]]
"""From the confidence of each open position, left to right (log-probability of its most likely token, in nats), to
the numbers of those that are filled in now, in the order of commitment; at least one where any is open."""


@dataclass(frozen=True)
class MostConfident:
    """The same number of positions each step, the most confident first.

    Attributes:
        count: positions a step.
    """

    count: int = 1

    def __call__(self, confidence: Sequence[float], moment: Moment) -> list[int]:
        """Pick; see `Policy`."""
        return _ranked(confidence)[: self.count]


@dataclass(frozen=True)
class Linear:
    """A fixed number of steps a block, positions spread over them as evenly as can be: the schedule of the release.

    Step s of S fills in ⌊m/S⌋ of m positions, and one more where s < m mod S; steps without any are left out.

    Attributes:
        steps: S, forwards a block at most.
    """

    steps: int

    def __call__(self, confidence: Sequence[float], moment: Moment) -> list[int]:
        """Pick; see `Policy`."""
        count = moment.opened // self.steps + (moment.step < moment.opened % self.steps)
        return _ranked(confidence)[: max(1, count)]


@dataclass(frozen=True)
class Threshold:
    """Every position that the model is sure enough of, and always the surest.

    Attributes:
        probability: how sure, in (0, 1].
    """

    probability: float

    def __call__(self, confidence: Sequence[float], moment: Moment) -> list[int]:
        """Pick; see `Policy`."""
        order, least = _ranked(confidence), math.log(self.probability)
        return order[: max(1, sum(value >= least for value in confidence))]


@dataclass(frozen=True)
class Factor:
    """As many positions as are sure together: the largest n with (n + 1)(1 − p_n) < f, p_n the n-th probability.

    Attributes:
        factor: f; larger ones take more positions a step.
    """

    factor: float

    def __call__(self, confidence: Sequence[float], moment: Moment) -> list[int]:
        """Pick; see `Policy`."""
        order = _ranked(confidence)
        doubts = [-math.expm1(confidence[place]) for place in order]
        counts = [n for n, doubt in enumerate(doubts, start=1) if (n + 1) * doubt < self.factor]
        return order[: max(counts, default=1)]


@dataclass(frozen=True)
class LeftToRight:
    """The leftmost open positions, as an autoregressive model would write.

    Attributes:
        count: positions a step.
    """

    count: int = 1

    def __call__(self, confidence: Sequence[float], moment: Moment) -> list[int]:
        """Pick; see `Policy`."""
        return list(range(min(self.count, len(confidence))))


def _ranked(confidence: Sequence[float]) -> list[int]:
    """Most confident first, equal ones from the left."""
    return sorted(range(len(confidence)), key=lambda place: -confidence[place])
