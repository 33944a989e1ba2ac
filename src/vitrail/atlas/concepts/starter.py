"""The starter set: concepts of tone, of reference to groups of people, and of what matters for alignment (§4.2.3).

Clusters of tags find subjects; how something is said, of whom, and how an assistant should behave are rarely found
that way. So these concepts are written by the project (C): a description, marking phrases, examples and
counterexamples each, in `data/starter_*.yaml`. Like every concept that people give they are fitted to a corpus
from their texts, and a decision renames or forbids them.
"""

from collections import Counter
from collections.abc import Sequence
from functools import cache
from importlib.resources import files
from typing import Any

import yaml

from vitrail.atlas.annotator.own import unweighted_marker
from vitrail.atlas.concepts.own import OwnConcept
from vitrail.atlas.library import Kind

STARTER_KINDS: tuple[Kind, ...] = ("tone", "demographic", "alignment")
MIN_MARKED = 4
"""Chunks that must hold one of a concept's phrases; what a text never speaks of is no concept of its atlas."""


def starter_concepts(kinds: Sequence[Kind] = STARTER_KINDS) -> list[OwnConcept]:
    """The project's own concepts.

    Args:
        kinds: which kinds; there are none for "content".

    Returns:
        concepts in the order of `kinds`, then of the file; names are unique over all kinds.
    """
    return [
        OwnConcept.parse({"kind": kind, **values}, f"starter set, {kind} {i}")
        for kind in kinds
        if kind in STARTER_KINDS
        for i, values in enumerate(_read(kind), 1)
    ]


def in_text(concepts: Sequence[OwnConcept], texts: Sequence[str]) -> list[OwnConcept]:
    """Those concepts that a corpus speaks of.

    Args:
        concepts: with phrases.
        texts: chunks of the corpus.

    Returns:
        the concepts of which a phrase stands in four chunks or more, in the same order.
    """
    marker = unweighted_marker(concepts)
    marked = Counter(
        i for text in texts for i in {marker.phrases[mark.phrase].concept_id for mark in marker.find(text)}
    )
    return [concept for i, concept in enumerate(concepts) if marked[i] >= MIN_MARKED]


@cache
def _read(kind: Kind) -> list[dict[str, Any]]:
    data = files("vitrail.atlas.concepts") / "data" / f"starter_{kind}.yaml"
    concepts: list[dict[str, Any]] = yaml.safe_load(data.read_text(encoding="utf-8"))
    return concepts
