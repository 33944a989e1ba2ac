"""Chunks: a document cut at natural boundaries into pieces that fit a training sequence.

Sentences are joined to chunks so that the chunks are well filled and end, if they can, with a paragraph.
A sentence that is too long alone is cut into clauses, words, and at last characters. Nothing is lost: the
spans of a document tile it, white space included.

Lengths are *estimated* tokens, so that a corpus is chunked before its tokenizer exists: every character
has a fixed cost. The costs were fitted to a byte-level BPE of 2,048 entries on the embedded corpus; an
estimate is for limits, not for counts.
"""

import re
from collections.abc import Callable, Iterator
from itertools import pairwise

import numpy as np
from jaxtyping import Float64

from vitrail.errors import ConfigError

DEFAULT_MAX_TOKENS = 100
"""Chunks of 80 tokens on average, rarely over 115: two or three fill a sequence of 256 with 1 % padding.

With 120 the padding is 10 %, since two chunks leave a gap that a third does not fit.
"""

DEFAULT_MAX_CHARS = 480

WINDOW_CHARS = 2**20
"""A longer document is cut into such windows first, each at the best boundary near its end: memory stays flat."""

_NEAR_END = 2**14

_BOUNDARIES = [re.compile(pattern) for pattern in (r"\n\s*", r"(?<=[.!?])[\"')\]]*\s+", r"(?<=[,;:])\s+", r"\s+")]
_PARAGRAPH, _SENTENCE = 0, 1
_CUT_PENALTY = (0.0, 0.1, 0.6, 1.0, 2.0)
"""How bad it is to end a chunk after a paragraph, sentence, clause, word, or inside a word."""

_SPACE, _NEWLINE, _LOWER, _UPPER, _DIGIT, _SIGN = 0.15, 0.5, 0.275, 1.0, 0.85, 1.3


def chunk_text(
    text: str, max_tokens: int = DEFAULT_MAX_TOKENS, max_chars: int = DEFAULT_MAX_CHARS
) -> list[tuple[int, int]]:
    """Spans of a document's chunks, at natural boundaries (§4.1).

    Args:
        text: the document.
        max_tokens: most estimated tokens of a chunk (`estimate_tokens`), at least 4.
        max_chars: most characters of a chunk, at least 1.

    Returns:
        spans [start, stop) in characters that tile the text in order; none for an empty text. White space
        between two chunks belongs to the first.

    Raises:
        ConfigError: limits too small for a single character.

    Cost: O(characters) time, about 9 MB per core-second in prose, 1 MB where a line has no punctuation.
    """
    return list(iter_chunks(text, max_tokens, max_chars))


def iter_chunks(text: str, max_tokens: int, max_chars: int) -> Iterator[tuple[int, int]]:
    """The spans of `chunk_text`, one after the other: who wants the first few does not wait for the rest.

    Args:
        text: the document.
        max_tokens: most estimated tokens of a chunk, at least 4.
        max_chars: most characters of a chunk, at least 1.

    Yields:
        spans [start, stop).

    Raises:
        ConfigError: limits too small for a single character.
    """
    if max_tokens < 4 or max_chars < 1:
        raise ConfigError(f"chunk limits of {max_tokens} tokens and {max_chars} characters: at least 4 and 1")
    for begin, end in _windows(text):
        for start, stop in _chunk_window(text[begin:end], max_tokens, max_chars):
            yield begin + start, begin + stop


def _chunk_window(text: str, max_tokens: int, max_chars: int) -> list[tuple[int, int]]:
    used = np.concatenate([[0.0], np.cumsum(_costs(text))]).tolist()

    def fits(start: int, stop: int) -> bool:
        return used[stop] - used[start] <= max_tokens and stop - start <= max_chars

    pieces = list(_pieces(text, (0, len(text)), _PARAGRAPH, _PARAGRAPH, fits))
    ends = [0, *(end for end, _ in pieces)]
    filled = [used[end] for end in ends]
    least, came = [0.0], [0]  # least badness of chunks that tile the text up to ends[i]; where the last one starts
    first = 0
    for stop in range(1, len(ends)):
        while first < stop - 1 and not fits(ends[first], ends[stop]):
            first += 1
        start, badness = _best_start(least, filled, first, stop, max_tokens)
        least.append(badness + _CUT_PENALTY[pieces[stop - 1][1]])
        came.append(start)
    return _spans(ends, came)


