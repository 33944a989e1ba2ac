"""One stable colour per concept, everywhere in the page.

The most used concepts of the shown answer take the glass colours first, so that those which stand side
by side differ; then the library follows in its own order. Colour is never the only carrier: names stand
beside it, discovered concepts are hatched and the residual is clear, leaded glass.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Any

from vitrail.demo.report.data import ConceptCard
from vitrail.demo.report.figures import number, part

NUM_HUES = 16


def concept_key(entry: Mapping[str, Any]) -> str:
    """The address of the concept of one ranked entry, such as `known-3`.

    Args:
        entry: an entry of `ranked` in the explanation.

    Returns:
        the key.
    """
    return f"{entry.get('head')}-{entry.get('concept_id')}"


def strength_field(item: Mapping[str, Any]) -> str:
    """Which field of a ranked entry tells its strength.

    Args:
        item: the concepts of one token or chunk.

    Returns:
        `centred` where the parts are given centred too (a shift common to all words decides nothing),
        else `contribution`.
    """
    return "centred" if number(item.get("known_centred")) is not None else "contribution"


def weights(explanation: Mapping[str, Any]) -> dict[str, float]:
    """Total absolute strength of each listed concept over the answer's tokens.

    Args:
        explanation: the explanation document.

    Returns:
        key → sum of absolute strengths in logits, largest first.
    """
    totals: dict[str, float] = defaultdict(float)
    concepts = part(explanation, "concepts")
    for place in concepts.get("tokens") or concepts.get("chunks") or []:
        for entry in place.get("ranked", []):
            totals[concept_key(entry)] += abs(number(entry.get(strength_field(place))) or 0.0)
    return dict(sorted(totals.items(), key=lambda item: (-item[1], item[0])))


def assign_hues(explanation: Mapping[str, Any], cards: Iterable[ConceptCard]) -> dict[str, int]:
    """Colour number of every concept that the page can show.

    Args:
        explanation: the explanation document.
        cards: the library.

    Returns:
        key → 0..NUM_HUES-1.
    """
    keys = dict.fromkeys([*weights(explanation), *(card.key for card in cards)])
    return {key: place % NUM_HUES for place, key in enumerate(keys)}
