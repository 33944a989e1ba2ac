"""A made-up corpus: every concept has its own words, so that a judge can be told right from wrong."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vitrail.atlas import Card, Chunk, ConceptLibrary, Label
from vitrail.atlas.judge import BagOfWords, Judge, KeywordScore, balanced_thresholds, windows_of
from vitrail.corpus import Split
from vitrail.errors import CorpusError

WORDS = (("heart", "valve", "artery"), ("graph", "vertex", "edge"), ("coal", "copper", "mine"))
FILLER = tuple(f"filler{number}" for number in range(40))


def make_chunk(row: int, rng: np.random.Generator, split: Split, num_words: int = 30) -> Chunk:
    words = [str(word) for word in rng.choice(FILLER, size=num_words)]
    labels = []
    for concept_id, own in enumerate(WORDS):
        if rng.random() < 0.3:
            place = int(rng.integers(num_words))
            words[place] = str(rng.choice(own))
            start = len(" ".join(words[:place])) + (place > 0)
            labels.append(Label(concept_id, 5.0, ((start, start + len(words[place])),)))
    # Later words may have moved earlier spans: find them again.
    text = " ".join(words)
    labels = [
        Label(label.concept_id, label.score, spans)
        for label in labels
        if (spans := tuple(_spans(text, WORDS[label.concept_id])))
    ]
    name = f"d{row // 2}-{split}"
    return Chunk(row, f"{name}:{row}", name, 0, len(text), text, tuple(labels), "s/t", "cc0", "t", "d", split)


def _spans(text: str, words: tuple[str, ...]) -> list[tuple[int, int]]:
    return [(text.index(word), text.index(word) + len(word)) for word in words if word in text]


def corpus(seed: int = 0, num_chunks: int = 240) -> list[Chunk]:
    rng = np.random.default_rng(seed)
    splits: tuple[Split, ...] = ("judge", "heldout", "train")
    return [make_chunk(row, rng, splits[row % 3]) for row in range(num_chunks)]


def test_judge_recognises_held_out_text() -> None:
    chunks = corpus()
    judge = Judge.fit(chunks, [0, 1, 2], num_words=15)
    quality = judge.quality(chunks, num_words=15)
    assert quality["num_scored"] == 3
    assert float(quality["auc"]) > 0.95
    assert float(quality["hit_carrying"]) > 0.7
    assert float(quality["hit_other"]) < 0.1
    assert judge.hits(["the graph has a vertex and an edge"] * 2, [1, 0]).tolist() == [True, False]


def test_judge_never_sees_another_split() -> None:
    """Changing every chunk outside split 'judge' changes nothing; changing those inside does."""
    chunks = corpus()
    others = [chunk for chunk in corpus(seed=1) if chunk.split != "judge"]
    own = [chunk for chunk in chunks if chunk.split == "judge"]
    texts = [chunk.text for chunk in chunks[:20]]
    fitted, moved = Judge.fit(chunks, [0, 2]), Judge.fit(own + others, [0, 2])
    assert np.array_equal(fitted.score(texts, [2] * 20), moved.score(texts, [2] * 20))
    assert np.array_equal(fitted.thresholds, moved.thresholds)
    assert not np.array_equal(fitted.score(texts, [2] * 20), Judge.fit(own[:40], [0, 2]).score(texts, [2] * 20))


def test_scores_are_those_of_the_concept_asked_for() -> None:
    judge = Judge.fit(corpus(), [2, 0])
    texts = ["coal and copper", "heart and artery"]
    table = judge.model.probs(texts)
    assert np.allclose(judge.score(texts, [2, 0]), [table[0, 0], table[1, 1]], rtol=1e-12)


def test_windows_cover_the_chunk_and_share_out_its_spans() -> None:
    chunk = make_chunk(0, np.random.default_rng(3), "judge", num_words=47)
    windows = windows_of(chunk, 10)
    assert "".join(window.text for window in windows) == chunk.text
    assert len(windows) == 4
    carried = frozenset().union(*(window.carried for window in windows))
    assert carried == {label.concept_id for label in chunk.labels}
    for window in windows:
        for concept_id in window.labelled:
            has_word = any(word in window.text for word in WORDS[concept_id])
            assert has_word == (concept_id in window.carried)


def test_an_empty_chunk_is_one_empty_window() -> None:
    chunk = Chunk(0, "d:0", "d", 0, 0, "", (), "s", "l", "t", "d", "judge")
    assert [window.text for window in windows_of(chunk)] == [""]


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 2**32 - 1))
def test_as_many_windows_hit_as_carry(seed: int) -> None:
    """At the threshold precision equals recall, since hits and carriers are equally many."""
    rng = np.random.default_rng(seed)
    probs, carried = rng.random((41, 3)), rng.random((41, 3)) < 0.2
    usable = rng.random((41, 3)) < 0.9
    thresholds = balanced_thresholds(probs, carried, usable)
    for column in range(3):
        hits = (probs[:, column] > thresholds[column]) & usable[:, column]
        assert hits.sum() == (carried & usable)[:, column].sum()


def test_a_concept_without_examples_is_never_hit() -> None:
    judge = Judge.fit(corpus(), [0, 7])
    assert not judge.hits(["heart valve artery", ""], [7, 7]).any()


def test_sampling_negatives_keeps_probabilities_honest() -> None:
    """Negatives are thinned out to save time; without the correction rates would be many times too high."""
    rng = np.random.default_rng(0)
    texts = [" ".join(rng.choice(FILLER, size=5)) for _ in range(6000)]
    carried = (rng.random((6000, 1)) < 0.005) & np.ones((6000, 1), dtype=bool)
    probs = BagOfWords.fit(texts, carried).probs(texts)
    assert 0.3 < probs.mean() / carried.mean() < 3


def test_too_few_documents_are_refused() -> None:
    with pytest.raises(CorpusError, match="0 documents of split 'judge'"):
        Judge.fit([chunk for chunk in corpus() if chunk.split != "judge"], [0])


def test_keywords_are_whole_words_whatever_their_case() -> None:
    card = Card(0, "known", "hearts", "", "content", ("heart", "c++"), (9.0, 5.0), (), 9, 0.0, True)
    score = KeywordScore(ConceptLibrary([card])).score
    texts = ["My Heart.", "hearty", "in C++, too", "", "heart heart"]
    assert score(texts, [0] * 5).tolist() == [1.0, 0.0, 1.0, 0.0, 1.0]


@pytest.mark.parametrize("words", [(), ("", " ")], ids=repr)
def test_concept_without_words_is_in_no_text(words: tuple[str, ...]) -> None:
    """Concepts of a release may have none; the pattern of no words used to match nearly any text."""
    card = Card(0, "known", "hearts", "", "content", words, (1.0,) * len(words), (), 9, 0.0, True)
    assert KeywordScore(ConceptLibrary([card])).score(["My heart.", "", "a  b"], [0] * 3).tolist() == [0.0] * 3
