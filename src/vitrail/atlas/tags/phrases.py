"""Tags: the key phrases of a chunk (§4.2.1), found without a language model.

A phrase is one to three words in a row, none of them a stop word (an "of" may stand between two words).
Words that look like code (with digits, underscores, dots, or a call) are no words. Phrases are compared in
lower case; a chunk's tags are its longest known phrases from left to right, so that "labor force" is
not also "force". A tag is a good one if it often stands among the top phrases of a chunk by
tf-idf × length bonus.
"""

import math
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from vitrail.atlas.tags.stopwords import FILLER, FUNCTION_WORDS, WEAK_WORDS

MAX_WORDS = 3
TAGS_PER_CHUNK = 10
LENGTH_BONUS = (1.0, 1.35, 1.45)
SUBSUMED_SHARE = 0.7
"""A phrase that stands inside one longer phrase this often is a fragment of it."""

NAME_SHARE = 0.5
"""A word that touches another capitalised word this often is a piece of names."""

_WORD = re.compile(r"(?<![\w.'’\\/@$%&<=-])[^\W\d_]{2,}(?:-[^\W\d_]{2,})*(?![\w(=\\/@]|\.\w|-\w|\*)")
_MID_SENTENCE = re.compile(r"[\w,;)] ?$")
_CAPITAL_AFTER = re.compile(r" [^\W\d_a-zß-öø-ÿ]\w")
_CAPITAL_BEFORE = re.compile(r"\b[^\W\d_a-zß-öø-ÿ][\w'’-]+ $")
_STOP = FUNCTION_WORDS | (FILLER - WEAK_WORDS)


class Occurrence(NamedTuple):
    """A tag in a text: its number and its characters `[start, stop)`."""

    tag: int
    start: int
    stop: int


class _Word(NamedTuple):
    text: str
    start: int
    stop: int
    is_joined: bool


def words(text: str) -> list[_Word]:
    """The words of a text in lower case: where they stand, and whether only blanks part them from the last.

    Args:
        text: any text.

    Returns:
        the words in order; stop words included.
    """
    found: list[_Word] = []
    end = -1
    for match in _WORD.finditer(text):
        start, stop = match.span()
        is_joined = end >= 0 and text[end:start].isspace() and "\n\n" not in text[end:start]
        found.append(_Word(match.group().lower(), start, stop, is_joined))
        end = stop
    return found


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
    found = words(text)
    for i, word in enumerate(found):
        if word.text in _STOP:
            continue
        for length, stop in _runs(found, i):
            phrase = " ".join(w.text for w in found[i : i + length])
            if length > 1 or _stands_alone(phrase):
                yield phrase, word.start, stop


def _runs(found: Sequence[_Word], i: int) -> Iterator[tuple[int, int]]:
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
    """

    tags: tuple[str, ...]
    display: tuple[str, ...]
    is_name: tuple[bool, ...]


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

    def _longest(self, found: Sequence[_Word], i: int) -> tuple[int, Occurrence | None]:
        best: tuple[int, Occurrence | None] = (1, None)
        if found[i].text in _STOP:
            return best
        for length, stop in _runs(found, i):
            number = self._number.get(" ".join(w.text for w in found[i : i + length]))
            if number is not None:
                best = (length, Occurrence(number, found[i].start, stop))
        return best


def select_tags(texts: Sequence[str], min_chunks: int, max_tags: int) -> TagTable:
    """The tags of a corpus: phrases that are key phrases of at least `min_chunks` chunks.

    Args:
        texts: the chunks, in any order.
        min_chunks: chunks a phrase must stand in.
        max_tags: tags kept at most, those first that are a key phrase most often.

    Returns:
        the tags in alphabetical order.
    """
    counts = [Counter(phrase for phrase, _, _ in phrases(text)) for text in texts]
    spread = Counter(phrase for count in counts for phrase in count)
    spread = Counter({phrase: n for phrase, n in spread.items() if n >= min_chunks})
    for fragment in _fragments(spread):
        del spread[fragment]
    key = _key_phrase_counts(counts, spread)
    kept = sorted(key, key=lambda phrase: (-key[phrase], phrase))[:max_tags]
    tags = tuple(sorted(phrase for phrase in kept if key[phrase] >= min(3, min_chunks)))
    return TagTable(tags, *_writing(texts, tags))


def _fragments(spread: Mapping[str, int]) -> set[str]:
    """Phrases that nearly always stand inside one and the same longer phrase."""
    out = set()
    for phrase, count in spread.items():
        parts = phrase.split()
        for length in range(1, len(parts)):
            for i in range(len(parts) - length + 1):
                part = " ".join(parts[i : i + length])
                if count >= SUBSUMED_SHARE * spread.get(part, math.inf):
                    out.add(part)
    return out


def _key_phrase_counts(counts: Sequence[Counter[str]], spread: Mapping[str, int]) -> Counter[str]:
    """For how many chunks a phrase is among the top tags by tf-idf × length bonus."""
    weight = {phrase: math.log(len(counts) / n) * LENGTH_BONUS[len(phrase.split()) - 1] for phrase, n in spread.items()}
    key: Counter[str] = Counter()
    for count in counts:
        scored = sorted(
            (-(1 + math.log(n)) * weight[phrase], phrase) for phrase, n in count.items() if phrase in weight
        )
        key.update(phrase for _, phrase in scored[:TAGS_PER_CHUNK])
    return key


def _writing(texts: Sequence[str], tags: Sequence[str]) -> tuple[tuple[str, ...], tuple[bool, ...]]:
    """How each tag is usually written in the midst of a sentence, and whether it is a piece of a name."""
    tagger = Tagger(tags)
    forms: list[Counter[str]] = [Counter() for _ in tags]
    num_seen, num_inside = [0] * len(tags), [0] * len(tags)
    for text in texts:
        for tag, start, stop in tagger.tag(text):
            written = " ".join(text[start:stop].split())
            num_seen[tag] += 1
            num_inside[tag] += written[0].isupper() and _is_beside_capital(text, start, stop)
            if _MID_SENTENCE.search(text, max(start - 3, 0), start) or written.isupper():
                forms[tag][written] += 1
    display = tuple(
        min(form, key=lambda written: (-form[written], written)) if form else tag
        for tag, form in zip(tags, forms, strict=True)
    )
    shares = (inside / max(seen, 1) for seen, inside in zip(num_seen, num_inside, strict=True))
    return display, tuple(share >= NAME_SHARE and " " not in tag for share, tag in zip(shares, tags, strict=True))


def _is_beside_capital(text: str, start: int, stop: int) -> bool:
    """Whether a capitalised word touches `text[start:stop]` on either side."""
    return bool(_CAPITAL_AFTER.match(text, stop) or _CAPITAL_BEFORE.search(text, max(start - 40, 0), start))
