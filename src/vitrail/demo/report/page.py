"""Rendering: the template, its filters, the security policy, and the file.

The policy allows exactly two inline blocks, by their hashes: the stylesheet and the script beside this
module. No style attributes, no event attributes, no other origin. Autoescaping is on; what the script
writes, it writes as text.
"""

import base64
import hashlib
from collections.abc import Iterable, Mapping
from importlib.resources import files
from pathlib import Path
from typing import Any

from jinja2 import Environment, StrictUndefined
from markupsafe import Markup

from vitrail.artifacts import atomic_write_bytes
from vitrail.demo.report.data import ConceptCard, ReportData, SteeringPair
from vitrail.demo.report.figures import Aim, aims, part
from vitrail.demo.report.formats import count, decimals, duration, interval, mark_words, shorten, size
from vitrail.demo.report.palette import assign_hues
from vitrail.demo.report.panels import all_charts, stage_bars
from vitrail.demo.report.payload import inert_json, page_payload
from vitrail.demo.report.window import rose, window_svg


def write_report(out: Path, data: ReportData) -> None:
    """Write the report as one HTML file that needs nothing else (§6, §7).

    Args:
        out: path of the file; its folder exists.
        data: what to show; missing figures are shown as "not measured".

    Raises:
        RunFailed: the disk is full; an existing file is left as it was.
    """
    atomic_write_bytes(out, render(data).encode("utf-8", "replace"))


def render(data: ReportData) -> str:
    """The page as text.

    Args:
        data: what to show.

    Returns:
        the HTML document.
    """
    style, script = _read("page.css"), _read("page.js")
    hues = assign_hues(data.explanation, data.cards)
    rows = aims(data.summary)
    return (
        _environment()
        .from_string(_read("page.html.j2"))
        .render(
            meta=data.meta,
            summary=data.summary,
            explanation=data.explanation,
            certificate=part(data.explanation, "certificate"),
            sources_note=part(data.explanation, "sources").get("note"),
            cards=data.cards,
            pairs=[_pair(pair, data.cards, hues) for pair in data.steering_pairs],
            lineage=data.lineage,
            hues=hues,
            policy=_policy(style, script),
            style=Markup(style),
            script=Markup(script),
            payload=inert_json(page_payload(data.explanation, data.cards, hues)),
            window=window_svg(data.explanation, hues),
            petals=rose(data.explanation, hues),
            aims=rows,
            verdicts=_verdicts(rows),
            stages=stage_bars(data.summary),
            charts=all_charts(data),
        )
    )


def _read(name: str) -> str:
    return (files("vitrail.demo.report") / name).read_text(encoding="utf-8")


def _environment() -> Environment:
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    environment.filters.update(
        decimals=decimals, interval=interval, count=count, duration=duration, size=size, short=shorten
    )
    return environment


def _policy(style: str, script: str) -> str:
    def source(text: str) -> str:
        return "'sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() + "'"

    return (
        f"default-src 'none'; script-src {source(script)}; style-src {source(style)}; img-src data:; "
        "base-uri 'none'; form-action 'none'"
    )


def _pair(pair: SteeringPair, cards: Iterable[ConceptCard], hues: Mapping[str, int]) -> dict[str, Any]:
    card = next((card for card in cards if card.name == pair.concept and card.head == pair.head), None)
    words = [pair.concept, *(card.words if card else ())]
    texts = [
        ("turned down", "−", mark_words(pair.suppressed.strip(), words)),
        ("as it is", "", mark_words(pair.unsteered.strip(), words)),
        ("turned up", "+", mark_words(pair.amplified.strip(), words)),
    ]
    return {
        "concept": pair.concept,
        "strength": pair.strength,
        "prompt": pair.prompt,
        "key": card.key if card else "",
        "head": pair.head,
        "hue": hues.get(card.key, 0) if card else 0,
        "texts": [(name, sign, pieces, sum(piece.is_marked for piece in pieces)) for name, sign, pieces in texts],
    }


def _verdicts(rows: Iterable[Aim]) -> str:
    verdicts = [row.verdict for row in rows]
    counts = {name: verdicts.count(name) for name in ("reached", "missed", "not measured")}
    named = [f"{number} {name}" for name, number in counts.items() if number]
    return f"Of {len(verdicts)} aims: " + ", ".join(named) + "."
