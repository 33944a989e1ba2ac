"""Which candidate concepts become the library: thresholds, then prevalence, concentration, quality.

A threshold starts at `BASE_SCORE`; it is raised until at most the allowed share of chunks carries the concept
and lowered, not below `FLOOR_SCORE`, to reach the wanted share. So none is too broad; candidates that stay too rare
or come from three documents are dropped, and of the rest the best by quality are kept. Every reason is written down.

Letters: R chunks, K candidates.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from itertools import pairwise

import numpy as np
from jaxtyping import Float32
from numpy.typing import NDArray
from scipy.sparse import csr_array

from vitrail.atlas.concepts.clusters import Cluster
from vitrail.atlas.settings import AtlasSettings
from vitrail.atlas.tags import same_word

BASE_SCORE, FLOOR_SCORE = 3.8, 3.0
MIN_LABELLED = 4
MAX_TOP_DOCUMENTS_SHARE, DOCUMENTS_SLACK = 0.5, 50
"""Three documents may hold this share of a concept's chunks; more where the corpus has few documents."""

MAX_OVERLAP = 0.6
MIN_OTHER_TAGS = 2
CLEAR_SPECIFICITY = 0.5


@dataclass(frozen=True)
class Selection:
    """The chosen candidates.

    Attributes:
        kept: candidate numbers by falling quality; their positions become concept ids.
        thresholds: [C] of the kept ones.
        labelled: chunks above the threshold of each kept one.
        num_chunks: [K] chunks above the threshold of every candidate.
        reasons: [K] why a candidate was dropped; empty for kept ones.
    """

    kept: list[int]
    thresholds: Float32[np.ndarray, " C"]
    labelled: list[NDArray[np.int64]]
    num_chunks: NDArray[np.int64]
    reasons: list[str]


def select_concepts(
    candidates: Sequence[Cluster],
    tags: Sequence[Sequence[str]],
    scores: csr_array,
    documents: NDArray[np.int64],
    settings: AtlasSettings,
) -> Selection:
    """Choose the library.

    Args:
        candidates: K candidates.
        tags: the reliable member tags of each.
        scores: [R K] of the detector, sparse.
        documents: [R] document number of each chunk.
        settings: how many, and prevalence limits.

    Returns:
        the selection.
    """
    num_chunks = scores.shape[0]
    by_concept = scores.tocsc()
    columns = [(by_concept.indices[a:b].astype(np.int64), by_concept.data[a:b]) for a, b in pairwise(by_concept.indptr)]
    thresholds = np.array([calibrate(column, num_chunks, settings) for _, column in columns], np.float32)
    labelled = [np.sort(rows[column >= t]) for (rows, column), t in zip(columns, thresholds, strict=True)]
    num_documents = len(np.unique(documents))
    reasons = [
        _fault(documents[rows], num_documents, num_chunks, settings) or _one_word(candidate, members)
        for candidate, rows, members in zip(candidates, labelled, tags, strict=True)
    ]
    kept = _choose(candidates, labelled, reasons, num_chunks, settings.num_concepts)
    return Selection(
        kept,
        thresholds[kept],
        [labelled[i] for i in kept],
        np.array([len(rows) for rows in labelled], np.int64),
        reasons,
    )


def _choose(
    candidates: Sequence[Cluster],
    labelled: Sequence[NDArray[np.int64]],
    reasons: list[str],
    num_chunks: int,
    num_concepts: int,
) -> list[int]:
    """The best candidates, one after the other; why the rest is dropped goes into `reasons`.

    A candidate's worth only falls while others are taken, so a heap of old worths finds the best: what is on top
    is weighed again, and taken if it is still the best.
    """
    num_labels = np.zeros(num_chunks)
    sizes = np.array([len(rows) for rows in labelled])
    taken = _Taken(num_chunks)
    heap = [(-_worth(candidates[i], num_labels[labelled[i]]), i) for i, reason in enumerate(reasons) if not reason]
    heapify(heap)
    kept: list[int] = []
    while heap and len(kept) < num_concepts:
        _, i = heappop(heap)
        now = (-_worth(candidates[i], num_labels[labelled[i]]), i)
        if heap and now > heap[0]:
            heappush(heap, now)
            continue
        others, both = taken.shared(labelled[i])
        if (both > MAX_OVERLAP * (sizes[i] + sizes[others] - both)).any():
            reasons[i] = "labels nearly the same chunks as a better one"
            continue
        taken.add(labelled[i], i)
        kept.append(i)
        num_labels[labelled[i]] += 1
    for _, i in heap:
        reasons[i] = "worth less than the wanted number of others"
    return kept


