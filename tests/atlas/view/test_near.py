"""Neighbours by vector and by company, examples, layout."""

import tracemalloc
from collections import Counter
from itertools import combinations
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.atlas.view.making import Spec, make_card, random_documents, write_annotated
from vitrail.atlas import AnnotatedCorpus
from vitrail.atlas.annotated.guide import PAIRS_NAME
from vitrail.atlas.concepts.geometry import unit
from vitrail.atlas.view import layout
from vitrail.atlas.view.company import Company
from vitrail.atlas.view.examples import sample_documents
from vitrail.atlas.view.layout import lay_out
from vitrail.atlas.view.vectors import chunk_means, concept_vectors, nearest_rows
from vitrail.errors import ConfigError

NUM = 6


@pytest.fixture(scope="module")
def documents() -> list[Spec]:
    return random_documents(3, num_documents=40, num_concepts=NUM)


@pytest.fixture(scope="module")
def place(documents: list[Spec], tmp_path_factory: pytest.TempPathFactory) -> Path:
    cards = [make_card(c, f"c{c}") for c in range(NUM)]
    return write_annotated(tmp_path_factory.mktemp("near") / "annotated", cards, documents)


def test_company_is_what_counting_by_hand_gives(documents: list[Spec], place: Path) -> None:
    pairs: Counter[tuple[int, int]] = Counter()
    counts: Counter[int] = Counter()
    chunks = [spans for document in documents for _, spans in document.chunks]
    for spans in chunks:
        pairs.update(combinations(sorted(spans), 2))
        counts.update(list(spans))
    company = Company.load(place, len(chunks))
    for concept in range(NUM):
        met = {one.concept_id: one for one in company.near(concept, NUM)}
        for other in set(range(NUM)) - {concept}:
            both = pairs[min(concept, other), max(concept, other)]
            lift = both * len(chunks) / (counts[concept] * counts[other])
            assert (other in met) == (both >= 3 and lift > 1)
            if other in met:
                assert met[other].num_chunks == both
                assert met[other].lift == pytest.approx(lift)


def test_a_million_pairs_stay_arrays(tmp_path: Path) -> None:
    """As Python's own dictionaries they took 330 MB and three seconds, also for a single concept."""
    num = 1_500
    first, second = np.triu_indices(num)
    counts = np.where(first == second, 50_000, 5 + (first + second) % 7)
    columns = {"first": pa.array(first, pa.int32()), "second": pa.array(second, pa.int32()), "num_chunks": counts}
    pq.write_table(pa.table(columns), tmp_path / PAIRS_NAME)
    tracemalloc.start()
    company = Company.load(tmp_path, 10**9)
    peak_bytes = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak_bytes < 150e6, "about 110 MB while they are sorted"
    assert [one.concept_id for one in company.near(7, 3)] == [6, 13, 20], "11 chunks with both, then by number"


def test_chunk_means_are_centred_means(documents: list[Spec], place: Path) -> None:
    corpus = AnnotatedCorpus.open(place)
    vectors = np.asarray(corpus.embeddings(), np.float32)
    carried = [set(spans) for document in documents for _, spans in document.chunks]
    found = chunk_means(corpus, NUM)
    for concept in range(NUM):
        mean = vectors[[concept in spans for spans in carried]].mean(0) - vectors.mean(0)
        assert found[concept] == pytest.approx(mean / np.linalg.norm(mean), abs=1e-5)


def test_nearest_rows_are_the_nearest(place: Path) -> None:
    vectors = unit(np.random.default_rng(1).normal(size=(23, 7)).astype(np.float32))
    vectors[4] = 0
    cosines = vectors @ vectors.T
    for row, near in enumerate(nearest_rows(vectors, 3)):
        others = [other for other in range(23) if other not in (row, 4)]
        best = sorted(others, key=lambda other: -cosines[row, other])[:3]
        assert [other for other, _ in near] == ([] if row == 4 else best)
    assert nearest_rows(vectors, 3, [9, 4]) == [nearest_rows(vectors, 3)[row] for row in (9, 4)]


def test_chunks_without_vectors_are_placed_by_their_cards(documents: list[Spec], tmp_path: Path) -> None:
    cards = [make_card(c, name) for c, name in enumerate(["oak tree", "pine tree", "tax law", "oak", "sea", "court"])]
    corpus = AnnotatedCorpus.open(write_annotated(tmp_path / "a", cards, documents, width=0))
    vectors, meaning = concept_vectors(corpus, cards)
    assert meaning == "MiniLM vector of the card"
    assert nearest_rows(vectors, 1)[0][0][0] in (1, 3)
    assert nearest_rows(vectors, 1)[2][0][0] == 5


def test_sample_of_documents_depends_on_nothing_but_their_ids(documents: list[Spec], tmp_path: Path) -> None:
    cards = [make_card(c, f"c{c}") for c in range(NUM)]
    samples = []
    for number, order in enumerate((documents, documents[::-1])):
        corpus = AnnotatedCorpus.open(write_annotated(tmp_path / str(number), cards, order))
        places = sample_documents(corpus, 7, seed=1)
        samples.append({place.document_id for place in places})
        for one in places:
            chunks = list(corpus.chunks(one.first_row, one.first_row + one.num_chunks))
            assert {chunk.document_id for chunk in chunks} == {one.document_id}
            assert chunks[0].start == 0
    assert samples[0] == samples[1]
    assert len(samples[0]) == 7
    assert {p.document_id for p in sample_documents(corpus, 7, seed=2)} != samples[0]


def _clusters() -> np.ndarray:
    rng = np.random.default_rng(0)
    centres = np.repeat(np.eye(3, 8), 12, axis=0)
    return unit((centres + 0.05 * rng.normal(size=centres.shape)).astype(np.float32))


def test_pca_is_in_the_unit_square_and_the_same_every_time() -> None:
    found = lay_out(_clusters(), "pca", seed=0)
    assert found.method == "PCA"
    assert found.positions.min() >= 0
    assert found.positions.max() <= 1
    assert np.array_equal(found.positions, lay_out(_clusters(), "pca", seed=5).positions)
    assert _parted(found.positions)


def test_few_concepts_are_laid_out_without_umap() -> None:
    assert lay_out(_clusters()[:4], "umap", seed=0).method == "PCA"
    assert lay_out(_clusters()[:1], "auto", seed=0).positions.shape == (1, 2)


def test_umap_parts_clusters_and_is_the_same_every_time() -> None:
    """About twenty seconds: UMAP compiles itself in every process that first uses it."""
    found = lay_out(_clusters(), "umap", seed=3)
    assert found.method == "UMAP"
    assert np.array_equal(found.positions, lay_out(_clusters(), "umap", seed=3).positions)
    assert _parted(found.positions)


def test_umap_that_is_not_installed_is_said_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(layout, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"pip install 'vitrail\[map\]'"):
        lay_out(_clusters(), "umap", seed=0)
    assert lay_out(_clusters(), "auto", seed=0).method == "PCA"


def _parted(positions: np.ndarray) -> bool:
    """Whether every point's nearest other point is of its own cluster of twelve."""
    away = np.linalg.norm(positions[:, None] - positions[None], axis=2) + 9 * np.eye(len(positions))
    return bool((away.argmin(1) // 12 == np.arange(len(positions)) // 12).all())
