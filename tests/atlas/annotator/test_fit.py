"""The fitted annotator: sees without the tags, labels what can be seen, is saved whole."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from safetensors.numpy import load_file, save_file

from tests.atlas.annotator.conftest import KNOWN, NUM_TOPICS, SETTINGS, TONE, Small
from vitrail.atlas.annotator import TAGS_NAME, Annotator, make_encoder
from vitrail.atlas.annotator.blanking import blank, tag_pattern
from vitrail.atlas.annotator.fit import Evidence, FitInputs, FittedAnnotator, fit_annotator
from vitrail.atlas.annotator.storing import WEIGHTS_NAME
from vitrail.atlas.concepts.geometry import chunk_vectors
from vitrail.atlas.concepts.own import OwnConcept
from vitrail.errors import ArtifactError, ConfigError, CorpusError


def _auc(truth: np.ndarray, score: np.ndarray) -> float:
    wins = (score[truth][:, None] > score[~truth][None]).mean()
    ties = (score[truth][:, None] == score[~truth][None]).mean()
    return float(wins + ties / 2)


def _saved(fitted: FittedAnnotator, folder: Path) -> Path:
    folder.mkdir(exist_ok=True)
    pq.write_table(pa.table({"tag": list(fitted.annotator.tags)}), folder / TAGS_NAME)
    fitted.annotator.save(folder)
    return folder


def test_heads_know_concepts_whose_tags_are_struck_out(small: Small, fitted: FittedAnnotator) -> None:
    """Held-out chunks, each concept's five tags struck out of the text: ten words of the topic are left to tell."""
    annotator = fitted.annotator
    head, centroid = [], []
    for c in range(NUM_TOPICS):
        pattern = tag_pattern(annotator.member_tags(c))
        texts = [blank(text, pattern) for text in small.heldout]
        assert not any(word in text for text in texts for word in annotator.member_tags(c))
        reading = annotator.reader.read(texts)
        truth = small.heldout_topics == c
        head.append(_auc(truth, annotator.heads.logits(reading.vectors, c)))
        tags = chunk_vectors(reading.weighted, small.encoded.space.vectors)
        centroid.append(_auc(truth, tags @ small.evidence.detector.centroids[c]))
    assert np.mean(head) > 0.9
    assert np.mean(head) > np.mean(centroid), f"{head} against {centroid}"


def test_labels_agree_with_the_topics_and_can_be_seen(small: Small, fitted: FittedAnnotator) -> None:
    annotator = fitted.annotator
    found = annotator.annotate(small.heldout)
    right = wrong = 0
    for text, topic, labels in zip(small.heldout, small.heldout_topics, found.labels, strict=True):
        for label in (label for label in labels if label.concept_id < NUM_TOPICS):
            assert label.score >= annotator.thresholds[label.concept_id]
            assert label.spans
            assert {text[a:b] for a, b in label.spans} <= set(annotator.member_tags(label.concept_id))
            right += label.concept_id == topic
            wrong += label.concept_id != topic
    assert right > 0.4 * len(small.heldout)
    assert wrong < 0.3 * right, "by chance five in six would be wrong"


def test_without_the_rule_labels_need_no_tag(small: Small, fitted: FittedAnnotator) -> None:
    free = small.fit(settings=SETTINGS.model_copy(update={"visible_labels": False})).annotator
    words = small.words[2][KNOWN:]
    text = ". ".join(words)
    assert not any(word in text for word in free.member_tags(2))
    labels = free.annotate([text]).labels[0]
    assert [(label.concept_id, label.spans) for label in labels] == [(2, ())]
    assert labels[0].score >= free.thresholds[2]
    assert not [label for label in fitted.annotator.annotate([text]).labels[0] if label.concept_id < NUM_TOPICS]


def test_both_losses_fit(small: Small, fitted: FittedAnnotator) -> None:
    plain = small.fit((TONE,), SETTINGS.model_copy(update={"loss": "bce"})).annotator
    assert np.abs(plain.heads.weights - fitted.annotator.heads.weights).max() > 1e-3
    assert plain.annotate(small.heldout[:9]).vectors.shape == (9, plain.width)


def test_the_same_chunks_give_the_same_bytes(small: Small, fitted: FittedAnnotator, tmp_path: Path) -> None:
    first, again = _saved(fitted, tmp_path / "a"), _saved(small.fit((TONE,)), tmp_path / "b")
    assert (first / WEIGHTS_NAME).read_bytes() == (again / WEIGHTS_NAME).read_bytes()


def test_loaded_is_saved(small: Small, fitted: FittedAnnotator, tmp_path: Path) -> None:
    again = Annotator.load(_saved(fitted, tmp_path))
    texts = [*small.heldout[:40], "", "If you please: nothing known"]
    one, two = fitted.annotator.annotate(texts), again.annotate(texts)
    assert one.labels == two.labels
    assert one.vectors.tobytes() == two.vectors.tobytes()
    assert not one.vectors[-2:].any()
    assert again.member_tags(NUM_TOPICS) == ["if you please"]
    assert (again.encoder, again.width, again.num_concepts) == ("tags", fitted.annotator.width, NUM_TOPICS + 1)
    assert (again.scores(texts) != fitted.annotator.scores(texts)).nnz == 0


def test_labels_do_not_depend_on_the_company_of_a_text(small: Small, fitted: FittedAnnotator) -> None:
    together = fitted.annotator.annotate(small.heldout[:30])
    for i in (0, 7, 29):
        assert fitted.annotator.annotate([small.heldout[i]]).labels[0] == together.labels[i]


