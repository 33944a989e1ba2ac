"""Marks: phrases that a person gives for a concept, found where they stand in a text.

Unlike tags they may be of any words and any length ("I'm sorry, but", "isn't it"). Words are compared without
case, and what stands between two words (blanks, commas) does not matter; a phrase without letters or digits
("?!") is found as it is written. A phrase may mark several concepts.
"""

import re
from collections import defaultdict
from collections.abc import Sequence
from typing import NamedTuple

_WORD = re.compile(r"\w+(?:['’]\w+)*")


class Phrase(NamedTuple):
    """A phrase that marks a concept, and what one occurrence is worth."""

    text: str
    concept_id: int
    weight: float


class Mark(NamedTuple):
    """A marked place: the number of its phrase, and its characters `[start, stop)`."""

    phrase: int
    start: int
    stop: int


class Marker:
    """Finds the phrases of concepts in a text."""

    def __init__(self, phrases: Sequence[Phrase]):
        """Prepare the lookup.

        Args:
            phrases: their positions are the phrase numbers.
        """
        self.phrases = tuple(phrases)
        self._by_first: dict[str, list[tuple[tuple[str, ...], int]]] = defaultdict(list)
        self._literal: list[tuple[str, int]] = []
        for number, phrase in enumerate(self.phrases):
            words = tuple(_plain(match.group()) for match in _WORD.finditer(phrase.text))
            if words:
                self._by_first[words[0]].append((words, number))
            elif phrase.text.strip():
                self._literal.append((phrase.text.strip(), number))

    def find(self, text: str) -> list[Mark]:
        """The marked places of a text.

        Args:
            text: any text.

        Returns:
            marks by start, stop and phrase.
        """
        found = self._words(text) if self._by_first else []
        for phrase, number in self._literal:
            found += [Mark(number, m.start(), m.end()) for m in re.finditer(re.escape(phrase), text)]
        return sorted(found, key=lambda mark: (mark.start, mark.stop, mark.phrase))

    def _words(self, text: str) -> list[Mark]:
        matches = list(_WORD.finditer(text))
        words = [_plain(match.group()) for match in matches]
        found = []
        for i, word in enumerate(words):
            for phrase, number in self._by_first.get(word, ()):
                last = i + len(phrase)
                if tuple(words[i:last]) == phrase:
                    found.append(Mark(number, matches[i].start(), matches[last - 1].end()))
        return found


def _plain(word: str) -> str:
    return word.casefold().replace("’", "'")
