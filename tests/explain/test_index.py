"""The index: what it finds, what it refuses, and that it is the same on every machine."""

import json
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest
import torch

from vitrail.artifacts import read_manifest
from vitrail.atlas import AnnotatedCorpus
from vitrail.errors import ArtifactError
from vitrail.explain import Index, bm25_scores, span_means
from vitrail.explain.transducer import load_transducer
from vitrail.packed import PackedCorpus

if TYPE_CHECKING:
    from tests.explain.conftest import World

States = tuple[torch.Tensor, np.ndarray]


@pytest.fixture(scope="module")
def flat(world: "World") -> Path:
    return world.build_index("flat")


@pytest.fixture(scope="module")
def states(world: "World") -> States:
    """Mean states of the chunks of the first twenty training sequences, one chunk at a time, and their rows."""
    batch = PackedCorpus.open(world.root / "packed").batch("train", range(20))
    hidden = world.model.hidden(batch.tokens)
    means = [hidden[batch.chunk == chunk].mean(0) for chunk in range(batch.num_chunks)]
    return torch.stack(means), batch.rows.numpy()


def test_span_means_are_means(world: "World", states: States) -> None:
    batch = PackedCorpus.open(world.root / "packed").batch("train", range(20))
    found = span_means(world.model.hidden(batch.tokens), batch.chunk, batch.num_chunks)
    torch.testing.assert_close(found, states[0], atol=1e-5, rtol=0)


def test_search_is_brute_force_over_training_chunks(world: "World", flat: Path, states: States) -> None:
    """Every cosine of every training chunk, written out in numpy."""
    vectors = np.asarray(AnnotatedCorpus.open(world.root / "annotated").embeddings(), np.float32)
    corpus = AnnotatedCorpus.open(world.root / "annotated")
    rows = np.array([chunk.row for chunk in corpus.chunks() if chunk.split == "train"])
    has_vector = vectors[rows].any(axis=1, keepdims=True)
    centred = (vectors[rows] - vectors[rows].sum(0) / has_vector.sum()) * has_vector
    unit = centred / np.maximum(np.linalg.norm(centred, axis=1, keepdims=True), 1e-12)
    cosines = load_transducer(flat / "transducer.safetensors")(states[0]).numpy() @ unit.T
    found, similarities = Index.open(flat).search_rows(states[0], 7)
    best = -np.sort(-cosines, axis=1)[:, :7]
    np.testing.assert_allclose(similarities, best, atol=1e-4)
    at_found = np.take_along_axis(cosines, np.searchsorted(rows, found), 1)
    np.testing.assert_allclose(at_found, similarities, atol=1e-4)


def test_hits_are_of_the_topic_and_never_of_a_held_out_document(world: "World", flat: Path, states: States) -> None:
    corpus = AnnotatedCorpus.open(world.root / "annotated")
    hits = Index.open(flat).search(states[0], 5)
    sources = [corpus.chunk(int(row)).source for row in states[1]]
    right = [hit.chunk.source == source for found, source in zip(hits, sources, strict=True) for hit in found]
    assert np.mean(right) > 0.5, "chance is one in twelve"
    assert {hit.chunk.split for found in hits for hit in found} == {"train"}


def test_recall_is_measured_on_the_way_that_is_deployed(world: "World", flat: Path) -> None:
    recall = Index.open(flat).recall
    assert recall is not None
    num_rows = read_manifest(flat).counts["num_chunks"]
    assert recall.n == 100
    assert recall.chance == pytest.approx(10 / num_rows)
    assert recall.at10 > 5 * recall.chance
    assert recall.ci95[0] <= recall.at10 <= recall.ci95[1]
    assert json.loads((flat / "recall.json").read_text())["at10"] == recall.at10


def test_bm25_finds_the_query_itself(world: "World", flat: Path) -> None:
    """The query is the chunk's whole text, so only chunks of the very same words may stand above it."""
    texts = [chunk.text for chunk in AnnotatedCorpus.open(world.root / "annotated").chunks()]
    scores = bm25_scores(texts, texts[:50])
    assert ((scores > np.diagonal(scores)[:, None]).sum(1) < 10).mean() > 0.8
    recall = Index.open(flat).recall
    assert recall is not None
    assert recall.bm25 is not None
    assert recall.bm25 > 0.8


def test_compressed_lists_with_exact_ranking_agree_with_flat(world: "World", flat: Path, states: States) -> None:
    """IVF and PQ only choose the hundred candidates; their order comes from the cached vectors."""
    compressed = world.build_index("compressed", min_rows_ivf=300)
    exact, close = Index.open(flat).search_rows(states[0], 5), Index.open(compressed).search_rows(states[0], 5)
    shared = [len(set(a) & set(b)) / 5 for a, b in zip(exact[0], close[0], strict=True)]
    assert np.mean(shared) > 0.8
    assert (compressed / "index.faiss").stat().st_size < (flat / "index.faiss").stat().st_size


def test_the_same_bytes_on_any_number_of_threads(world: "World", flat: Path) -> None:
    num_threads = torch.get_num_threads()
    torch.set_num_threads(3 if num_threads != 3 else 2)
    try:
        again = world.build_index("again")
        assert torch.get_num_threads() != num_threads
    finally:
        torch.set_num_threads(num_threads)
    assert read_manifest(again).id == read_manifest(flat).id


def test_a_finished_index_is_not_built_again(world: "World", flat: Path) -> None:
    before = (flat / "manifest.json").stat().st_mtime_ns
    world.build_index("flat")
    assert (flat / "manifest.json").stat().st_mtime_ns == before


def test_another_model_is_refused(world: "World", flat: Path) -> None:
    index = Index.open(flat)
    index.require_model(world.model_id)
    with pytest.raises(ArtifactError, match="vitrail index build"):
        index.require_model("b" * 64)
    with pytest.raises(ArtifactError, match="width 30, got 31"):
        index.search(torch.zeros(1, 31))


@pytest.mark.parametrize("name", ["index.faiss", "rows.parquet", "space.safetensors", "transducer.safetensors"])
def test_a_damaged_file_is_a_clear_error(world: "World", flat: Path, name: str) -> None:
    damaged = world.root / f"damaged-{name}"
    shutil.copytree(flat, damaged)
    (damaged / name).write_bytes(b"glass")
    with pytest.raises(ArtifactError, match=r"build (it|the index) again"):
        Index.open(damaged)


def test_a_moved_corpus_is_a_clear_error(flat: Path, tmp_path: Path) -> None:
    shutil.copytree(flat, tmp_path / "index")
    with pytest.raises(ArtifactError, match="annotated"):
        Index.open(tmp_path / "index")
