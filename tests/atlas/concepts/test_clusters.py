"""Clusters of tags: the sparse graph equals the dense one, slabs equal the whole, merging ends and explains itself."""

import faiss
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.sparse import csr_matrix
from threadpoolctl import threadpool_limits

from vitrail.atlas.concepts import clusters, graph
from vitrail.atlas.concepts.clusters import (
    MERGE_COSINE,
    cluster_tags,
    judged,
    merge_to_stability,
    nearest_centroid,
    spherical_centroids,
)
from vitrail.atlas.concepts.curve import coherence_curve
from vitrail.atlas.concepts.geometry import DIGITS, unit
from vitrail.atlas.concepts.graph import close_pairs, communities
from vitrail.atlas.concepts.space import TagSpace


def topics(num_topics: int, per_topic: int, seed: int, *, meaning: int = 13, company: int = 7) -> TagSpace:
    """Tags around topics that lie far apart, in topic order."""
    rng = np.random.default_rng(seed)
    middles = np.linalg.qr(rng.standard_normal((meaning + company, meaning + company)))[0][:num_topics]
    n = num_topics * per_topic
    vectors = np.repeat(middles, per_topic, axis=0) + 0.05 * rng.standard_normal((n, meaning + company))
    return TagSpace(unit(vectors), meaning, rng.integers(4, 90, n), np.ones(n), np.ones(n))


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 40), st.integers(1, 11), st.integers(0, 10**6))
def test_close_pairs_are_the_dense_ones(num: int, slab: int, seed: int) -> None:
    """Whatever the slab: what a full K×K table would say, without making one."""
    rng = np.random.default_rng(seed)
    centroids = unit(np.repeat(rng.standard_normal((7, 11)), -(-num // 7), axis=0)[:num] + 0.2 * rng.random((num, 11)))
    dense = np.round((centroids @ centroids.T).astype(np.float64), DIGITS)
    np.fill_diagonal(dense, 0)
    dense[dense < MERGE_COSINE] = 0
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(graph, "SLAB", slab)
        found = close_pairs(centroids, MERGE_COSINE).toarray()
    np.testing.assert_array_equal(found, found.T)
    np.testing.assert_allclose(found, dense, atol=1.01 * 10**-DIGITS)  # two sums may round to neighbours


def test_communities_partition_the_nodes() -> None:
    """Two cliques and a loner: three groups, every node once, in order."""
    dense = np.zeros((7, 7))
    dense[:3, :3], dense[4:, 4:] = 0.9, 0.9
    np.fill_diagonal(dense, 0)
    groups = communities(csr_matrix(dense), seed=0)
    assert [group.tolist() for group in groups] == [[0, 1, 2], [3], [4, 5, 6]]


def test_assignment_in_slabs_is_assignment(monkeypatch: pytest.MonkeyPatch) -> None:
    space = topics(5, 31, seed=1)
    rows, centroids = np.arange(3, 155, 2), space.vectors[::31]
    expected = (space.vectors[rows] @ centroids.T).argmax(1)
    for slab in (1, 7, 1000):
        monkeypatch.setattr(clusters, "SLAB", slab)
        np.testing.assert_array_equal(nearest_centroid(space.vectors, rows, centroids), expected)


def test_topics_far_apart_are_found_whole() -> None:
    """Clustered finer than the topics, then merged: one concept a topic, no tag lost, nothing dropped."""
    space = topics(6, 40, seed=2)
    found = cluster_tags(space, 0, seed=0, num_clusters=18)
    merging = merge_to_stability(space, [cluster for cluster in found if not cluster.fault], seed=0)
    together = [set((cluster.members // 40).tolist()) for cluster in merging.kept]
    assert sorted(min(topic) for topic in together) == list(range(6))
    assert all(len(topic) == 1 for topic in together)


def test_merging_is_stable_and_explains_what_it_drops() -> None:
    """No two kept centroids are close; doing it again changes nothing; each drop has a reason."""
    space = topics(9, 30, seed=3)
    found = [cluster for cluster in cluster_tags(space, 20, seed=1) if not cluster.fault]
    merging = merge_to_stability(space, found, seed=1)
    centroids = unit(np.stack([space.mean(cluster.members) for cluster in merging.kept]))
    assert close_pairs(centroids, MERGE_COSINE).nnz == 0
    again = merge_to_stability(space, merging.kept, seed=1)
    assert [c.members.tolist() for c in again.kept] == [c.members.tolist() for c in merging.kept]
    assert all(reason.startswith("merged with others, then ") for _, reason in merging.dropped)


def test_a_union_that_falls_apart_is_dropped_with_its_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its parts were sound, the whole is not: it does not vanish, `clusters.parquet` can name it."""
    space = topics(2, 40, seed=4)
    sound = [judged(space, np.arange(0, 20)), judged(space, np.arange(20, 40)), judged(space, np.arange(40, 80))]
    monkeypatch.setattr(clusters, "_joined", lambda space, parts: parts[0] if len(parts) == 1 else _unsound(space))
    merging = merge_to_stability(space, sound, seed=0)
    assert len(merging.kept) == 1
    assert [reason for _, reason in merging.dropped] == ["merged with others, then fewer than three tags"]


def _unsound(space: TagSpace) -> clusters.Cluster:
    return judged(space, np.arange(2))


@pytest.mark.parametrize("threads", [1, 3])
def test_threads_change_no_centroid(threads: int) -> None:
    """The atlas is fitted on one thread; here the search itself is shown not to mind."""
    space = topics(8, 60, seed=5)
    before = faiss.omp_get_max_threads()
    try:
        faiss.omp_set_num_threads(threads)
        with threadpool_limits(threads):
            several = spherical_centroids(space, np.arange(480), 16, seed=0)
        faiss.omp_set_num_threads(1)
        with threadpool_limits(1):
            one = spherical_centroids(space, np.arange(480), 16, seed=0)
    finally:
        faiss.omp_set_num_threads(before)
    np.testing.assert_array_equal(several, one)


def test_many_tags_are_sampled_and_all_assigned(monkeypatch: pytest.MonkeyPatch) -> None:
    """k-means sees a sample that its seed decides; every tag still gets a cluster."""
    monkeypatch.setattr(clusters, "LEAST_SAMPLE", 10)
    monkeypatch.setattr(clusters, "SAMPLE_PER_CLUSTER", 5)
    space = topics(6, 50, seed=6)
    first, again, other = (cluster_tags(space, 0, seed, num_clusters=6) for seed in (0, 0, 1))
    members = [sorted(tag for cluster in found for tag in cluster.members.tolist()) for found in (first, again, other)]
    assert [c.members.tolist() for c in first] == [c.members.tolist() for c in again]
    assert [c.members.tolist() for c in first] != [c.members.tolist() for c in other]
    assert len(set(members[0])) == len(members[0]) > 150, "tags outside the sample have no cluster"


@pytest.mark.parametrize(("meaning", "company"), [(20, 0), (0, 20)])
def test_a_space_of_one_kind_has_one_coherence(meaning: int, company: int) -> None:
    """With meaning or company alone the other half is neither asked nor a reason to drop."""
    space = topics(4, 30, seed=7, meaning=meaning, company=company)
    found = [cluster for cluster in cluster_tags(space, 0, 0, num_clusters=4) if not cluster.fault]
    assert len(found) >= 3
    assert all(cluster.meaning == cluster.company > 0.9 for cluster in found)


def test_faults_are_named() -> None:
    space = topics(2, 10, seed=8)
    assert judged(space, np.arange(2)).fault == "fewer than three tags"
    dull = TagSpace(space.vectors, 13, space.num_chunks, np.full(20, 0.1), np.ones(20))
    assert judged(dull, np.arange(10)).fault == "words of everywhere"
    manner = TagSpace(space.vectors, 13, space.num_chunks, np.ones(20), np.full(20, 0.2))
    assert judged(manner, np.arange(10)).fault == "names no thing"
    assert judged(space, np.arange(10)).fault == ""


def test_no_tags_no_clusters() -> None:
    empty = TagSpace(np.zeros((0, 20), np.float32), 13, np.zeros(0, np.int64), np.zeros(0), np.zeros(0))
    assert cluster_tags(empty, 8, seed=0) == []
    assert merge_to_stability(empty, [], seed=0).kept == []


def test_the_curve_counts_what_the_clusters_hold() -> None:
    """Too few clusters mix topics, enough find them all; shares stay within 0..1."""
    few, enough = coherence_curve(topics(9, 30, seed=9), [2, 27], seed=0)
    assert (few.num_clusters, enough.num_clusters) == (2, 27)
    assert few.num_merged < enough.num_merged <= 9
    assert 0 <= few.kept_share < enough.kept_share <= 1
    assert enough.meaning > 0.8
