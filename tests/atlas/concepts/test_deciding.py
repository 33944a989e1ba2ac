"""Decisions carried out on found concepts: what is said of them afterwards."""

import numpy as np

from tests.atlas.annotator.conftest import SETTINGS, Small, small
from vitrail.atlas.concepts.deciding import Concepts, decide
from vitrail.atlas.concepts.decisions import parse_decisions
from vitrail.atlas.concepts.describing import Sayings
from vitrail.atlas.concepts.geometry import count_matrix
from vitrail.atlas.sample import Chunks
from vitrail.atlas.tags import Tagger
from vitrail.atlas.tags.tagging import Tagging
from vitrail.atlas.tags.writing import tag_table

__all__ = ["small"]


def decided(small: Small, *entries: object) -> dict[str, str]:
    """Descriptions by name after decisions; topic 0 has a language model's, the others have those made of tags."""
    names = [", ".join(small.evidence.detector.member_ids(c).astype(str)[:2]) for c in range(len(small.words))]
    descriptions = ["What a model said.", *(f"Passages on {name}: tags." for name in names[1:])]
    said = Sayings(names, descriptions, ["content"] * len(names), [True] * len(names))
    found = [Tagger(small.tags).tag(text) for text in small.texts]
    counts = count_matrix([[occurrence.tag for occurrence in row] for row in found], len(small.tags))
    tagging = Tagging(tag_table(small.texts, small.tags, found), counts, counts)
    chunks = Chunks(small.texts, np.arange(len(small.texts)), np.zeros(len(small.texts), np.int64), [""])
    named = [{**entry, "concept": names[entry["concept"]]} for entry in entries if isinstance(entry, dict)]
    decisions = parse_decisions({"decisions": named}, "file")
    after = decide(
        Concepts(small.evidence, said, []), decisions, small.encoded, tagging, chunks, SETTINGS, lambda line: None
    )
    return dict(zip(after.said.names, after.said.descriptions, strict=True))


def test_a_renamed_concept_keeps_what_a_model_said(small: Small) -> None:
    assert decided(small, {"action": "rename", "concept": 0, "name": "new"})["new"] == "What a model said."


def test_a_description_made_of_the_name_is_made_of_the_new_one(small: Small) -> None:
    assert decided(small, {"action": "rename", "concept": 1, "name": "new"})["new"].startswith("Passages on new: ")
