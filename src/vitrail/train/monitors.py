"""Warnings from the paper's own failures (§9.4): masking, entanglement, forgetting, deaf concepts.

A monitor remembers plain numbers (they are part of the training state), and says one line when its bound
is passed for the first time.
"""

import math
from collections.abc import Mapping

MASK_RATE_BOUND = 0.5
INDEPENDENCE_RATIO = 3.0
PROBE_DROP = 0.1
DEAF_SHARE = 1 / 3


class Monitors:
    """Watches the run; `memory` is its whole state."""

    def __init__(self, memory: Mapping[str, float] | None = None) -> None:
        """Start afresh, or from what an earlier run remembered.

        Args:
            memory: state of earlier monitors.
        """
        self.memory: dict[str, float] = dict(memory or {})

    def mask_rate(self, expected: float) -> list[str]:
        """Expected share of masked tokens: over a half the model is left with little context (§9.4.1).

        Args:
            expected: mean noise level now.

        Returns:
            warnings, usually none.
        """
        text = f"the expected mask rate is {expected:.2f}, above {MASK_RATE_BOUND}: little context is left"
        return self._once("mask_rate", expected > MASK_RATE_BOUND, text)

    def independence(self, value: float) -> list[str]:
        """Independence loss against its minimum so far (§9.4.2).

        Args:
            value: held-out independence.

        Returns:
            warnings, usually none.
        """
        least = min(self.memory.get("independence_min", value), value)
        self.memory["independence_min"] = least
        bound = f"{INDEPENDENCE_RATIO:g} times its minimum {least:.3g}"
        text = f"independence is {value:.3g}, over {bound}: the heads entangle"
        return self._once("independence", value > INDEPENDENCE_RATIO * least, text)

    def probe(self, name: str, accuracy: float, num_questions: int | None = None) -> list[str]:
        """A capability probe against its peak so far (§9.4).

        Args:
            name: of the probe; `accuracy` is the share of held-out predictions that are right.
            accuracy: share of right answers.
            num_questions: of a small probe: two standard errors of the peak must be passed as well. None: many.

        Returns:
            warnings, usually none.
        """
        peak = max(self.memory.get(f"peak_{name}", accuracy), accuracy)
        self.memory[f"peak_{name}"] = peak
        text = f"held-out {name} {accuracy:.3f} fell over {PROBE_DROP:.0%} below its peak {peak:.3f}"
        noise = 2 * math.sqrt(peak * (1 - peak) / num_questions) if num_questions else 0.0
        return self._once(name, accuracy < peak - max(PROBE_DROP * peak, noise), text)

    def heldout(self, found: Mapping[str, float], num_questions: int | None = None) -> list[str]:
        """All monitors that read the held-out evaluation.

        Args:
            found: of `evaluation.Evaluation.run`; empty where the corpus has no held-out sequence.
            num_questions: of each probe.

        Returns:
            warnings, usually none.
        """
        if not found:
            return []
        warnings = self.independence(found["independence"]) if "independence" in found else []
        for name, value in found.items():
            if name == "accuracy":
                warnings += self.probe(name, value)
            elif name.startswith("probe_"):
                warnings += self.probe(name, value, num_questions)
        return warnings

    def deaf(self, share: float) -> list[str]:
        """Share of concepts whose activation does not rise when they are injected (§9.4.4).

        Args:
            share: deaf concepts over injected ones.

        Returns:
            warnings, usually none.
        """
        text = f"{share:.0%} of the injected concepts do not activate: the model does not hear them"
        return self._once("deaf", share > DEAF_SHARE, text)

    def _once(self, name: str, is_passed: bool, text: str) -> list[str]:
        said = self.memory.get(f"said_{name}", 0.0)
        self.memory[f"said_{name}"] = float(is_passed)
        return [text] if is_passed and not said else []
