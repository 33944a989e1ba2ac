"""How many clusters? The coherence-vs-k curve (§4.2.2: k is chosen on it).

With few clusters, each mixes subjects; with many, subjects fall apart into crumbs of two tags that no reader would
call a concept, and near-duplicates that merging joins again. Between them lies a range in which most tags sit in
sound clusters. The curve shows both sides, for a person to choose from.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from vitrail.atlas.concepts.clusters import Cluster, cluster_tags, merge_to_stability
from vitrail.atlas.concepts.space import TagSpace


@dataclass(frozen=True)
class CurvePoint:
    """What k clusters give.

    Attributes:
        num_clusters: k asked for, or as many as there are tags for.
        num_sound: clusters without a fault.
        num_merged: concepts left after near-duplicates are joined.
        kept_share: share of the tags that sit in one of these, 0..1.
        meaning: coherence in meaning, mean over tags of merged concepts.
        company: the same in company.
        tags_per_concept: mean.
    """

    num_clusters: int
    num_sound: int
    num_merged: int
    kept_share: float
    meaning: float
    company: float
    tags_per_concept: float


def coherence_curve(space: TagSpace, num_clusters: Sequence[int], seed: int) -> list[CurvePoint]:
    """One point for each number of clusters.

    Args:
        space: the tags.
        num_clusters: the numbers to try.
        seed: of clustering and merging.

    Returns:
        the points, in the given order.
    """
    return [_point(space, k, seed) for k in num_clusters]


def _point(space: TagSpace, k: int, seed: int) -> CurvePoint:
    found = cluster_tags(space, 0, seed, num_clusters=k)
    sound = [cluster for cluster in found if not cluster.fault]
    merged = merge_to_stability(space, sound, seed).kept
    num_tags = sum(len(cluster.members) for cluster in merged)
    return CurvePoint(
        len(found),
        len(sound),
        len(merged),
        num_tags / max(len(space.num_chunks), 1),
        _mean(merged, [cluster.meaning for cluster in merged]),
        _mean(merged, [cluster.company for cluster in merged]),
        num_tags / max(len(merged), 1),
    )


def _mean(clusters: Sequence[Cluster], values: Sequence[float]) -> float:
    sizes = [len(cluster.members) for cluster in clusters]
    return float(np.average(values, weights=sizes)) if sizes else 0.0
