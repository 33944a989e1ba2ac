"""Tags: the key phrases of a chunk (§4.2.1), found without a language model.

A phrase is one to three words in a row, none of them a stop word (an "of" may stand between two words).
Words that look like code (with digits, underscores, dots, or a call) are no words. Phrases are compared in
lower case and in one form (`normalise`); a chunk's tags are its longest known phrases from left to right, so
that "labor force" is not also "force". Which phrases are good tags is decided in `choosing`.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from vitrail.atlas.tags.normalise import fold
from vitrail.atlas.tags.stopwords import FILLER, FUNCTION_WORDS, WEAK_WORDS

MAX_WORDS = 3

_WORD = re.compile(r"(?<![\w.'’\\/@$%&<=-])[^\W\d_]{2,}(?:-[^\W\d_]{2,})*(?![\w(=\\/@]|\.\w|-\w|\*)")
_STOP = FUNCTION_WORDS | (FILLER - WEAK_WORDS)


class Occurrence(NamedTuple):
    """A tag in a text: its number and its characters `[start, stop)`."""

    tag: int
    start: int
    stop: int


class Word(NamedTuple):
    """A word in its normal form, its characters `[start, stop)`, and whether only blanks part it from the last."""

    text: str
    start: int
    stop: int
    is_joined: bool


def words(text: str) -> list[Word]:
    """The words of a text in lower case: where they stand, and whether only blanks part them from the last.

    Args:
        text: any text.

    Returns:
        the words in order; stop words included.
    """
    found: list[Word] = []
    end = -1
    for match in _WORD.finditer(text):
        start, stop = match.span()
        is_joined = end >= 0 and text[end:start].isspace() and "\n\n" not in text[end:start]
        found.append(Word(_folded(match.group()), start, stop, is_joined))
        end = stop
    return found


def _folded(word: str) -> str:
    """The word in its normal form; one sign that stands for several words (U+FDFA) stays as it is."""
    folded = fold(word)
    return word.casefold() if " " in folded else folded


def same_word(a: str, b: str) -> bool:
    """Whether two words look like forms of one: "matrix" and "matrices", "colony" and "colonial".

    Args:
        a: in lower case.
        b: in lower case.

    Returns:
        true if all but the last three letters of the shorter one agree, and at least four.
    """
    needed = max(4, min(len(a), len(b)) - 3)
    return a == b or a[:needed] == b[:needed]


def phrases(text: str) -> Iterator[tuple[str, int, int]]:
    """Every candidate phrase of a text: (phrase, start, stop).

    Args:
        text: any text.

    Yields:
        phrases of one to three words, by start, then length.
    """
    yield from phrases_of(words(text))


def phrases_of(found: Sequence[Word]) -> Iterator[tuple[str, int, int]]:
    """Every candidate phrase of a text whose words are known already.

    Args:
        found: the words of a text, in order.

    Yields:
        phrases of one to three words, by start, then length.
    """
    for i, word in enumerate(found):
        if word.text in _STOP:
            continue
        for length, stop in _runs(found, i):
            phrase = " ".join(w.text for w in found[i : i + length])
            if length > 1 or _stands_alone(phrase):
                yield phrase, word.start, stop


def _runs(found: Sequence[Word], i: int) -> Iterator[tuple[int, int]]:
    """Lengths (and ends) of the phrases that begin at word `i`."""
    yield 1, found[i].stop
    for length in range(2, MAX_WORDS + 1):
        if i + length > len(found) or not found[i + length - 1].is_joined:
            return
        last = found[i + length - 1]
        if last.text in _STOP:
            if last.text != "of" or length != 2:
                return
            continue
        yield length, last.stop


def _stands_alone(word: str) -> bool:
    return len(word) > 2 and word not in WEAK_WORDS


@dataclass(frozen=True)
class TagTable:
    """The known tags.

    Attributes:
        tags: in lower case, sorted.
        display: how each is usually written: "Supreme Court", "GDP", "shortest path".
        is_name: whether a tag is mostly a piece of a longer name ("José" of "José Santos").
        noun_share: of a tag's telling occurrences, how many use it as the name of a thing ("the bridge", not "he
            fell" nor "very happy"); empty if nobody looked.
    """

    tags: tuple[str, ...]
    display: tuple[str, ...]
    is_name: tuple[bool, ...]
    noun_share: tuple[float, ...] = ()


class Tagger:
    """Finds known tags in a text: longest match, left to right."""

    def __init__(self, tags: Sequence[str]):
        """Prepare the lookup.

        Args:
            tags: the known tags in lower case; their positions are the tag numbers.
        """
        self._number: Mapping[str, int] = {tag: i for i, tag in enumerate(tags)}

    def tag(self, text: str) -> list[Occurrence]:
        """The tags of a text.

        Args:
            text: any text.

        Returns:
            occurrences by start; none overlaps another.
        """
        found = words(text)
        out: list[Occurrence] = []
        i = 0
        while i < len(found):
            length, occurrence = self._longest(found, i)
            if occurrence:
                out.append(occurrence)
            i += length
        return out

    def _longest(self, found: Sequence[Word], i: int) -> tuple[int, Occurrence | None]:
        best: tuple[int, Occurrence | None] = (1, None)
        if found[i].text in _STOP:
            return best
        for length, stop in _runs(found, i):
            number = self._number.get(" ".join(w.text for w in found[i : i + length]))
            if number is not None:
                best = (length, Occurrence(number, found[i].start, stop))
        return best
