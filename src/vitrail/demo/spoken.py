"""What the tour says at its end: twenty concepts, an answer taken apart, and the figures with their aims."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from vitrail.artifacts import read_json
from vitrail.atlas import ConceptLibrary
from vitrail.demo.report import aims

NUM_CARDS = 20
NUM_PARTS = 5


def closing_text(out: Path, summary: Mapping[str, Any]) -> str:
    """The end of a demo for a reader at a terminal.

    Args:
        out: the demo's directory.
        summary: content of `summary.json`.

    Returns:
        several lines of plain text.
    """
    return "\n".join([*_cards(out, int(summary["seed"])), "", *_answer(out), "", *_figures(summary), ""])


def _cards(out: Path, seed: int) -> list[str]:
    cards = [card for card in ConceptLibrary.load(out / "model").cards if card.head == "known"]
    chosen = np.random.default_rng(seed).permutation(len(cards))[:NUM_CARDS]
    lines = [f"{min(NUM_CARDS, len(cards))} of {len(cards)} known concepts, drawn by seed (name: characteristic words)"]
    return lines + [f"  {cards[number].name}: {', '.join(cards[number].words[:6])}" for number in sorted(chosen)]


def _answer(out: Path) -> list[str]:
    why = read_json(out / "answers" / "explanation.json")
    first = why["concepts"]["chunks"][0]
    parts = ", ".join(f"{part['name']} {part['centred']:+.1f}" for part in first["ranked"][:NUM_PARTS])
    return [
        f"prompt   {_one_line(why['prompt'])}",
        f"answer   {_one_line(why['text'])}",
        f"because  {parts}, ... (logits beyond the average word, first passage)",
    ]


def _figures(summary: Mapping[str, Any]) -> list[str]:
    rows = aims(dict(summary))
    width = max(len(row.name) for row in rows)
    lines = ["figures on held-out text (95 % interval; aim)"]
    for row in rows:
        figure = row.figure
        value = "not measured" if figure.value is None else f"{figure.value:.3g}"
        interval = "" if figure.low is None or figure.high is None else f" [{figure.low:.3g}, {figure.high:.3g}]"
        unit = f" {row.unit}" if row.unit else ""
        lines.append(f"  {row.name:<{width}}  {value}{unit}{interval}; {row.aim}: {row.verdict}")
    return lines


def _one_line(text: str) -> str:
    return " ".join(text.split())
