"""Tags to candidate concepts (§4.2.2): cluster, prune, judge, merge; every drop keeps its reason.

Spherical k-means runs far above the wanted number of concepts. A member stays only if it is near its centroid
in meaning *and* in company (either alone confuses: "locale" looks like "local"). A cluster's quality is the
product of its coherence in both, its specificity and its variety, so one weak side is enough to sink it.
Near-duplicates are merged by communities of the graph of close centroids, again and again until none is left.

Letters: n tags, K clusters, E width of a tag vector; the first 384 numbers of a vector are meaning.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import faiss
import numpy as np
from jaxtyping import Float, Float32
from numpy.typing import NDArray
from scipy.sparse import csr_matrix
from sknetwork.clustering import Leiden

from vitrail.atlas.concepts.geometry import unit
from vitrail.atlas.concepts.space import TagSpace

CLUSTERS_PER_CONCEPT = 2.5
MIN_TAG_SPECIFICITY = 0.2
MIN_MEMBERS = 3
MIN_COHERENCE = 0.35
MIN_SPECIFICITY = 0.3
MERGE_COSINE = 0.80
MEMBER_COSINE, MEMBER_MEANING, MEMBER_COMPANY = 0.45, 0.3, 0.25


@dataclass(frozen=True)
class Cluster:
    """A candidate concept.

    Attributes:
        members: its tags, sorted.
        meaning: coherence in meaning, the root of the mean cosine of two members: 0..1.
        company: the same of co-occurrence.
        specificity: mean over members.
        variety: chance that two occurrences are of different members; low if one word is all there is.
    """

    members: NDArray[np.int64]
    meaning: float
    company: float
    specificity: float
    variety: float

    @property
    def quality(self) -> float:
        """What candidates are ranked by."""
        return self.meaning * self.company * self.specificity * self.variety

    @property
    def fault(self) -> str:
        """Why the cluster is no concept, or an empty string."""
        if len(self.members) < MIN_MEMBERS:
            return "fewer than three tags"
        if min(self.meaning, self.company) < MIN_COHERENCE:
            return "incoherent"
        if self.specificity < MIN_SPECIFICITY:
            return "words of everywhere"
        return ""


def cluster_tags(space: TagSpace, num_concepts: int, seed: int) -> list[Cluster]:
    """Candidate concepts by spherical k-means over the specific tags.

    Args:
        space: the tags, in alphabetical order, so that the order of input cannot matter.
        num_concepts: how many concepts are wanted in the end.
        seed: of the initial centroids.

    Returns:
        the clusters, pruned, in no meaningful order.
    """
    usable = np.flatnonzero(space.specificity >= MIN_TAG_SPECIFICITY)
    num_clusters = min(int(CLUSTERS_PER_CONCEPT * num_concepts), len(usable) // 4)
    if num_clusters < 1:
        return []
    kmeans = faiss.Kmeans(
        space.vectors.shape[1],
        num_clusters,
        niter=25,
        spherical=True,
        seed=seed + 1,
        min_points_per_centroid=1,
        max_points_per_centroid=len(usable),
    )
    kmeans.train(space.vectors[usable], weights=np.sqrt(space.num_chunks[usable]).astype(np.float32))
    nearest = (space.vectors[usable] @ unit(np.asarray(kmeans.centroids)).T).argmax(1)
    return [judged(space, usable[nearest == i]) for i in range(num_clusters)]


def judged(space: TagSpace, members: NDArray[np.int64]) -> Cluster:
    """A cluster of those tags that agree, with its coherence.

    Args:
        space: the tags.
        members: tags that may belong together.

    Returns:
        the pruned cluster.
    """
    for _ in range(2):
        members = _agreeing(space, members)
    if not len(members):
        return Cluster(members, 0.0, 0.0, 0.0, 0.0)
    weights = np.sqrt(space.num_chunks[members])
    weights = weights / weights.sum()
    meaning, company = _halves(space, space.vectors[members])
    return Cluster(
        members,
        _agreement(meaning, weights),
        _agreement(company, weights),
        float(weights @ space.specificity[members]),
        float(1 - (weights**2).sum()),
    )


def _agreement(vectors: Float32[np.ndarray, "m E"], weights: Float[np.ndarray, " m"]) -> float:
    """Root of the weighted mean cosine between two *different* tags, so that one big tag is no agreement."""
    own = float((weights**2).sum())
    if own >= 1:
        return 0.0
    pairs = (float(np.linalg.norm(weights @ vectors)) ** 2 - own) / (1 - own)
    return math.sqrt(max(pairs, 0.0))


def _agreeing(space: TagSpace, members: NDArray[np.int64]) -> NDArray[np.int64]:
    if not len(members):
        return members
    vectors, centre = space.vectors[members], space.mean(members)[None]
    whole = (unit(vectors) @ unit(centre).T)[:, 0]
    meaning, company = (
        (half @ unit(middle).T)[:, 0]
        for half, middle in zip(_halves(space, vectors), _halves(space, centre), strict=True)
    )
    is_near = (whole >= MEMBER_COSINE) & (meaning >= MEMBER_MEANING) & (company >= MEMBER_COMPANY)
    return np.asarray(members[is_near])


def _halves(
    space: TagSpace, vectors: Float32[np.ndarray, "n E"]
) -> tuple[Float32[np.ndarray, "n M"], Float32[np.ndarray, "n S"]]:
    return unit(vectors[:, : space.meaning_width]), unit(vectors[:, space.meaning_width :])


def merge_duplicates(space: TagSpace, clusters: Sequence[Cluster], seed: int) -> list[Cluster]:
    """Clusters with near-duplicates joined, by communities of the graph of close centroids, until stable.

    Args:
        space: the tags.
        clusters: sound clusters.
        seed: of the community search.

    Returns:
        as many clusters or fewer; no two centroids above the merge cosine.
    """
    current = sorted(clusters, key=_key)
    while len(current) > 1:
        centroids = unit(np.stack([space.mean(cluster.members) for cluster in current]))
        close = centroids @ centroids.T
        np.fill_diagonal(close, 0)
        close[close < MERGE_COSINE] = 0
        if not close.any():
            break
        community = Leiden(random_state=seed).fit_predict(csr_matrix(close))
        merged = [
            judged(space, np.sort(np.concatenate([current[i].members for i in np.flatnonzero(community == c)])))
            for c in np.unique(community)
        ]
        if len(merged) == len(current):
            break
        current = sorted((cluster for cluster in merged if not cluster.fault), key=_key)
    return current


def _key(cluster: Cluster) -> tuple[float, tuple[int, ...]]:
    return (-cluster.quality, tuple(cluster.members.tolist()))
