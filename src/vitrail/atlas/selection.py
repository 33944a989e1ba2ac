"""Which candidate concepts become the library: thresholds, then prevalence, concentration, quality.

A threshold starts at `BASE_SCORE`; it is raised until at most the allowed share of chunks carries the concept
and lowered, not below `FLOOR_SCORE`, to reach the wanted share. Candidates too rare, too broad or from three
documents are dropped; of the rest the best by quality are kept. Every reason is written down.

Letters: R chunks, K candidates.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float32
from numpy.typing import NDArray

from vitrail.atlas.clusters import Cluster
from vitrail.atlas.phrases import same_word
from vitrail.atlas.settings import AtlasSettings

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
    scores: Float32[np.ndarray, "R K"],
    documents: NDArray[np.int64],
    settings: AtlasSettings,
) -> Selection:
    """Choose the library.

    Args:
        candidates: K candidates.
        tags: the reliable member tags of each.
        scores: [R K] of the detector.
        documents: [R] document number of each chunk.
        settings: how many, and prevalence limits.

    Returns:
        the selection.
    """
    thresholds = np.array([calibrate(column, settings) for column in scores.T], np.float32)
    labelled = [np.flatnonzero(column >= t) for column, t in zip(scores.T, thresholds, strict=True)]
    reasons = [
        _fault(rows, documents, scores.shape[0], settings) or _one_word(candidate, members)
        for candidate, rows, members in zip(candidates, labelled, tags, strict=True)
    ]
    kept: list[int] = []
    num_labels = np.zeros(scores.shape[0])
    open_ids = [i for i, reason in enumerate(reasons) if not reason]
    while open_ids and len(kept) < settings.num_concepts:
        best = max(open_ids, key=lambda i: (_worth(candidates[i], num_labels[labelled[i]]), -i))
        open_ids.remove(best)
        if any(_overlap(labelled[best], labelled[j]) > MAX_OVERLAP for j in kept):
            reasons[best] = "labels nearly the same chunks as a better one"
            continue
        kept.append(best)
        num_labels[labelled[best]] += 1
    for i in open_ids:
        reasons[i] = "worth less than the wanted number of others"
    return Selection(
        kept,
        thresholds[kept],
        [labelled[i] for i in kept],
        np.array([len(rows) for rows in labelled], np.int64),
        reasons,
    )


def _worth(candidate: Cluster, num_labels: NDArray[np.float64]) -> float:
    """Quality, times how much its chunks still lack labels."""
    return candidate.quality * (0.3 + float((1 / (1 + num_labels)).mean()))


def calibrate(scores: Float32[np.ndarray, " R"], settings: AtlasSettings) -> float:
    """The threshold of one concept.

    Args:
        scores: [R] its scores; −inf where it cannot hold.
        settings: prevalence limits.

    Returns:
        a score.
    """
    falling = np.sort(scores)[::-1]
    at_most = max(int(settings.max_prevalence * len(scores)), 1)
    at_least = math.ceil(settings.min_prevalence * len(scores))
    lowest = float(np.nextafter(falling[at_most], np.float32(np.inf))) if at_most < len(scores) else -math.inf
    wanted = float(falling[min(at_least, len(scores)) - 1])
    return max(lowest, min(BASE_SCORE, max(wanted, FLOOR_SCORE)))


def _fault(rows: NDArray[np.int64], documents: NDArray[np.int64], num_chunks: int, settings: AtlasSettings) -> str:
    if len(rows) < max(MIN_LABELLED, settings.min_prevalence * num_chunks):
        return "too rare"
    if _top_share(documents[rows]) > MAX_TOP_DOCUMENTS_SHARE + DOCUMENTS_SLACK / len(np.unique(documents)):
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


def _top_share(documents: NDArray[np.int64]) -> float:
    counts = np.sort(np.bincount(documents))[::-1]
    return float(counts[:3].sum() / len(documents))


def _overlap(a: NDArray[np.int64], b: NDArray[np.int64]) -> float:
    both = len(np.intersect1d(a, b, assume_unique=True))
    return both / (len(a) + len(b) - both)
