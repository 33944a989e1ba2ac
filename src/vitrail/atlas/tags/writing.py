"""How tags are written and used in the texts: spelling, pieces of names, names of things.

The use is read off the neighbours of each occurrence, without a parser: a word after "the" or "of" that ends its
phrase names a thing; one after "to", "he" or "would" is a verb; one after "very", or before a further word, is a
quality. Over the occurrences of a corpus that is enough to tell "bridge" (0.9) from "fell" (0.3) and "entirely"
(0.1). The lists are English; a word of another language meets none of them and stays at 0.5.
"""

import re
from collections import Counter
from collections.abc import Sequence
from enum import Enum

from vitrail.atlas.tags.phrases import Occurrence, TagTable
from vitrail.atlas.tags.stopwords import FUNCTION_WORDS

NAME_SHARE = 0.5
"""A word that touches another capitalised word this often is a piece of names."""

PRIOR_PHRASE = 4
"""A phrase of several words is taken to name a thing (0.8) until its use says otherwise; a single word at 0.5."""

_MID_SENTENCE = re.compile(r"[\w,;)] ?$")
_CAPITAL_AFTER = re.compile(r" [^\W\d_a-zß-öø-ÿ]\w")
_CAPITAL_BEFORE = re.compile(r"\b[^\W\d_a-zß-öø-ÿ][\w'’-]+ $")
_WORD_BEFORE = re.compile(r"([\w']+)[ \n]$")
_WORD_AFTER = re.compile(r"[ \n]([\w'-]+)")
_LONGEST_BEFORE = 15

_NOUN_CUES = """
a about across against all among an and another any at between both by during each every few for from her his in
into its many my no of on or other our over per several some such that the their these this those through towards
under with within without your
"""
_VERB_CUES = """
been being can could did didn't do does don't had has have having he i it may might must never not shall she should
then they to we who will would you
"""
_QUALITY_CUES = """
are as became become becomes extremely feel felt is least less look looked looks more most quite rather seem seemed
seems so too very was were
"""

_BEFORE_NOUN, _BEFORE_VERB, _BEFORE_QUALITY = (
    frozenset(cues.split()) for cues in (_NOUN_CUES, _VERB_CUES, _QUALITY_CUES)
)


class _Use(Enum):
    NOUN, OTHER, UNCLEAR = range(3)


def tag_table(texts: Sequence[str], tags: Sequence[str], found: Sequence[Sequence[Occurrence]]) -> TagTable:
    """The table of known tags.

    Args:
        texts: the chunks.
        tags: in alphabetical order.
        found: where they stand in each chunk.

    Returns:
        the tags with how each is usually written in the midst of a sentence, and used.
    """
    forms: list[Counter[str]] = [Counter() for _ in tags]
    num_seen, num_inside = [0] * len(tags), [0] * len(tags)
    uses = [Counter({_Use.NOUN: PRIOR_PHRASE if " " in tag else 1, _Use.OTHER: 1}) for tag in tags]
    for text, occurrences in zip(texts, found, strict=True):
        for tag, start, stop in occurrences:
            written = " ".join(text[start:stop].split())
            num_seen[tag] += 1
            num_inside[tag] += written[0].isupper() and _is_beside_capital(text, start, stop)
            uses[tag][_use(text, start, stop)] += 1
            if _MID_SENTENCE.search(text, max(start - 3, 0), start) or written.isupper():
                forms[tag][written] += 1
    display = tuple(
        min(form, key=lambda written: (-form[written], written)) if form else tag
        for tag, form in zip(tags, forms, strict=True)
    )
    inside = (n / max(seen, 1) for seen, n in zip(num_seen, num_inside, strict=True))
    is_name = tuple(share >= NAME_SHARE and " " not in tag for share, tag in zip(inside, tags, strict=True))
    noun_share = tuple(use[_Use.NOUN] / (use[_Use.NOUN] + use[_Use.OTHER]) for use in uses)
    return TagTable(tuple(tags), display, is_name, noun_share)


def _is_beside_capital(text: str, start: int, stop: int) -> bool:
    """Whether a capitalised word touches `text[start:stop]` on either side."""
    return bool(_CAPITAL_AFTER.match(text, stop) or _CAPITAL_BEFORE.search(text, max(start - 40, 0), start))


def _use(text: str, start: int, stop: int) -> _Use:
    """As what `text[start:stop]` is used, as far as its neighbours tell."""
    before = _WORD_BEFORE.search(text, max(start - _LONGEST_BEFORE, 0), start)
    word = before.group(1).lower() if before else ""
    if word in _BEFORE_VERB or word in _BEFORE_QUALITY:
        return _Use.OTHER
    if word not in _BEFORE_NOUN:
        return _Use.UNCLEAR
    after = _WORD_AFTER.match(text, stop)
    # "the gold coin": half of such are nouns ("gold", "insulin"), half qualities ("beautiful"), so it tells nothing.
    return _Use.NOUN if after is None or after.group(1).lower() in FUNCTION_WORDS else _Use.UNCLEAR
