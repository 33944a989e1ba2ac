"""Places of concepts on a map: UMAP of their vectors, or their first two principal components.

UMAP (McInnes et al. 2018) keeps near things near; distances between far groups mean nothing. It needs the extra
`vitrail[map]`, and about twenty seconds to load. PCA needs nothing and shows only the two broadest contrasts. Both
are functions of the vectors and the seed.
"""

import warnings
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from typing import Literal

import numpy as np
from jaxtyping import Float32

from vitrail.errors import ConfigError

Method = Literal["auto", "umap", "pca"]
NEIGHBOURS = 15
FEWEST_FOR_UMAP = 10
"""With fewer concepts there are no neighbourhoods to keep."""


@dataclass(frozen=True)
class Layout:
    """Where concepts stand.

    Attributes:
        method: "UMAP" or "PCA", for the caption.
        positions: [C 2] in the unit square, y upwards; four decimals.
    """

    method: str
    positions: Float32[np.ndarray, "C 2"]


def resolved(method: Method) -> Literal["umap", "pca"]:
    """The method that `auto` stands for on this machine.

    Args:
        method: what was asked for.

    Returns:
        UMAP where it is asked for or, for `auto`, installed.

    Raises:
        ConfigError: UMAP is asked for and not installed.
    """
    is_there = find_spec("umap") is not None
    if method == "umap" and not is_there:
        raise ConfigError("layout 'umap' needs umap-learn; run: pip install 'vitrail[map]', or choose layout pca")
    return "umap" if method != "pca" and is_there else "pca"


def lay_out(vectors: Float32[np.ndarray, "C E"], method: Method, seed: int) -> Layout:
    """Lay concepts out in the plane.

    Args:
        vectors: unit vectors.
        method: `auto` takes UMAP where it is installed and there are ten concepts or more.
        seed: of UMAP.

    Returns:
        the layout.

    Raises:
        ConfigError: UMAP is asked for and not installed.
    """
    if resolved(method) == "pca" or len(vectors) < FEWEST_FOR_UMAP:
        return Layout("PCA", _unit_square(_pca(vectors)))
    return Layout("UMAP", _unit_square(_umap(vectors, seed)))


def _umap(vectors: Float32[np.ndarray, "C E"], seed: int) -> Float32[np.ndarray, "C 2"]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it warns that a seed means one thread: that is what we want
        umap = import_module("umap")  # loaded here alone: it compiles for many seconds
        mapper = umap.UMAP(
            n_neighbors=min(NEIGHBOURS, len(vectors) - 1), min_dist=0.15, init="pca", random_state=seed, n_jobs=1
        )
        return np.asarray(mapper.fit_transform(vectors), np.float32)


def _pca(vectors: Float32[np.ndarray, "C E"]) -> Float32[np.ndarray, "C 2"]:
    centred = (vectors - vectors.mean(0)).astype(np.float64)
    if min(centred.shape) < 2:
        return np.stack([np.arange(len(vectors)), np.zeros(len(vectors))], 1).astype(np.float32)
    _, _, axes = np.linalg.svd(centred, full_matrices=False)
    axes = axes[:2]
    signs = np.sign(axes[np.arange(2), np.abs(axes).argmax(1)])  # a component's sign is free: fix it
    return np.asarray(centred @ (axes * signs[:, None]).T, np.float32)


def _unit_square(points: Float32[np.ndarray, "C 2"]) -> Float32[np.ndarray, "C 2"]:
    low = points.min(0)
    extent = (points.max(0) - low).max()
    middle = (points - low - (points.max(0) - low) / 2) / (extent or 1) + 0.5
    return np.asarray(np.round(middle, 4), np.float32)
