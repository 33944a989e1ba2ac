"""A keyed pseudorandom permutation of 0..n-1 that needs no memory: any place of it is computed on its own.

A Feistel network permutes the numbers of 2·w bits, for the smallest w that holds n; a number that lands beyond n is
sent through again until it does not (cycle walking), which makes the permutation one of 0..n-1.
"""

import hashlib
from functools import lru_cache

import numpy as np
from jaxtyping import Int64
from numpy.typing import NDArray

_ROUNDS = 8
_MULTIPLIERS = (np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB))
_SHIFTS = (np.uint64(30), np.uint64(27), np.uint64(31))


def permuted(places: Int64[np.ndarray, " m"], num: int, key: tuple[int | str, ...]) -> Int64[np.ndarray, " m"]:
    """Where a permutation of 0..n-1 sends places.

    Args:
        places: 0..n-1.
        num: n, at least 1.
        key: which permutation.

    Returns:
        numbers 0..n-1; different for different places.

    Cost: O(m), about 5 million places per core-second.
    """
    half = max(1, -(-(num - 1).bit_length() // 2))
    keys = _round_keys(key)
    result = _once(places.astype(np.uint64), half, keys)
    while len(outside := np.flatnonzero(result >= num)):
        result[outside] = _once(result[outside], half, keys)
    return result.astype(np.int64)


def _once(values: NDArray[np.uint64], half: int, keys: NDArray[np.uint64]) -> NDArray[np.uint64]:
    width, mask = np.uint64(half), np.uint64((1 << half) - 1)
    left, right = values >> width, values & mask
    for key in keys:
        left, right = right, left ^ (_mixed(right ^ key) & mask)
    return (left << width) | right


def _mixed(values: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """The finaliser of SplitMix64: every bit of the result depends on every bit of the value."""
    for shift, multiplier in zip(_SHIFTS, _MULTIPLIERS, strict=False):
        values = (values ^ (values >> shift)) * multiplier
    return values ^ (values >> _SHIFTS[-1])


@lru_cache(maxsize=1024)
def _round_keys(key: tuple[int | str, ...]) -> NDArray[np.uint64]:
    digest = hashlib.shake_128(repr(key).encode()).digest(8 * _ROUNDS)
    return np.frombuffer(digest, dtype="<u8").astype(np.uint64)
