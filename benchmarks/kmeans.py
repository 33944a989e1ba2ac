"""Time and memory of turning tag vectors into merged clusters, measured small and projected to the paper's scale.

    python benchmarks/kmeans.py [--tags 40000] [--clusters 250 500 1000]
        [--target-tags 14000000] [--target-clusters 80000]

Synthetic unit vectors (topics with noise, 512 wide, as MiniLM beside company) go through the code of the atlas:
k-means over the sample, assignment of every tag, coherence, graph of close centroids. Each stage's cost per
unit of its work is fitted on the runs (least squares through the origin) and multiplied up:

    k-means      sample · K · rounds         assignment   n · K
    coherence    n + 200 · K                 graph        K² (exact search)

Memory is counted, not fitted: vectors, the sample's copy, centroids (faiss holds two copies). One thread, processor
time, so that other work on the machine does not count; the first two stages are matrix products and divide by the
threads. The last line says what the projection leaves out.
"""

import argparse
import resource
import time
from collections.abc import Callable
from typing import TypeVar

import faiss
import numpy as np
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits

from vitrail.atlas.concepts import clusters
from vitrail.atlas.concepts.geometry import unit
from vitrail.atlas.concepts.graph import close_pairs
from vitrail.atlas.concepts.space import TagSpace

WIDTH, MEANING_WIDTH = 512, 384
WORK: dict[str, Callable[[float, float], float]] = {
    "k-means": lambda n, k: sample_size(n, k) * k * clusters.NUM_ROUNDS,
    "assignment": lambda n, k: n * k,
    "coherence": lambda n, k: n + 200 * k,
    "graph": lambda n, k: k * k,
}
T = TypeVar("T")


def sample_size(n: float, k: float) -> float:
    return min(n, max(clusters.SAMPLE_PER_CLUSTER * k, clusters.LEAST_SAMPLE))


def synthetic(num_tags: int, num_topics: int, seed: int) -> TagSpace:
    rng = np.random.default_rng(seed)
    topics = unit(rng.standard_normal((num_topics, WIDTH)))
    noise = rng.standard_normal((num_tags, WIDTH)).astype(np.float32) / np.sqrt(WIDTH)
    vectors = unit(topics[rng.integers(0, num_topics, num_tags)] + 0.8 * noise)
    ones = np.ones(num_tags)
    spread = np.minimum(4 + rng.pareto(1.0, num_tags) * 4, 10_000).astype(np.int64)
    return TagSpace(vectors, MEANING_WIDTH, spread, ones, ones)


def timed(call: Callable[[], T]) -> tuple[T, float]:
    started = time.process_time()
    return call(), time.process_time() - started


def run(space: TagSpace, num_clusters: int, seed: int) -> dict[str, float]:
    rows = np.arange(len(space.vectors))
    centroids, fitting = timed(lambda: clusters.spherical_centroids(space, rows, num_clusters, seed))
    nearest, assigning = timed(lambda: clusters.nearest_centroid(space.vectors, rows, centroids))
    found, judging = timed(lambda: clusters.grouped(space, rows, nearest, num_clusters))
    _, searching = timed(lambda: close_pairs(centroids, clusters.MERGE_COSINE))
    assert sum(len(cluster.members) for cluster in found) <= len(rows)
    return {"k-means": fitting, "assignment": assigning, "coherence": judging, "graph": searching}


def rate(work: NDArray[np.float64], seconds: NDArray[np.float64]) -> float:
    return float((work @ seconds) / (work @ work))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tags", type=int, default=40_000)
    parser.add_argument("--clusters", type=int, nargs="+", default=[250, 500, 1000])
    parser.add_argument("--target-tags", type=int, default=14_000_000)
    parser.add_argument("--target-clusters", type=int, default=80_000)
    options = parser.parse_args()
    faiss.omp_set_num_threads(1)
    with threadpool_limits(1):
        space = synthetic(options.tags, max(options.clusters), seed=0)
        measured = []
        for num_clusters in options.clusters:
            seconds = run(space, num_clusters, seed=0)
            measured.append(seconds)
            print(
                f"n={options.tags} K={num_clusters}", *(f"{name}={s:.2f}s" for name, s in seconds.items()), flush=True
            )
    n, k = options.target_tags, options.target_clusters
    print(f"\nprojected to n={n:,} K={k:,}, one thread:")
    for name, work in WORK.items():
        done = np.array([work(options.tags, num_clusters) for num_clusters in options.clusters])
        per_unit = rate(done, np.array([seconds[name] for seconds in measured]))
        print(f"  {name:<11} {per_unit * work(n, k) / 3600:10.2f} core-hours   ({per_unit:.3e} s a unit)")
    bytes_of = {
        "vectors": n * WIDTH * 4,
        "sample": sample_size(n, k) * WIDTH * 4,
        "centroids": 2 * k * WIDTH * 4,
        "slab of scores": clusters.SLAB * 1024 * 4,  # faiss takes 1,024 centroids at a time
    }
    print("  memory      " + ", ".join(f"{name} {size / 1e9:.2f} GB" for name, size in bytes_of.items()))
    print(f"  together    {sum(bytes_of.values()) / 1e9:.1f} GB (the measured runs peaked at {_peak_gb():.2f} GB)")
    print("  left out: encoding the tags, the co-occurrence factorisation, labels on chunks")


def _peak_gb() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e9


if __name__ == "__main__":
    main()