def test_a_phrase_of_every_chunk_is_seen(small: Small) -> None:
    texts = [f"{text} All of it is ours." for text in small.texts]
    own = OwnConcept(name="ours", phrases=("all of it is ours",))
    inputs = FitInputs(texts, [], small.tags, small.encoded, small.evidence, [own])
    annotator = fit_annotator(inputs, make_encoder("tags", small.encoded.space.vectors), SETTINGS).annotator
    assert annotator.scores(texts[:5]).tocsc()[:, [NUM_TOPICS]].nnz == 5


def test_a_phrase_marks_an_own_concept(fitted: FittedAnnotator) -> None:
    text = "Come in, IF you  please."
    (label,) = (x for x in fitted.annotator.annotate([text]).labels[0] if x.concept_id == NUM_TOPICS)
    assert [text[a:b] for a, b in label.spans] == ["IF you  please"]


@pytest.mark.parametrize("counted", [0, 3, 12])
def test_an_own_concept_from_examples_or_description_alone(small: Small, counted: int) -> None:
    """A topic given by a person, beside no automatic concept: by ten of its words, or by chunks of it."""
    mine = [text for text, topic in zip(small.texts, small.topics, strict=True) if topic == 4][:counted]
    own = OwnConcept(name="mine", description=", ".join(small.words[4][:10]), examples=tuple(mine))
    none = Evidence.none(len(small.tags), small.encoded.space.vectors.shape[1])
    encoder = make_encoder("tags", small.encoded.space.vectors)
    fitted = fit_annotator(FitInputs(small.texts, [], small.tags, small.encoded, none, [own]), encoder, SETTINGS)
    odds = fitted.annotator.log_odds(small.heldout, [0])[:, 0]
    assert _auc(small.heldout_topics == 4, odds) > 0.95
    labelled = np.isin(np.arange(len(small.texts)), fitted.labelled[0])
    is_mine = small.topics == 4
    assert labelled.any()
    assert is_mine[labelled].mean() > 0.6, "labels without a phrase come from the head alone"


def test_counterexamples_lower_their_like(small: Small) -> None:
    mine = tuple(t for t, topic in zip(small.texts, small.topics, strict=True) if topic == 4)[:6]
    like = ". ".join(small.words[4][:6] + small.words[5][:6])
    plain = OwnConcept(name="mine", examples=mine)
    warned = OwnConcept(name="mine", examples=mine, counterexamples=(like,))
    before, after = (small.fit((own,)).annotator for own in (plain, warned))
    (before_z, after_z) = (
        next(a.heads.z_of(a.reader.read([like]).vectors, np.array([NUM_TOPICS])))[1][0, 0] for a in (before, after)
    )
    assert after_z < before_z - 0.05


def test_a_concept_of_which_the_corpus_knows_nothing(small: Small) -> None:
    with pytest.raises(CorpusError, match=r"own concept 'xyzzy': nothing .* is known to the corpus"):
        small.fit((OwnConcept(name="xyzzy", description="Quite unheard of here."),))


def test_unknown_words_with_a_phrase_go_by_the_phrase_alone(fitted: FittedAnnotator, small: Small) -> None:
    """The project's own concepts are added to any corpus, however little it knows of them."""
    assert np.isinf(fitted.annotator.scoring.unseen[NUM_TOPICS])
    marked = [i for i, text in enumerate(small.texts) if "If you please" in text]
    assert set(fitted.labelled[NUM_TOPICS].tolist()) <= set(marked)
    assert len(fitted.labelled[NUM_TOPICS])


def test_another_version_is_named(fitted: FittedAnnotator, tmp_path: Path) -> None:
    weights = _saved(fitted, tmp_path) / WEIGHTS_NAME
    save_file(load_file(weights), weights)
    with pytest.raises(ArtifactError, match=r"format 1, wanted 2; build the atlas again"):
        Annotator.load(tmp_path)


@pytest.mark.parametrize("fault", ["cut", "fewer tags", "no marks", "no heads"])
def test_damage_is_named(fitted: FittedAnnotator, tmp_path: Path, fault: str) -> None:
    weights = _saved(fitted, tmp_path) / WEIGHTS_NAME
    if fault == "cut":
        weights.write_bytes(weights.read_bytes()[:-999])
    elif fault == "fewer tags":
        pq.write_table(pa.table({"tag": list(fitted.annotator.tags)[:-1]}), tmp_path / TAGS_NAME)
    elif fault == "no marks":
        (tmp_path / "marks.parquet").unlink()
    else:
        kept = {name: array for name, array in load_file(weights).items() if not name.startswith("head.")}
        save_file(kept, weights, {"annotator": '{"format": 2, "encoder": "tags"}'})
    with pytest.raises(ArtifactError, match=r"damaged annotator .*; build the atlas again"):
        Annotator.load(tmp_path)


def test_a_server_is_asked_for(fitted: FittedAnnotator, tmp_path: Path) -> None:
    weights = _saved(fitted, tmp_path) / WEIGHTS_NAME
    save_file(load_file(weights), weights, {"annotator": '{"format": 2, "encoder": "endpoint:m"}'})
    with pytest.raises(ConfigError, match=r"encoder 'endpoint:m' asks a server, and none is named"):
        Annotator.load(tmp_path)
    save_file(load_file(weights), weights, {"annotator": '{"format": 2, "encoder": "magic"}'})
    with pytest.raises(ConfigError, match="unknown encoder 'magic'"):
        Annotator.load(tmp_path)
