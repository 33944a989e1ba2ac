"""Which candidates become the library: the fast greedy choice equals the plain one; every drop has its reason."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy.sparse import coo_array, csr_array

from vitrail.atlas.concepts.clusters import Cluster
from vitrail.atlas.concepts.selection import MAX_OVERLAP, select_concepts
from vitrail.atlas.settings import AtlasSettings

SETTINGS = AtlasSettings(num_concepts=5, min_prevalence=0.02, max_prevalence=0.5)
NUM_CHUNKS = 211


def candidates(seed: int, num: int) -> tuple[list[Cluster], csr_array]:
    """Candidates of random quality, some of them labelling nearly the same chunks."""
    rng = np.random.default_rng(seed)
    found = [Cluster(np.arange(5), *rng.uniform(0.4, 0.9, 4).tolist()) for _ in range(num)]
    shared = [rng.choice(NUM_CHUNKS, 30, replace=False) for _ in range(3)]
    rows = [
        np.unique(np.concatenate([shared[i % 3][: rng.integers(5, 30)], rng.choice(NUM_CHUNKS, rng.integers(1, 9))]))
        for i in range(num)
    ]
    columns = np.repeat(np.arange(num), [len(r) for r in rows])
    flat = np.concatenate(rows)
    return found, coo_array((np.full(len(flat), 5, np.float32), (flat, columns)), shape=(NUM_CHUNKS, num)).tocsr()


def plain_choice(found: list[Cluster], labelled: list[set[int]], sound: list[int], wanted: int) -> list[int]:
    """The rule as it reads: again and again the worthiest of all that are left."""
    kept: list[int] = []
    left = set(sound)
    num_labels = np.zeros(NUM_CHUNKS)
    while left and len(kept) < wanted:
        best = min(left, key=lambda i: (-_worth(found[i], num_labels, labelled[i]), i))
        left.remove(best)
        if any(len(labelled[best] & labelled[k]) > MAX_OVERLAP * len(labelled[best] | labelled[k]) for k in kept):
            continue
        kept.append(best)
        num_labels[sorted(labelled[best])] += 1
    return kept


def _worth(candidate: Cluster, num_labels: NDArray[np.float64], rows: set[int]) -> float:
    return candidate.quality * (0.3 + float((1 / (1 + num_labels[sorted(rows)])).mean()))


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 10**6), st.integers(1, 23), st.integers(4, 13))
def test_the_heap_chooses_what_the_plain_rule_chooses(seed: int, num: int, wanted: int) -> None:
    found, scores = candidates(seed, num)
    chosen = SETTINGS.model_copy(update={"num_concepts": wanted})
    tags = [["a", "b", "c", "d", "e"]] * num
    selection = select_concepts(found, tags, scores, np.arange(NUM_CHUNKS) // 3, chosen)
    columns = scores.tocsc()
    labelled = [set(columns.indices[columns.indptr[i] : columns.indptr[i + 1]].tolist()) for i in range(num)]
    given_up = ("labels nearly the same chunks as a better one", "worth less than the wanted number of others", "")
    sound = [i for i, reason in enumerate(selection.reasons) if reason in given_up]
    assert selection.kept == plain_choice(found, labelled, sound, wanted)
    assert [i for i, reason in enumerate(selection.reasons) if not reason] == sorted(selection.kept)


def test_documents_that_hold_it_all_are_a_reason() -> None:
    """A concept of three documents is a document, not a concept."""
    found, scores = candidates(0, 1)
    documents = np.arange(NUM_CHUNKS)
    documents[scores.tocsc().indices] = 0
    selection = select_concepts(found, [["a", "b", "c", "d"]], scores, documents, SETTINGS)
    assert selection.reasons == ["mostly from three documents"]
    assert selection.kept == []


def test_no_candidates_no_library() -> None:
    selection = select_concepts([], [], csr_array((NUM_CHUNKS, 0), dtype=np.float32), np.arange(NUM_CHUNKS), SETTINGS)
    assert selection.kept == []
    assert len(selection.thresholds) == 0
