"""A partly whitened space: wide directions are narrowed, narrow ones are not blown up.

Letters: U unlabelled chunks, C concepts, E width.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float32
from numpy.typing import NDArray

SHRINKAGE = 10.0
"""Multiple of the mean variance that is added to every direction: 0 whitens wholly, infinity not at all."""


@dataclass(frozen=True)
class Whitening:
    """The affine map `x' = (x - mean) @ matrix`.

    Attributes:
        mean: [E].
        matrix: [E E] symmetric.
    """

    mean: Float32[np.ndarray, " E"]
    matrix: Float32[np.ndarray, "E E"]

    @classmethod
    def fit(cls, chunks: Float32[np.ndarray, "U E"], importance: Float32[np.ndarray, " U"]) -> "Whitening":
        """The whitening of some chunks.

        Args:
            chunks: [U E] vectors.
            importance: [U] weights.

        Returns:
            the map; the identity about the mean where all chunks are alike.
        """
        share = (importance / importance.sum()).astype(np.float64)
        mean = share @ chunks
        centred = chunks - mean
        variances, axes = np.linalg.eigh((centred * share[:, None]).T @ centred)
        variances = np.maximum(variances, 0)
        usual = float(variances.mean())
        if usual < 1e-12:
            return cls(mean.astype(np.float32), np.eye(len(mean), dtype=np.float32))
        scale = 1 / np.sqrt(variances / usual + SHRINKAGE) / np.sqrt(usual)
        return cls(mean.astype(np.float32), np.asarray((axes * scale) @ axes.T, np.float32))

    def __call__(self, chunks: Float32[np.ndarray, "n E"]) -> Float32[np.ndarray, "n E"]:
        """Chunks in whitened space."""
        return np.asarray((chunks - self.mean) @ self.matrix, np.float32)

    def back(self, weights: Float32[np.ndarray, "C E"]) -> Float32[np.ndarray, "C E"]:
        """Linear heads of plain space as heads of whitened space."""
        solved: NDArray[Any] = np.linalg.solve(self.matrix.astype(np.float64), weights.T.astype(np.float64))
        return np.asarray(solved.T, np.float32)
