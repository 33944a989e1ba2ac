"""Which phrases of a corpus become its tags (§4.2.1).

A phrase is a good tag if it often stands among the top phrases of a chunk by tf-idf × length bonus, and is not
merely a fragment of one longer phrase. In a corpus that is not English, short words of every third chunk are
taken for its function words ("und", "der", "les"), so that another language needs no list of its own.
"""

import math
from collections import Counter
from collections.abc import Mapping, Sequence

from vitrail.atlas.tags.phrases import Tagger, TagTable, phrases_of, words
from vitrail.atlas.tags.writing import tag_table

TAGS_PER_CHUNK = 10
LENGTH_BONUS = (1.0, 1.35, 1.45)
SUBSUMED_SHARE = 0.7
"""A phrase that stands inside one longer phrase this often is a fragment of it."""

EVERYDAY_SHARE, EVERYDAY_LETTERS = 0.3, 5
"""A word of at most so many letters that stands in this share of the chunks is a function word."""

ENGLISH_SHARE, LEAST_CHUNKS = 0.5, 100
"""A corpus is English if "the" stands in this share of its chunks; with fewer chunks nobody can tell."""


def select_tags(texts: Sequence[str], min_chunks: int, max_tags: int) -> TagTable:
    """The tags of a corpus: phrases of at least `min_chunks` chunks that are key phrases of three of them.

    Args:
        texts: the chunks, in any order.
        min_chunks: chunks a phrase must stand in; with fewer than three, as many must have it as a key phrase.
        max_tags: tags kept at most, those first that are a key phrase most often.

    Returns:
        the tags in alphabetical order.
    """
    tags = choose_tags(texts, min_chunks, max_tags)
    tagger = Tagger(tags)
    return tag_table(texts, tags, [tagger.tag(text) for text in texts])


def choose_tags(texts: Sequence[str], min_chunks: int, max_tags: int) -> tuple[str, ...]:
    """The tags themselves, without how they are written.

    Args:
        texts: the chunks, in any order.
        min_chunks: chunks a phrase must stand in.
        max_tags: tags kept at most.

    Returns:
        the tags in alphabetical order.
    """
    counts: list[Counter[str]] = []
    chunks_with: Counter[str] = Counter()
    for text in texts:
        found = words(text)
        counts.append(Counter(phrase for phrase, _, _ in phrases_of(found)))
        chunks_with.update({word.text for word in found if len(word.text) <= EVERYDAY_LETTERS})
    everyday = _everyday(chunks_with, len(texts))
    spread = Counter(phrase for count in counts for phrase in count)
    spread = Counter(
        {phrase: n for phrase, n in spread.items() if n >= min_chunks and everyday.isdisjoint(_content(phrase))}
    )
    for fragment in _fragments(spread):
        del spread[fragment]
    key = _key_phrase_counts(counts, spread)
    kept = sorted(key, key=lambda phrase: (-key[phrase], phrase))[:max_tags]
    return tuple(sorted(phrase for phrase in kept if key[phrase] >= min(3, min_chunks)))


def _everyday(chunks_with: Mapping[str, int], num_chunks: int) -> set[str]:
    """Function words of a corpus in another language than English, whose own are known ("the" is everywhere)."""
    if num_chunks < LEAST_CHUNKS or chunks_with.get("the", 0) >= ENGLISH_SHARE * num_chunks:
        return set()
    return {word for word, n in chunks_with.items() if n >= EVERYDAY_SHARE * num_chunks}


def _content(phrase: str) -> list[str]:
    return [word for word in phrase.split() if word != "of"]  # the one function word that a phrase may hold


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
