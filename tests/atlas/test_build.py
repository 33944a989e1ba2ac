"""The atlas of a small corpus is true to its text (that it comes out the same: `concepts/test_reproducible`)."""

from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch

from tests.atlas.conftest import SETTINGS
from vitrail.artifacts import read_manifest
from vitrail.atlas import (
    AnnotatedCorpus,
    Annotator,
    AtlasSettings,
    ConceptLibrary,
    MiniLM,
    build_atlas,
)
from vitrail.atlas.concepts.decisions import parse_decisions
from vitrail.atlas.concepts.finding import fates
from vitrail.cli.main import main
from vitrail.corpus import Corpus, CorpusSettings, import_corpus
from vitrail.errors import ArtifactError, ConfigError, CorpusError


def test_the_number_of_threads_outside_stays() -> None:
    """Encoding uses one thread a batch; afterwards torch computes with as many as before."""
    before = torch.get_num_threads()
    MiniLM().encode(["graph"])
    assert torch.get_num_threads() == before


def test_a_label_can_be_seen_in_the_text(run: Path) -> None:
    """A content label has spans; each span of a found concept lies in the chunk and equals one of its member tags."""
    corpus, annotator = AnnotatedCorpus.open(run / "annotated"), Annotator.load(run / "atlas")
    members = [set(annotator.member_tags(c)) for c in range(annotator.num_concepts)]
    cards = ConceptLibrary.load(run / "atlas").cards
    num_labels = 0
    for chunk in corpus.chunks():
        for label in chunk.labels:
            num_labels += 1
            card = cards[label.concept_id]
            assert label.spans or card.kind != "content"
            assert label.score >= annotator.thresholds[label.concept_id]
            for start, stop in label.spans:
                assert 0 <= start < stop <= len(chunk.text)
                span = " ".join(chunk.text[start:stop].lower().split())
                assert span in members[label.concept_id] or not card.is_automatic
    assert num_labels == corpus.manifest.counts["labels"] > corpus.num_chunks / 5


