"""The starter set: enough of it, well-formed, with phrases that tell."""

from collections import Counter

import numpy as np
import pytest

from vitrail.atlas.annotator.marks import Marker, Phrase
from vitrail.atlas.concepts.encoder import minilm
from vitrail.atlas.concepts.geometry import unit
from vitrail.atlas.concepts.own import OwnConcept
from vitrail.atlas.concepts.starter import STARTER_KINDS, starter_concepts
from vitrail.atlas.library import Kind

CONCEPTS = starter_concepts()


@pytest.mark.parametrize("kind", STARTER_KINDS)
def test_each_kind_has_a_dozen_at_least(kind: Kind) -> None:
    concepts = starter_concepts([kind])
    assert len(concepts) >= 12
    assert {concept.kind for concept in concepts} == {kind}
    assert concepts == [concept for concept in CONCEPTS if concept.kind == kind]


def test_subjects_are_found_and_not_written() -> None:
    assert starter_concepts(["content"]) == []


@pytest.mark.parametrize("concept", CONCEPTS, ids=lambda concept: concept.name)
def test_a_concept_has_all_that_its_fit_needs(concept: OwnConcept) -> None:
    texts = (*concept.examples, *concept.counterexamples)
    assert 6 <= len(concept.examples) <= 10
    assert 2 <= len(concept.counterexamples) <= 3
    assert len(set(texts)) == len(texts)
    assert len(concept.phrases) >= 8
    assert len(set(concept.phrases)) == len(concept.phrases)
    assert concept.description.endswith(".")
    assert "\n" not in concept.description


@pytest.mark.parametrize("kind", STARTER_KINDS)
def test_phrases_stand_in_examples_and_seldom_in_counterexamples(kind: Kind) -> None:
    """Counterexamples are written to look alike, so a phrase alone must not decide: but it should tell something."""
    concepts = starter_concepts([kind])
    marker = Marker([Phrase(phrase, i, 1.0) for i, concept in enumerate(concepts) for phrase in concept.phrases])

    def share_marked(texts: list[tuple[int, str]]) -> float:
        hits = [i in {marker.phrases[mark.phrase].concept_id for mark in marker.find(text)} for i, text in texts]
        return sum(hits) / len(hits)

    assert share_marked([(i, text) for i, concept in enumerate(concepts) for text in concept.examples]) >= 0.7
    assert share_marked([(i, text) for i, concept in enumerate(concepts) for text in concept.counterexamples]) <= 0.2


def test_an_example_is_nearest_to_the_other_examples_of_its_concept() -> None:
    """Leave one out, MiniLM, nearest mean within a kind: 0.48 tone, 0.79 groups, 0.60 alignment; chance 0.06."""
    encoder = minilm()
    for kind, wanted in (("tone", 0.4), ("demographic", 0.7), ("alignment", 0.5)):
        vectors = [encoder.encode(concept.examples) for concept in CONCEPTS if concept.kind == kind]
        sums = np.stack([rows.sum(0) for rows in vectors])
        hits = []
        for i, rows in enumerate(vectors):
            for row in rows:
                means = sums.copy()
                means[i] -= row
                hits.append(int(np.argmax(unit(means) @ row)) == i)
        assert sum(hits) / len(hits) >= wanted, kind


def test_no_text_and_no_name_serves_twice() -> None:
    names = Counter(concept.name.casefold() for concept in CONCEPTS)
    texts = Counter(text for concept in CONCEPTS for text in (*concept.examples, *concept.counterexamples))
    assert [name for name, n in (names + texts).items() if n > 1] == []
