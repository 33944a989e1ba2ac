"""A small corpus with a known truth: topics of made-up words, of which a concept knows only some."""

from dataclasses import dataclass

import numpy as np
import pytest
from threadpoolctl import threadpool_limits

from vitrail.atlas.annotator import Detector, make_encoder
from vitrail.atlas.annotator.fit import Evidence, FitInputs, FittedAnnotator, fit_annotator
from vitrail.atlas.concepts.geometry import unit
from vitrail.atlas.concepts.own import OwnConcept
from vitrail.atlas.concepts.space import Encoded, encode
from vitrail.atlas.sample import Chunks
from vitrail.atlas.settings import AtlasSettings
from vitrail.atlas.tags.tagging import tag_chunks

NUM_TOPICS, WORDS, KNOWN, CHUNKS, HELDOUT = 7, 15, 5, 420, 140
SYLLABLES = ("ba", "ke", "li", "mo", "nu", "ra", "se", "ti", "vo", "zu", "dan", "fer", "gol", "hup", "jin")
SETTINGS = AtlasSettings(num_concepts=NUM_TOPICS, max_prevalence=0.3)
TONE = OwnConcept(name="polite", kind="tone", phrases=("if you please",), examples=("if you please",))


@dataclass(frozen=True)
class Small:
    """All that an annotator is fitted from.

    Attributes:
        words: of each topic; a concept's tags are the first five.
        texts: to fit on.
        topics: of each text.
        heldout: others.
        heldout_topics: of those.
        tags: known tags.
        encoded: of the texts.
        evidence: one concept a topic.
    """

    words: list[list[str]]
    texts: list[str]
    topics: np.ndarray
    heldout: list[str]
    heldout_topics: np.ndarray
    tags: tuple[str, ...]
    encoded: Encoded
    evidence: Evidence

    def fit(self, own: tuple[OwnConcept, ...] = (), settings: AtlasSettings = SETTINGS) -> FittedAnnotator:
        """An annotator with the encoder of tags."""
        encoder = make_encoder("tags", self.encoded.space.vectors)
        inputs = FitInputs(self.texts, self.heldout, self.tags, self.encoded, self.evidence, own)
        with threadpool_limits(1):
            return fit_annotator(inputs, encoder, settings)


def _texts(words: list[list[str]], count: int, seed: int) -> tuple[list[str], np.ndarray]:
    rng = np.random.default_rng(seed)
    topics = rng.integers(len(words), size=count)
    texts = []
    for topic in topics:
        drawn = [words[topic][i] for i in rng.integers(WORDS, size=5)]
        drawn += [
            words[t][i] for t, i in zip(rng.integers(len(words), size=8), rng.integers(WORDS, size=8), strict=True)
        ]
        texts.append(". ".join(rng.permutation(drawn).tolist()))
    return texts, topics


@pytest.fixture(scope="session")
def small() -> Small:
    """The corpus, encoded by the company that tags keep."""
    rng = np.random.default_rng(5)
    made = [a + b + c for a in SYLLABLES for b in SYLLABLES for c in SYLLABLES[:3]]
    words = [list(part) for part in np.split(rng.permutation(made)[: NUM_TOPICS * WORDS], NUM_TOPICS)]
    texts, topics = _texts(words, CHUNKS, 1)
    texts[::60] = [text + ". If you please" for text in texts[::60]]
    heldout, heldout_topics = _texts(words, HELDOUT, 2)
    tagging = tag_chunks(texts, 1_000)
    chunks = Chunks(texts, np.arange(CHUNKS), np.zeros(CHUNKS, np.int64), [""])
    with threadpool_limits(1):
        encoded = encode(tagging, chunks, 0, "company")
    tags = tagging.table.tags
    members = [np.array([tags.index(word) for word in sorted(own[:KNOWN])]) for own in words]
    vectors = encoded.space.vectors
    centroids = unit(np.stack([vectors[ids].mean(0) for ids in members]))
    detector = Detector.fit(vectors, centroids, members, tagging.occurrences, encoded.rows)
    scores = detector.scores(encoded.weighted, encoded.rows).tocsc()
    thresholds = np.full(NUM_TOPICS, 2.0, np.float32)
    columns = [slice(a, b) for a, b in zip(scores.indptr[:-1], scores.indptr[1:], strict=True)]
    labelled = [np.sort(scores.indices[at][scores.data[at] >= 2.0]).astype(np.int64) for at in columns]
    evidence = Evidence(detector, thresholds, labelled, ["content"] * NUM_TOPICS)
    return Small(words, texts, topics, heldout, heldout_topics, tags, encoded, evidence)


@pytest.fixture(scope="session")
def fitted(small: Small) -> FittedAnnotator:
    """Seven automatic concepts and one own."""
    return small.fit((TONE,))
