"""The reservoir: unlabelled chunks for the heads, enriched in the long tail (§4.2.3).

The paper states a long-tail-enriched reservoir and rarity-weighted sampling (S), without figures. Ours (C): half
of the chance is the same for every chunk, half goes by rarity, the sum over the chunk's labels of 1 / (chunks of
that label); so every concept expects as many of its chunks from that half, however rare it is. Each drawn chunk
carries the inverse of its chance as importance, so that risks stay those of the corpus.

Letters: R chunks, U drawn ones.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float32
from numpy.typing import NDArray

RESERVOIR = 8_192
RARE_SHARE = 0.5


@dataclass(frozen=True)
class Reservoir:
    """Drawn chunks.

    Attributes:
        rows: [U] chunk numbers, rising.
        importance: [U] weights with mean 1.
    """

    rows: NDArray[np.int64]
    importance: Float32[np.ndarray, " U"]


def draw_reservoir(labelled: Sequence[NDArray[np.int64]], num_chunks: int, seed: int) -> Reservoir:
    """Draw chunks without replacement.

    Args:
        labelled: the chunks of each concept.
        num_chunks: R.
        seed: of the draw.

    Returns:
        at most 8,192 chunks; all of them, of equal importance, where there are no more.
    """
    if num_chunks <= RESERVOIR:
        return Reservoir(np.arange(num_chunks), np.ones(num_chunks, np.float32))
    rarity = np.zeros(num_chunks)
    for rows in labelled:
        rarity[rows] += 1 / len(rows) if len(rows) else 0
    chance = np.full(num_chunks, 1 / num_chunks)
    if rarity.any():
        chance = (1 - RARE_SHARE) * chance + RARE_SHARE * rarity / rarity.sum()
    # Exponential clocks: the first to ring are a weighted draw without replacement.
    clocks = np.random.default_rng(seed).exponential(size=num_chunks) / chance
    rows = np.sort(np.argsort(clocks, kind="stable")[:RESERVOIR])
    importance = 1 / np.minimum(1, RESERVOIR * chance[rows])
    return Reservoir(rows, (importance / importance.mean()).astype(np.float32))