class _Taken:
    """Which chosen candidates label each chunk: a table that widens as chunks get more of them."""

    def __init__(self, num_chunks: int):
        self._count = np.zeros(num_chunks, np.int64)
        self._table = np.full((num_chunks, 4), -1, np.int32)

    def add(self, rows: NDArray[np.int64], candidate: int) -> None:
        """Write down that a candidate labels these chunks."""
        if len(rows) and self._count[rows].max() == self._table.shape[1]:
            self._table = np.concatenate([self._table, np.full_like(self._table, -1)], axis=1)
        self._table[rows, self._count[rows]] = candidate
        self._count[rows] += 1

    def shared(self, rows: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Candidates that label any of these chunks, and how many of them each labels."""
        width = int(self._count[rows].max(initial=0))
        found = self._table[rows, :width].ravel()
        others, both = np.unique(found[found >= 0], return_counts=True)
        return others.astype(np.int64), both


def _worth(candidate: Cluster, num_labels: NDArray[np.float64]) -> float:
    """Quality, times how much its chunks still lack labels."""
    return candidate.quality * (0.3 + float((1 / (1 + num_labels)).mean()))


def calibrate(scores: Float32[np.ndarray, " r"], num_chunks: int, settings: AtlasSettings) -> float:
    """The threshold of one concept.

    Args:
        scores: [r] its scores on those chunks that have one.
        num_chunks: R, with the chunks that have none.
        settings: prevalence limits.

    Returns:
        a score.
    """
    falling = np.sort(scores)[::-1]
    at_most = max(int(settings.max_prevalence * num_chunks), 1)
    at_least = math.ceil(settings.least_prevalence * num_chunks)
    lowest = float(np.nextafter(falling[at_most], np.float32(np.inf))) if at_most < len(falling) else -math.inf
    wanted = float(falling[at_least - 1]) if at_least <= len(falling) else -math.inf
    return max(lowest, min(BASE_SCORE, max(wanted, FLOOR_SCORE)))


def _fault(owners: NDArray[np.int64], num_documents: int, num_chunks: int, settings: AtlasSettings) -> str:
    """Why the chunks of these documents make no concept, or an empty string."""
    if len(owners) < max(MIN_LABELLED, settings.least_prevalence * num_chunks):
        return "too rare"
    if _top_share(owners) > MAX_TOP_DOCUMENTS_SHARE + DOCUMENTS_SLACK / num_documents:
        return "mostly from three documents"
    return ""


def _one_word(candidate: Cluster, tags: Sequence[str]) -> str:
    """A fault if nearly all tags are forms of one unspecific word ("target", "targets", "target file")."""
    if candidate.specificity >= CLEAR_SPECIFICITY:
        return ""
    words = {word for tag in tags for word in tag.replace("-", " ").split()}
    num_others = min(sum(not _has_form(tag, word) for tag in tags) for word in words) if words else 0
    return "forms of one word" if num_others < MIN_OTHER_TAGS else ""


def _has_form(tag: str, word: str) -> bool:
    return any(same_word(part, word) for part in tag.replace("-", " ").split())


def _top_share(owners: NDArray[np.int64]) -> float:
    counts = np.sort(np.unique(owners, return_counts=True)[1])[::-1]
    return float(counts[:3].sum() / len(owners))
