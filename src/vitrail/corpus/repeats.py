"""Removal of what is said again and again: boilerplate paragraphs and sentences.

A passage that stands in three or more entries is boilerplate and goes everywhere; one that stands in two is
kept once. Passages are compared by their words alone, with every number taken as the same.
"""

import re
from collections.abc import Callable, Iterable, Sequence

from vitrail.corpus.prose import MIN_PARAGRAPH_WORDS, sentences

BOILERPLATE_ENTRIES = 3

_NOT_WORD = re.compile(r"[\W_]+")
_DIGITS = re.compile(r"\d+")


def without_repeats(entries: Sequence[Sequence[str]]) -> list[list[str]]:
    """Entries without the paragraphs and sentences that they share.

    Args:
        entries: paragraphs of each entry (a docstring, a country's theme), in a fixed order.

    Returns:
        what is left of each entry, in the same order; empty lists where nothing is.
    """
    paragraphs = _drop_shared(entries, lambda paragraph: [paragraph])
    kept = _drop_shared(paragraphs, sentences)
    return [[text for text in entry if len(text.split()) >= MIN_PARAGRAPH_WORDS] for entry in kept]


def _drop_shared(entries: Sequence[Sequence[str]], cut: Callable[[str], list[str]]) -> list[list[str]]:
    counts: dict[str, int] = {}
    pieces = [[cut(paragraph) for paragraph in entry] for entry in entries]
    keys = [[[_key(piece) for piece in row] for row in entry] for entry in pieces]
    for entry in keys:
        for key in {key for row in entry for key in row}:
            counts[key] = counts.get(key, 0) + 1
    seen: set[str] = set()
    result = []
    for entry, entry_keys in zip(pieces, keys, strict=True):
        rows = []
        for row, row_keys in zip(entry, entry_keys, strict=True):
            kept = _fresh(row, row_keys, counts, seen)
            if kept:
                rows.append(" ".join(kept))
        result.append(rows)
    return result


def _fresh(row: Iterable[str], keys: Iterable[str], counts: dict[str, int], seen: set[str]) -> list[str]:
    kept = []
    for piece, key in zip(row, keys, strict=True):
        if counts[key] < BOILERPLATE_ENTRIES and key not in seen:
            kept.append(piece)
            seen.add(key)
    return kept


def _key(text: str) -> str:
    return _NOT_WORD.sub(" ", _DIGITS.sub("0", text)).strip().lower()
