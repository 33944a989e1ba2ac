import json
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.metrics.toy import Toy, make_reader, make_toy
from vitrail.atlas import Chunk
from vitrail.errors import ArtifactError
from vitrail.metrics.alignment import count_tokens, known_alignment, matches
from vitrail.metrics.concepts import TrainChunks, chunk_scores, concept_detection, source_oracle, train_chunks
from vitrail.metrics.likelihood import bits_per_byte
from vitrail.metrics.measure import measure_model
from vitrail.metrics.ngram import fit_ngram
from vitrail.metrics.states import is_present, masked_states, sample_rows
from vitrail.model import ConceptLM


@pytest.fixture(scope="module")
def toy(tmp_path_factory: pytest.TempPathFactory) -> Toy:
    return make_toy(tmp_path_factory.mktemp("toy"))


@pytest.fixture(scope="module")
def reader(toy: Toy) -> ConceptLM:
    return make_reader(toy)


def test_a_model_that_reads_concepts_detects_them(toy: Toy, reader: ConceptLM) -> None:
    found = concept_detection(reader, toy.packed, toy.annotated)
    assert found["count"] == 6
    assert found["num_scored"] >= 1
    assert found["auc_macro"] > 0.9
    assert found["map"] > 3 * found["base_rate"]
    assert found["bag_of_words"]["auc"] > 0.9
    assert 0.4 < found["auc_source_oracle"] < found["auc_macro"]
    low, high = found["ci95"]["auc_macro"]
    assert low <= found["auc_macro"] <= high
    assert found["bce_prior"] > 0


def test_scores_stand_beside_the_labels_of_their_chunks(toy: Toy, reader: ConceptLM) -> None:
    scores = chunk_scores(reader, toy.packed, how="max", num_sequences=1000, seed=0)
    assert len(scores.rows) == len(toy.chunks("heldout"))
    for row, labels in zip(scores.rows, scores.labels, strict=True):
        chunk = toy.annotated.chunk(int(row))
        assert chunk.split == "heldout"
        assert set(np.flatnonzero(labels)) == {label.concept_id for label in chunk.labels}


def test_another_annotated_corpus_is_refused(toy: Toy, reader: ConceptLM, tmp_path: Path) -> None:
    """Once labels of a rebuilt corpus were compared with the rows of an old one, and all figures were chance."""
    other = make_toy(tmp_path, num_documents=60, seed=1)
    with pytest.raises(ArtifactError, match="pack it again"):
        concept_detection(reader, toy.packed, other.annotated)


def test_references_know_the_train_split_only(toy: Toy) -> None:
    train = train_chunks(toy.annotated, 6, 10_000, seed=0)
    expected: list[Chunk] = toy.chunks("train")
    assert train.texts == [chunk.text for chunk in expected]
    assert len(train_chunks(toy.annotated, 6, 100, seed=0).texts) <= 100


def test_oracle_knows_shares_by_source() -> None:
    labels = np.array([[True], [False], [True], [True]])
    train = TrainChunks(["a", "b", "c", "d"], labels, ["x", "x", "y", "y"])
    assert source_oracle(train, ["y", "x", "z"])[:, 0].tolist() == [1.0, 0.5, 0.75]


def test_tokens_of_a_concept_align_with_its_words(toy: Toy, reader: ConceptLM) -> None:
    counts = count_tokens(toy.packed)
    found = known_alignment(reader, toy.packed.tokenizer(), toy.library, counts, num_top=3, min_count=5)
    assert found["share"] > 0.3
    assert found["share"] > 5 * found["shuffled"]
    assert "embedded" in found["judge"]


def test_pieces_match_whole_words_and_long_beginnings() -> None:
    found = matches(["heart", "hea", "hear", "hearts", "", "art"], ["heart"])
    assert found.tolist() == [True, False, True, False, False, False]


def test_bits_per_byte_stand_beside_ngrams_on_the_same_bytes(toy: Toy, reader: ConceptLM) -> None:
    ngrams = {"unigram": fit_ngram(toy.packed, 1), "bigram": fit_ngram(toy.packed, 2)}
    found = bits_per_byte(reader, toy.packed, ngrams=ngrams, num_sequences=9)
    assert found["bigram"] < found["unigram"]
    low, high = found["ci95"]
    assert low <= found["model"] <= high
    rows = sample_rows(toy.packed, "heldout", 9, 0)
    batch = toy.packed.batch("heldout", rows)
    assert found["num_bytes"] == batch.num_bytes
    present = is_present(reader, batch.tokens)
    nats = -sum(
        ngrams["bigram"].logprobs(ids[kept].numpy()).sum() for ids, kept in zip(batch.tokens, present, strict=True)
    )
    assert found["bigram"] == pytest.approx(nats / np.log(2) / batch.num_bytes)
    assert found["num_tokens"] == int(present.sum())


def test_masked_states_come_from_masked_places(toy: Toy, reader: ConceptLM) -> None:
    states = masked_states(reader, toy.packed, "heldout", num_sequences=5, seed=1)
    assert not (states.targets == reader.config.pad_id).any()
    hidden = reader.hidden(torch.tensor([[reader.config.mask_id]]))[0, 0]
    assert torch.allclose(states.hidden, hidden.expand_as(states.hidden), atol=1e-5)
    tokens = toy.packed.batch("heldout", sample_rows(toy.packed, "heldout", 5, 1)).tokens
    share = len(states.targets) / float(is_present(reader, tokens).sum())
    assert 0.35 < share < 0.65


def test_one_table_holds_everything(toy: Toy, reader: ConceptLM) -> None:
    """Every masked state of this model is the same: no part has any content, so nothing may cost anything."""
    found = measure_model(reader, toy.packed, num_sequences=5)
    json.dumps(found, allow_nan=False)
    deletion, shares = found["deletion_nats"], found["contribution"]
    assert all(abs(deletion[part]["mean"]) < 1e-4 for part in ("known", "discovered", "residual"))
    assert shares["known"] + shares["discovered"] + shares["residual"] == pytest.approx(1, abs=1e-5)
    assert 0 <= found["independence"]["cka_discovered"] <= 1
    assert found["bits_per_byte"]["unigram"] > found["bits_per_byte"]["bigram"]
    assert found == measure_model(reader, toy.packed, num_sequences=5)
