"""Placing concepts in the taxonomy: how often the main class is one that a reader accepts (§4.2.2).

    python experiments/taxonomy.py --out docs/results/taxonomy.csv

`tests/atlas/concepts/data/placed.csv` holds concepts found in a mixed corpus (with their words) and plain names, each
with the main classes that fit, the best first; the labels were written before the first concept was placed. Rows of
even number chose the rule, the others measure it. `accepted`: the class is one of those; `preferred`: it is the
best one; `chance`: accepted after the places are shuffled over the concepts.
"""

import argparse
import csv
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
from tables import add_row

from vitrail.atlas import Card, MiniLM
from vitrail.atlas.concepts.placing import Encode, place

LABELLED = Path(__file__).parents[1] / "tests" / "atlas" / "concepts" / "data" / "placed.csv"
NUM_DRAWS = 2_000
COLUMNS = ("text", "concepts", "half", "n", "accepted", "low", "high", "preferred", "chance")


def remembering(encoder: MiniLM) -> Encode:
    """The encoder, which encodes the same list once."""
    encode = cache(lambda texts: encoder.encode(texts))
    return lambda texts: encode(tuple(texts))


def card(number: int, row: dict[str, str]) -> Card:
    """The card of a labelled concept."""
    words = tuple(row["words"].split())
    return Card(number, "known", row["name"], row["description"], "content", words, (), (), 0, 0.0, True)


def interval(hits: Sequence[bool]) -> tuple[float, float]:
    """95 % bootstrap interval of a share."""
    draws = np.random.default_rng(0).choice(np.asarray(hits, np.float64), (NUM_DRAWS, len(hits))).mean(1)
    low, high = np.quantile(draws, (0.025, 0.975))
    return round(float(low), 3), round(float(high), 3)


def main() -> None:
    """Measure with and without the words of a card."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    out = parser.parse_args().out
    out.unlink(missing_ok=True)
    with LABELLED.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    encode = remembering(MiniLM())
    sets = {"found": [r for r in rows if r["words"]], "plain": [r for r in rows if not r["words"]]}
    for text in ("name and words", "name"):
        for which, members in sets.items():
            cards = [card(i, row) for i, row in enumerate(members)]
            shown = cards if text == "name and words" else [replace(one, words=(), description="") for one in cards]
            letters = [path[0][0] for path in place(shown, encode)]
            for half, start in (("chosen on", 0), ("measured", 1)):
                classes, got = [row["classes"].split() for row in members[start::2]], letters[start::2]
                hits = [letter in accepted for letter, accepted in zip(got, classes, strict=True)]
                low, high = interval(hits)
                shuffled = np.random.default_rng(1).permutation(got)
                add_row(
                    out,
                    COLUMNS,
                    {
                        "text": text,
                        "concepts": which,
                        "half": half,
                        "n": len(hits),
                        "accepted": round(float(np.mean(hits)), 3),
                        "low": low,
                        "high": high,
                        "preferred": round(float(np.mean([g == c[0] for g, c in zip(got, classes, strict=True)])), 3),
                        "chance": round(float(np.mean([g in c for g, c in zip(shuffled, classes, strict=True)])), 3),
                    },
                )


if __name__ == "__main__":
    main()
