"""Placing concepts in the taxonomy: the leaf whose words are closest in meaning (§4.2.2).

A leaf is the vector of "caption: scope words". A concept is the mean of two vectors, of its name and of its name with
its characteristic words; the leaf of largest cosine takes it (C; chosen on half of a labelled set and measured on the
other half, docs/atlas-taxonomy.md; adding the cosines of the classes above a leaf changed nothing). Tone, reference
to groups and conduct of assistants have a branch of their own, in class X; subjects stand everywhere else.

Letters: C concepts, P leaves, E width.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache

import numpy as np
from jaxtyping import Float32

from vitrail.atlas.concepts.geometry import unit
from vitrail.atlas.concepts.taxonomy import OTHER_CLASS, Place, Taxonomy
from vitrail.atlas.library import Card

Encode = Callable[[Sequence[str]], Float32[np.ndarray, "n E"]]
"""Unit vectors of texts, such as `minilm().encode`."""

KIND_BRANCH: Mapping[str, str] = {"tone": "XT", "demographic": "XD", "alignment": "XA"}


def place(cards: Sequence[Card], encode: Encode) -> list[tuple[str, ...]]:
    """The path of every concept.

    Args:
        cards: in any order; names, words, descriptions and kinds are read.
        encode: texts to unit vectors.

    Returns:
        one path a card, from main class to leaf; never empty.
    Cost: O(C·P·E) time, O(C·P) memory.
    """
    if not cards:
        return []
    leaves, classes = _leaves(encode)
    concepts = unit(encode([card.name for card in cards]) + encode([_spelled_out(card) for card in cards]))
    # Rounded, so that no place hangs on the last bits of a sum; of equals the first in the file wins.
    cosines = np.round(concepts @ classes.T, 4)
    is_open = {kind: [_may_hold(kind, leaf) for leaf in leaves] for kind in {card.kind for card in cards}}
    best = [int(np.argmax(np.where(is_open[card.kind], row, -2))) for card, row in zip(cards, cosines, strict=True)]
    return [leaves[i].path for i in best]


@lru_cache(maxsize=1)
def _leaves(encode: Encode) -> tuple[list[Place], Float32[np.ndarray, "P E"]]:
    """The leaves with their vectors; they are the same for every atlas."""
    leaves = [place for place in Taxonomy.load().places if place.is_leaf]
    return leaves, encode([f"{leaf.caption}: {leaf.scope}" for leaf in leaves])


def _spelled_out(card: Card) -> str:
    """Name and words; a concept that was never counted has no words, but a description."""
    parts = (*card.name.split(", "), *card.words) if card.words else (card.name, card.description)
    return ", ".join(dict.fromkeys(part for part in parts if part))


def _may_hold(kind: str, leaf: Place) -> bool:
    """Whether a leaf is open to a kind: those of its branch; for subjects all outside class X."""
    codes = [label.split()[0] for label in leaf.path]
    branch = KIND_BRANCH.get(kind)
    return branch in codes if branch else codes[0] != OTHER_CLASS
