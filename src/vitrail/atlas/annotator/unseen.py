"""Bars for labels that cannot be seen: where neither tag nor phrase stands in the chunk (§4.2.3).

A label must be seen while `visible_labels` holds; concepts without any tag or phrase go by the head alone. Ours (C):
with enough examples the bar lets pass 70 % of those left out of the fit; else it lets pass the share of chunks that a
concept is expected to have. Prevalence limits hold for concepts that people gave; to the labels that evidence gives an
automatic one, the head adds at most a quarter.

Letters: R chunks, C concepts, E width.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float32
from numpy.typing import NDArray

from vitrail.atlas.annotator.heads import Heads
from vitrail.atlas.settings import AtlasSettings

PASSING = 0.7
ADDED_SHARE = 0.25
"""Unseen labels of an automatic concept, for each chunk that evidence labels."""

SLACK = 1.5
"""How far above the share of its examples in the corpus a concept may go."""


@dataclass(frozen=True)
class Hint:
    """What decides one concept's bar.

    Attributes:
        must_be_seen: no label without tag or phrase.
        labelled: chunks labelled by evidence or known as examples.
        is_own: given by a person.
        fresh: z of examples left out of the fit; None where there are too few.
    """

    must_be_seen: bool
    labelled: NDArray[np.int64]
    is_own: bool
    fresh: Float32[np.ndarray, " e"] | None


def unseen_bars(
    hints: Sequence[Hint], heads: Heads, chunks: Float32[np.ndarray, "R E"], settings: AtlasSettings
) -> Float32[np.ndarray, " C"]:
    """The lowest z of an unseen label.

    Args:
        hints: of C concepts.
        heads: of the same.
        chunks: [R E] vectors of the corpus.
        settings: prevalence limits.

    Returns:
        [C] rounded to a thousandth; infinite where labels must be seen.
    """
    bars = np.full(len(hints), np.inf, np.float32)
    free = np.flatnonzero([not hint.must_be_seen for hint in hints])
    for concepts, z in heads.z_of(chunks, free):
        for concept, column in zip(concepts.tolist(), z.T, strict=True):
            bars[concept] = round(_bar(hints[concept], column, settings), 3)
    return bars


def _bar(hint: Hint, z: Float32[np.ndarray, " R"], settings: AtlasSettings) -> float:
    share = len(hint.labelled) / len(z)
    lowest = float(np.quantile(z, 1 - max(settings.max_prevalence, min(SLACK * share, 1))))
    if hint.fresh is not None:
        return max(float(np.quantile(hint.fresh, 1 - PASSING)), lowest)
    if hint.is_own:
        return max(float(np.quantile(z, 1 - settings.least_prevalence)), lowest)
    others = np.delete(z, hint.labelled)
    return float(np.quantile(others, 1 - ADDED_SHARE * share)) if len(others) else np.inf
