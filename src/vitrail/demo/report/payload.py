"""The part of an explanation that the page's own script reads, as inert JSON.

Long lists are cut to what is shown; concepts that are cut move into the "other" sum of their head, so
the pieces still add up, both as they are (raw) and minus the average word (centred). Non-finite numbers
become null.
"""

import json
from collections.abc import Iterable, Mapping
from typing import Any

from markupsafe import Markup

from vitrail.demo.report.data import ConceptCard
from vitrail.demo.report.figures import number, part
from vitrail.demo.report.palette import concept_key, strength_field

MAX_CONCEPTS = 8
MAX_INPUTS = 8
MAX_HITS = 4
MAX_PASSAGE_CHARS = 900


def page_payload(
    explanation: Mapping[str, Any], cards: Iterable[ConceptCard], hues: Mapping[str, int]
) -> dict[str, Any]:
    """What the script needs to show any chunk or token of the answer.

    Args:
        explanation: the explanation document.
        cards: the library, for names and descriptions.
        hues: concept key → colour number.

    Returns:
        plain values.
    """
    inputs, concepts = part(explanation, "inputs"), part(explanation, "concepts")
    sources = part(explanation, "sources")
    named = {card.key: [card.name, card.description, list(card.words[:10])] for card in cards}
    used = _used(concepts)
    return {
        "promptTokens": [str(token.get("text", "")) for token in explanation.get("prompt_tokens") or []],
        "tokens": [_token(token) for token in explanation.get("tokens") or []],
        "chunks": [
            {name: chunk.get(name, 0) for name in ("chunk", "start", "stop")}
            for chunk in explanation.get("chunks") or []
        ],
        "inputs": {
            "chunks": {str(item.get("chunk")): _inputs(item) for item in inputs.get("chunks") or []},
            "tokens": {str(item.get("pos")): _inputs(item) for item in inputs.get("tokens") or []},
        },
        "concepts": {
            "chunks": {str(item.get("chunk")): _concepts(item) for item in concepts.get("chunks") or []},
            "tokens": {str(item.get("pos")): _concepts(item) for item in concepts.get("tokens") or []},
        },
        "sources": {str(item.get("chunk")): _hits(item) for item in sources.get("chunks") or []},
        "library": {key: [*named.get(key, [name, "", []]), hues.get(key, 0)] for key, name in used.items()},
    }


def inert_json(value: Any) -> Markup:
    r"""JSON that cannot end its script element: `<`, `>` and `&` are written as `\u003c` and so on.

    Args:
        value: plain values without NaN.

    Returns:
        markup for the inside of `<script type="application/json">`.
    """
    text = json.dumps(value, ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    return Markup(text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e"))


def _used(concepts: Mapping[str, Any]) -> dict[str, str]:
    places = [*(concepts.get("chunks") or []), *(concepts.get("tokens") or [])]
    return {
        concept_key(entry): str(entry.get("name", ""))
        for place in places
        for entry in _largest(place.get("ranked"), strength_field(place), MAX_CONCEPTS)
    }


def _token(token: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "text": str(token.get("text", "")),
        "step": int(number(token.get("step")) or 0),
        "prob": _short(token.get("prob")),
    }


def _inputs(item: Mapping[str, Any]) -> dict[str, Any]:
    ranked = _largest(item.get("ranked"), "score", MAX_INPUTS)
    shares = {name: _short(item.get(f"{name}_share")) for name in ("prompt", "generated", "injection")}
    return {
        "scores": [_short(score) for score in item.get("scores") or []],
        "ranked": [
            [
                str(entry.get("where", "prompt")),
                entry.get("pos", 0),
                str(entry.get("text", "")),
                _short(entry.get("score")),
            ]
            for entry in ranked
        ],
        "shares": shares,
        "gap": _short(item.get("completeness_gap")),
    }


def _concepts(item: Mapping[str, Any]) -> dict[str, Any]:
    shown = _largest(item.get("ranked"), strength_field(item), MAX_CONCEPTS)
    return {
        "raw": _sums(item, shown, "contribution", ""),
        "centred": _sums(item, shown, "centred", "_centred"),
        "ranked": [
            [
                concept_key(entry),
                *(number(entry.get(name)) for name in ("contribution", "centred")),
                _short(entry.get("weight")),
            ]
            for entry in shown
        ],
    }


def _sums(
    item: Mapping[str, Any], shown: Iterable[Mapping[str, Any]], field: str, suffix: str
) -> dict[str, float] | None:
    """The three parts of a score, and what of known and discovered the shown concepts leave over."""
    parts = {name: number(item.get(name + suffix)) for name in ("known", "discovered", "residual")}
    known, discovered, residual = parts.values()
    if known is None or discovered is None or residual is None:
        return None
    listed = {"known": 0.0, "discovered": 0.0}
    for entry in shown:
        listed[str(entry.get("head"))] += number(entry.get(field)) or 0.0
    return {
        "known": known,
        "discovered": discovered,
        "residual": residual,
        "otherKnown": known - listed["known"],
        "otherDiscovered": discovered - listed["discovered"],
    }


def _hits(item: Mapping[str, Any]) -> list[dict[str, Any]]:
    return [_hit(hit) for hit in (item.get("hits") or [])[:MAX_HITS]]


def _hit(hit: Mapping[str, Any]) -> dict[str, Any]:
    overlap = part(hit, "overlap")
    words = str(overlap.get("text") or "")
    return {
        **{name: str(hit.get(name) or "") for name in ("title", "source", "license", "document_id")},
        "similarity": _short(hit.get("similarity")),
        "text": _excerpt(str(hit.get("text") or ""), words),
        "overlap": words,
        "overlapTokens": int(number(overlap.get("num_tokens")) or 0),
    }


def _excerpt(text: str, words: str) -> str:
    if len(text) <= MAX_PASSAGE_CHARS:
        return text
    place = max(text.find(words), 0) if words else 0
    start = max(min(place - MAX_PASSAGE_CHARS // 3, len(text) - MAX_PASSAGE_CHARS), 0)
    stop = start + MAX_PASSAGE_CHARS
    return ("… " if start else "") + text[start:stop] + (" …" if stop < len(text) else "")


def _largest(entries: Any, field: str, count: int) -> list[Mapping[str, Any]]:
    return sorted(entries or [], key=lambda entry: -abs(number(entry.get(field)) or 0.0))[:count]


def _short(value: Any) -> float | None:
    finite = number(value)
    return None if finite is None else float(f"{finite:.4g}")