def test_chunks_are_slices_of_their_documents(run: Path) -> None:
    """Spans tile each document, rows count up, and every split is annotated."""
    texts = {document.id: document.text for document in Corpus.open(run / "corpus").documents()}
    corpus = AnnotatedCorpus.open(run / "annotated")
    chunks = list(corpus.chunks())
    assert [chunk.row for chunk in chunks] == list(range(corpus.num_chunks))
    assert all(chunk.text == texts[chunk.document_id][chunk.start : chunk.stop] for chunk in chunks)
    assert sum(len(chunk.text) for chunk in chunks) == sum(map(len, texts.values()))
    assert {chunk.split for chunk in chunks} == {"train", "heldout", "judge"}
    for row in (0, len(chunks) // 2, len(chunks) - 1):
        assert corpus.chunk(row) == chunks[row]
    with pytest.raises(IndexError, match=r"annotated corpus has \d+ chunks"):
        corpus.chunk(len(chunks))


def test_embeddings_are_the_annotators_vectors(run: Path) -> None:
    """Row by row in half precision, of unit norm unless a chunk has no tag at all."""
    corpus, annotator = AnnotatedCorpus.open(run / "annotated"), Annotator.load(run / "atlas")
    vectors = corpus.embeddings()
    assert vectors.shape == (corpus.num_chunks, annotator.width)
    rows = range(0, corpus.num_chunks, 97)
    again = annotator.annotate([corpus.chunk(row).text for row in rows])
    np.testing.assert_allclose(vectors[list(rows)], again.vectors, atol=1e-3)  # fp16 keeps 11 bits
    assert list(again.labels) == [corpus.chunk(row).labels for row in rows]
    norms = np.linalg.norm(np.asarray(vectors, np.float32), axis=1)
    assert np.all((np.abs(norms - 1) < 2e-3) | (norms == 0))


def test_cards_are_unique_and_say_something(run: Path) -> None:
    """Names differ, words are marked by lift, ids count from 0; tables agree with the cards."""
    library = ConceptLibrary.load(run / "atlas")
    cards = library.cards
    assert [card.concept_id for card in cards] == list(range(library.num_known))
    assert 4 <= sum(card.is_automatic for card in cards) <= SETTINGS.num_concepts
    assert len({card.name.casefold() for card in cards}) == len(cards)
    for card in cards:
        assert card.words
        assert all(lift > 1 for lift in card.lift)
        assert "\n" not in card.description
        assert not set(";=") & set(card.name), "the steer grammar uses these signs"
    clusters = pq.read_table(run / "atlas" / "clusters.parquet").to_pylist()
    assert sum(row["concept_id"] is not None for row in clusters) == sum(card.is_automatic for card in cards)
    assert all((row["concept_id"] is None) == bool(row["dropped"]) for row in clusters)


def test_prevalence_stays_within_its_limits(run: Path) -> None:
    """Evidence keeps within the limits; the heads, matched to it on chunks they never saw, stay near them."""
    num_chunks = read_manifest(run / "atlas").counts["chunks"]
    for card in ConceptLibrary.load(run / "atlas").cards:
        share = card.num_chunks / num_chunks
        assert share <= SETTINGS.max_prevalence * 1.25, card.name
        assert share >= SETTINGS.least_prevalence / 2 or not card.is_automatic, card.name


def test_field_guide_counts_labels(run: Path) -> None:
    """The diagonal of the co-occurrence table counts each concept's chunks, as the field guide does."""
    guide = pq.read_table(run / "annotated" / "field_guide.parquet").to_pylist()
    pairs = pq.read_table(run / "annotated" / "cooccurrence.parquet").to_pylist()
    alone = {pair["first"]: pair["num_chunks"] for pair in pairs if pair["first"] == pair["second"]}
    assert {row["concept_id"]: row["num_chunks"] for row in guide} == alone
    assert sum(alone.values()) == read_manifest(run / "annotated").counts["labels"]
    best = guide[0]
    corpus = AnnotatedCorpus.open(run / "annotated")
    for row, chunk_id in zip(best["rows"], best["chunk_ids"], strict=True):
        assert corpus.chunk(row).chunk_id == chunk_id
        assert 0 in {label.concept_id for label in corpus.chunk(row).labels}


def test_a_second_build_is_done_already(run: Path) -> None:
    """The same corpus and settings: nothing is rebuilt."""
    written = (run / "atlas" / "manifest.json").stat().st_mtime_ns
    build_atlas(run / "corpus", run / "atlas", SETTINGS)
    assert (run / "atlas" / "manifest.json").stat().st_mtime_ns == written


@pytest.mark.parametrize("text", ["one short document", "the same words again and again. " * 200])
def test_too_small_a_corpus_says_so(tmp_path: Path, text: str) -> None:
    """One line, no directory left behind."""
    raw = tmp_path / "raw"
    raw.mkdir()
    for number in range(12):
        (raw / f"{number}.txt").write_text(f"{number} {text}", encoding="utf-8")
    import_corpus([raw], tmp_path / "corpus", CorpusSettings())
    with pytest.raises(CorpusError, match="too small for an atlas"):
        build_atlas(tmp_path / "corpus", tmp_path / "atlas", AtlasSettings())
    assert not (tmp_path / "atlas").exists()


def test_a_damaged_annotator_is_named(run: Path, tmp_path: Path) -> None:
    """A truncated weights file is an artifact error, not a traceback."""
    (tmp_path / "tags.parquet").write_bytes((run / "atlas" / "tags.parquet").read_bytes())
    whole = (run / "atlas" / "annotator.safetensors").read_bytes()
    (tmp_path / "annotator.safetensors").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(ArtifactError, match="damaged annotator"):
        Annotator.load(tmp_path)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"min_prevalence": 0.2}, "lower min_prevalence or raise max_prevalence"),
        ({"max_prevalence": 0.001}, "at least 0.01 and at most 0.001"),
    ],
)
def test_prevalences_that_no_concept_can_have_are_refused(given: dict[str, float], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        AtlasSettings.parse(given)


def test_a_build_takes_no_hash_of_an_import(run: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="'given' is for atlases that `vitrail atlas import` makes"):
        build_atlas(run / "corpus", tmp_path / "atlas", AtlasSettings(given="abc"))


def test_a_build_says_what_became_of_its_clusters(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Fewer concepts than wanted: how many were dropped, and why."""
    with pytest.raises(SystemExit) as ended:
        main(["atlas", "build", str(run / "corpus"), "--out", str(run / "told"), "--num_concepts", "400"])
    assert ended.value.code in (0, None)
    last = capsys.readouterr().out.strip().splitlines()[-1]
    found = fates(run / "told")
    assert last.startswith(f"{found['']} of 400 wanted concepts found; clusters dropped: ")
    assert all(f"{reason} {count}" in last for reason, count in found.items() if reason)
    assert sum(found.values()) == read_manifest(run / "told").counts["clusters"]


def test_decisions_that_forbid_everything_are_refused(run: Path, tmp_path: Path) -> None:
    names = [card.name for card in ConceptLibrary.load(run / "atlas").cards]
    decisions = parse_decisions({"decisions": [{"action": "forbid", "concept": name} for name in names]}, "file")
    with pytest.raises(ConfigError, match="the decisions leave no concept in the atlas"):
        build_atlas(run / "corpus", tmp_path / "atlas", SETTINGS.model_copy(update={"decisions": decisions}))
    assert not (tmp_path / "atlas").exists()
