"""The graph of close concepts, and its communities (§4.2.2).

Two candidates are joined by an edge if the cosine of their centroids reaches a threshold. The pairs are searched
by faiss a slab of centroids at a time, and only close ones are kept: memory grows with the edges, never with the
square of the number of candidates.

Letters: K candidates, E width.
"""

import faiss
import numpy as np
from jaxtyping import Float32
from numpy.typing import NDArray
from scipy.sparse import coo_matrix, csr_matrix
from sknetwork.clustering import Leiden

from vitrail.atlas.concepts.geometry import DIGITS

SLAB = 4_096


def close_pairs(centroids: Float32[np.ndarray, "K E"], least_cosine: float) -> csr_matrix:
    """The graph of close centroids.

    Args:
        centroids: [K E] unit rows.
        least_cosine: of two neighbours, after rounding to four decimals.

    Returns:
        [K K] symmetric cosines, sparse; nothing on the diagonal.
    """
    index = faiss.IndexFlatIP(centroids.shape[1])
    index.add(centroids)
    slack = 10.0**-DIGITS  # the search knows no rounding: ask for a little more, round, then decide
    rows, columns, cosines = [], [], []
    for start in range(0, len(centroids), SLAB):
        slab = centroids[start : start + SLAB]
        limits, found, ids = index.range_search(slab, least_cosine - slack)
        rows.append(np.repeat(np.arange(start, start + len(slab)), np.asarray(np.diff(limits), np.int64)))
        columns.append(ids)
        cosines.append(found)
    first, second = np.concatenate(rows), np.concatenate(columns)
    cosine = np.round(np.concatenate(cosines).astype(np.float64), DIGITS)
    # Each pair is found from both sides; one side is taken, so that the graph is exactly symmetric.
    is_kept = (first < second) & (cosine >= least_cosine)
    first, second, cosine = first[is_kept], second[is_kept], cosine[is_kept]
    shape = (len(centroids), len(centroids))
    half = coo_matrix((cosine, (first, second)), shape=shape).tocsr()
    return csr_matrix(half + half.T)


def communities(graph: csr_matrix, seed: int) -> list[NDArray[np.int64]]:
    """Groups of nodes that are close to one another (Leiden); a node without edges is a group of one.

    Args:
        graph: [K K] symmetric.
        seed: of the search.

    Returns:
        the groups, each rising, ordered by their first node.
    """
    alone = np.diff(graph.indptr) == 0
    joined = np.flatnonzero(~alone)
    groups = [np.array([node], np.int64) for node in np.flatnonzero(alone)]
    if len(joined):
        label = Leiden(random_state=seed).fit_predict(graph[joined][:, joined])
        order = np.argsort(label, kind="stable")
        cuts = np.flatnonzero(np.diff(label[order])) + 1
        groups += [joined[part].astype(np.int64) for part in np.split(order, cuts)]
    return sorted(groups, key=lambda group: int(group[0]))