def estimate_tokens(text: str) -> float:
    """Estimated length of a text in tokens of a byte-level BPE of about 2,048 entries.

    Args:
        text: any text.

    Returns:
        tokens; within 10 % for most English chunks, at least the bytes of characters outside ASCII.
    """
    return float(_costs(text).sum())


def _pieces(
    text: str, span: tuple[int, int], level: int, end_level: int, fits: Callable[[int, int], bool]
) -> Iterator[tuple[int, int]]:
    """(end, level of the boundary there) of sentences, or of smaller pieces where a sentence does not fit."""
    start, stop = span
    if (level > _SENTENCE and fits(start, stop)) or stop - start <= 1:
        if stop > start:
            yield stop, end_level
        return
    cuts = [(start + stop) // 2]
    if level < len(_BOUNDARIES):
        cuts = [match.end() for match in _BOUNDARIES[level].finditer(text, start, stop)]
    inner = [start, *(cut for cut in cuts if cut < stop), stop]
    for begin, end in pairwise(inner):
        ends_at = level if end < stop else end_level
        yield from _pieces(text, (begin, end), min(level + 1, len(_BOUNDARIES)), ends_at, fits)


def _best_start(least: list[float], filled: list[float], first: int, stop: int, max_tokens: int) -> tuple[int, float]:
    """Where the chunk that ends at `stop` should start, and the badness up to there.

    An unfilled chunk is bad by the square of what is missing: summed over a document, that favours few chunks of like
    size. From the fullest chunk on they get worse; none that is worse by itself than the best is can be chosen.
    """
    lowest, full = min(least[first:stop]), filled[stop]
    best, found = first, float("inf")
    for start in range(first, stop):
        slack = (1.0 - (full - filled[start]) / max_tokens) ** 2
        if lowest + slack >= found:
            break
        if least[start] + slack < found:
            best, found = start, least[start] + slack
    return best, found


def _windows(text: str) -> Iterator[tuple[int, int]]:
    """Spans that tile a text, each of at most `WINDOW_CHARS`, ending at a paragraph, sentence, clause or word."""
    start = 0
    while len(text) - start > WINDOW_CHARS:
        limit = start + WINDOW_CHARS
        stop = next((cut for pattern in _BOUNDARIES if (cut := _last_cut(pattern, text, limit))), limit)
        yield start, stop
        start = stop
    if start < len(text):
        yield start, len(text)


def _last_cut(pattern: re.Pattern[str], text: str, limit: int) -> int:
    """The last boundary shortly before a limit; 0 where there is none. One at the limit may go on behind it."""
    cuts = [match.end() for match in pattern.finditer(text, limit - _NEAR_END, limit)]
    return max((cut for cut in cuts if cut < limit), default=0)


def _spans(ends: list[int], came: list[int]) -> list[tuple[int, int]]:
    spans = []
    stop = len(ends) - 1
    while stop > 0:
        spans.append((ends[came[stop]], ends[stop]))
        stop = came[stop]
    return spans[::-1]


def _costs(text: str) -> Float64[np.ndarray, " chars"]:
    codes = np.frombuffer(text.encode("utf-32-le", "surrogatepass"), np.uint32)
    num_bytes = 2.0 + (codes >= 0x800) + (codes >= 0x10000)
    return np.where(codes < 128, _ASCII_COST[np.minimum(codes, 127)], num_bytes)


def _ascii_cost() -> Float64[np.ndarray, "128"]:
    cost = np.full(128, _SIGN)
    cost[[ord(char) for char in "abcdefghijklmnopqrstuvwxyz"]] = _LOWER
    cost[[ord(char) for char in "ABCDEFGHIJKLMNOPQRSTUVWXYZ"]] = _UPPER
    cost[[ord(char) for char in "0123456789"]] = _DIGIT
    cost[ord(" ")] = _SPACE
    cost[ord("\n")] = _NEWLINE
    return cost


_ASCII_COST = _ascii_cost()
