"""Tags to candidate concepts (§4.2.2): cluster, prune, judge, merge; every drop keeps its reason.

Spherical k-means (faiss; the same call runs on its GPU build) runs far above the wanted number of concepts, on a
sample of the tags where there are very many, as faiss itself would draw one; then every tag goes to its nearest
centroid, a slab of tags at a time. A member stays only if it is near its centroid
in meaning *and* in company (either alone confuses: "locale" looks like "local"). A cluster's quality is the
product of its coherence in both, its specificity and its variety, so one weak side is enough to sink it.
Near-duplicates are merged by communities of the graph of close centroids (`graph`), again and again until none is
left.

Letters: n tags, K clusters, E width of a tag vector; the first 384 numbers of a vector are meaning.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import faiss
import numpy as np
from jaxtyping import Float, Float32
from numpy.typing import NDArray

from vitrail.atlas.concepts.geometry import DIGITS, unit
from vitrail.atlas.concepts.graph import close_pairs, communities
from vitrail.atlas.concepts.space import TagSpace

CLUSTERS_PER_CONCEPT = 2.5
NUM_ROUNDS = 25
SAMPLE_PER_CLUSTER, LEAST_SAMPLE = 64, 100_000
"""k-means sees this many tags a cluster, and all of them while they are few."""
SLAB = 4_096
MIN_TAG_SPECIFICITY = 0.2
MIN_MEMBERS = 3
MIN_COHERENCE = 0.35
MIN_SPECIFICITY = 0.3
MIN_NOUN_SHARE = 0.35
MIN_QUALITY = 0.06
"""Of 1,024 concepts of a corpus of 88 MB, most of the 130 below this were vague to a reader of the card alone."""
MERGE_COSINE = 0.80
MEMBER_COSINE, MEMBER_MEANING, MEMBER_COMPANY = 0.45, 0.3, 0.3


@dataclass(frozen=True)
class Cluster:
    """A candidate concept.

    Attributes:
        members: its tags, sorted.
        meaning: coherence in meaning, the root of the mean cosine of two members: 0..1.
        company: the same of co-occurrence; where the space has but one of the two, both are that one.
        specificity: mean over members.
        variety: chance that two occurrences are of different members; low if one word is all there is.
        noun_share: mean over members; low if they say how or do, and not what.
    """

    members: NDArray[np.int64]
    meaning: float
    company: float
    specificity: float
    variety: float
    noun_share: float = 1.0

    @property
    def quality(self) -> float:
        """What candidates are ranked by."""
        return self.meaning * self.company * self.specificity * self.variety * self.noun_share

    @property
    def fault(self) -> str:
        """Why the cluster is no concept, or an empty string."""
        if len(self.members) < MIN_MEMBERS:
            return "fewer than three tags"
        if min(self.meaning, self.company) < MIN_COHERENCE:
            return "incoherent"
        if self.specificity < MIN_SPECIFICITY:
            return "words of everywhere"
        if self.noun_share < MIN_NOUN_SHARE:
            return "names no thing"
        if self.quality < MIN_QUALITY:
            return "weak on every side"
        return ""


def cluster_tags(space: TagSpace, num_concepts: int, seed: int, num_clusters: int | None = None) -> list[Cluster]:
    """Candidate concepts by spherical k-means over the specific tags.

    Args:
        space: the tags, in alphabetical order, so that the order of input cannot matter.
        num_concepts: how many concepts are wanted in the end.
        seed: of the sample and of the initial centroids.
        num_clusters: K; None takes two and a half times the wanted concepts, as far as there are tags.

    Returns:
        the clusters, pruned, in no meaningful order.
    Cost: O(n·K·E) time per round over the sample; memory one copy of the sample and K·E.
    """
    usable = np.flatnonzero(space.specificity >= MIN_TAG_SPECIFICITY)
    num_clusters = min(num_clusters or int(CLUSTERS_PER_CONCEPT * num_concepts), len(usable) // 4)
    if num_clusters < 1:
        return []
    centroids = spherical_centroids(space, usable, num_clusters, seed)
    return grouped(space, usable, nearest_centroid(space.vectors, usable, centroids), num_clusters)


def spherical_centroids(
    space: TagSpace, usable: NDArray[np.int64], num_clusters: int, seed: int
) -> Float32[np.ndarray, "K E"]:
    """Centroids of spherical k-means, each tag weighted by the root of its frequency.

    Args:
        space: the tags.
        usable: which of them take part; a sample of these where there are more than 64 a cluster (and 100,000).
        num_clusters: K.
        seed: of the sample and of the initial centroids.

    Returns:
        [K E] unit rows.
    """
    wanted = max(SAMPLE_PER_CLUSTER * num_clusters, LEAST_SAMPLE)
    if wanted < len(usable):
        drawn = np.random.default_rng(seed).choice(len(usable), wanted, replace=False, shuffle=False)
        usable = usable[np.sort(drawn)]
    kmeans = faiss.Kmeans(
        space.vectors.shape[1],
        num_clusters,
        niter=NUM_ROUNDS,
        spherical=True,
        seed=seed + 1,
        min_points_per_centroid=1,
        max_points_per_centroid=len(usable),
    )
    kmeans.train(space.vectors[usable], weights=np.sqrt(space.num_chunks[usable]).astype(np.float32))
    return unit(np.asarray(kmeans.centroids))


def nearest_centroid(
    vectors: Float32[np.ndarray, "n E"], rows: NDArray[np.int64], centroids: Float32[np.ndarray, "K E"]
) -> NDArray[np.int64]:
    """The centroid of highest cosine for each of some vectors, a slab at a time.

    Args:
        vectors: [n E] unit rows; may be a memory map.
        rows: which of them.
        centroids: [K E] unit rows.

    Returns:
        [rows] centroid numbers.
    """
    index = faiss.IndexFlatIP(centroids.shape[1])
    index.add(centroids)
    out = np.empty(len(rows), np.int64)
    for start in range(0, len(rows), SLAB):
        slab = rows[start : start + SLAB]
        out[start : start + SLAB] = index.search(np.ascontiguousarray(vectors[slab]), 1)[1][:, 0]
    return out


def grouped(space: TagSpace, tags: NDArray[np.int64], nearest: NDArray[np.int64], num_clusters: int) -> list[Cluster]:
    """The tags of each centroid as a judged cluster.

    Args:
        space: the tags.
        tags: those that take part, rising.
        nearest: the centroid of each.
        num_clusters: K.

    Returns:
        K clusters, by centroid.
    """
    order = np.argsort(nearest, kind="stable")
    cuts = np.searchsorted(nearest[order], np.arange(1, num_clusters))
    return [judged(space, tags[part]) for part in np.split(order, cuts)]


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
        return Cluster(members, 0.0, 0.0, 0.0, 0.0, 0.0)
    weights = np.sqrt(space.num_chunks[members])
    weights = weights / weights.sum()
    coherence = [_agreement(half, weights) for half in _halves(space, space.vectors[members])]
    return Cluster(
        members,
        coherence[0],
        coherence[-1],
        float(weights @ space.specificity[members]),
        float(1 - (weights**2).sum()),
        float(weights @ space.noun_share[members]),
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
    is_near = _cosine(unit(vectors), centre) >= MEMBER_COSINE
    middles = _halves(space, centre)
    for half, middle, least in zip(_halves(space, vectors), middles, _limits(space), strict=True):
        is_near &= _cosine(half, middle) >= least
    return np.asarray(members[is_near])


def _cosine(vectors: Float32[np.ndarray, "m E"], centre: Float32[np.ndarray, "1 E"]) -> Float32[np.ndarray, " m"]:
    return np.asarray(np.round((vectors @ unit(centre).T)[:, 0], DIGITS))


def _halves(space: TagSpace, vectors: Float32[np.ndarray, "n E"]) -> list[Float32[np.ndarray, "n _"]]:
    """Meaning and company apart, as far as the space has them."""
    halves = (vectors[:, : space.meaning_width], vectors[:, space.meaning_width :])
    return [unit(half) for half in halves if half.shape[1]]


def _limits(space: TagSpace) -> list[float]:
    """The least cosine of a member in each of `_halves`."""
    has_company = space.meaning_width < space.vectors.shape[1]
    return [MEMBER_MEANING] * (space.meaning_width > 0) + [MEMBER_COMPANY] * has_company


@dataclass(frozen=True)
class Merging:
    """What becomes of clusters when near-duplicates are joined.

    Attributes:
        kept: sound clusters, no two with centroids above the merge cosine; by falling quality.
        dropped: what was given up on the way, with the reason.
    """

    kept: list[Cluster]
    dropped: list[tuple[Cluster, str]]


def merge_to_stability(space: TagSpace, clusters: Sequence[Cluster], seed: int) -> Merging:
    """Clusters with near-duplicates joined, by communities of the graph of close centroids, until stable.

    Args:
        space: the tags.
        clusters: sound clusters.
        seed: of the community search.

    Returns:
        as many clusters or fewer; and those dropped because the union held no better together than its parts.
    """
    current, dropped = sorted(clusters, key=_key), []
    while len(current) > 1:
        centroids = unit(np.stack([space.mean(cluster.members) for cluster in current]))
        graph = close_pairs(centroids, MERGE_COSINE)
        if not graph.nnz:
            break
        groups = communities(graph, seed)
        merged = [_joined(space, [current[i] for i in group]) for group in groups]
        dropped += [(cluster, f"merged with others, then {cluster.fault}") for cluster in merged if cluster.fault]
        if len(merged) == len(current):  # close pairs are left, but their communities are single nodes
            break
        current = sorted((cluster for cluster in merged if not cluster.fault), key=_key)
    return Merging(current, dropped)


def _joined(space: TagSpace, clusters: Sequence[Cluster]) -> Cluster:
    if len(clusters) == 1:
        return clusters[0]
    return judged(space, np.sort(np.concatenate([cluster.members for cluster in clusters])))


def _key(cluster: Cluster) -> tuple[float, tuple[int, ...]]:
    return (-cluster.quality, tuple(cluster.members.tolist()))
