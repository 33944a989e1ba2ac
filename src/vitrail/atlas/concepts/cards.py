"""Cards: what a concept is called, what it is about, by which words it is known.

The name is the member tag that is central, covers many of the concept's chunks and stands nowhere else;
longer phrases say more. A name that covers only part of its concept gets one or two more beside it ("Russia,
Germany, Europe"), so that a reader sees which sense is meant and how wide it is.
"""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float
from numpy.typing import NDArray
from scipy.sparse import csr_array

from vitrail.atlas.tags import same_word, words
from vitrail.atlas.tags.stopwords import FILLER, FUNCTION_WORDS

NUM_WORDS = 12
NUM_LISTED = 5
MIN_WORD_SHARE = 0.04
NAME_BONUS = (1.0, 1.15, 1.1)
CLEAR_COVERAGE = (0.6, 0.35, 0.3)
"""A name of one, two, three words stands alone if it covers this share of the concept's chunks."""
COMPANION_COVERAGE = 0.08
MAX_JOINED = 3


@dataclass(frozen=True)
class TagUse:
    """How a member tag stands in its concept.

    Attributes:
        tag: lower case.
        display: as usually written.
        cosine: with the concept's centroid.
        coverage: share of the concept's chunks that carry it.
        purity: share of its chunks that carry the concept.
        specificity: of the tag in the corpus.
        noun_share: how far the tag is used as the name of a thing, 0..1.
    """

    tag: str
    display: str
    cosine: float
    coverage: float
    purity: float
    specificity: float
    noun_share: float = 1.0

    @property
    def fitness(self) -> float:
        """How good a name it would be."""
        bonus = _by_length(NAME_BONUS, self.tag) * self.noun_share
        return bonus * max(self.cosine, 0) * math.sqrt(self.coverage) * math.sqrt(self.purity)


def name_concepts(uses: Sequence[Sequence[TagUse]], taken_names: Sequence[str] = ()) -> list[str]:
    """A unique name for each concept, the first concepts choosing first.

    Args:
        uses: the member tags of each concept.
        taken_names: names of other concepts.

    Returns:
        one name a concept.
    """
    names: list[str] = []
    taken = {name.casefold() for name in taken_names}
    for members in uses:
        ranked = sorted(members, key=lambda use: (-use.fitness, use.tag))
        names.append(_unique(ranked, taken))
        taken.add(names[-1].casefold())
    return names


def _unique(ranked: Sequence[TagUse], taken: set[str]) -> str:
    chosen = [ranked[0]]
    needed = _by_length(CLEAR_COVERAGE, ranked[0].tag)
    while len(chosen) < MAX_JOINED and sum(use.coverage for use in chosen) < needed:
        further = [use for use in _companions(chosen, ranked) if use.coverage >= COMPANION_COVERAGE]
        if not further:
            break
        chosen.append(further[0])
    while (name := ", ".join(use.display for use in chosen)).casefold() in taken:
        further = _companions(chosen, ranked)
        if not further:
            return f"{name} ({len(taken)})"
        chosen.append(further[0])
    return name


def _by_length(values: tuple[float, ...], tag: str) -> float:
    """The value for a tag of one, two, three words; a language model gives longer ones too."""
    return values[min(len(tag.split()), len(values)) - 1]


def _companions(chosen: Sequence[TagUse], ranked: Sequence[TagUse]) -> list[TagUse]:
    """Tags that share no word, in whatever form, with those already chosen."""
    said = [word for use in chosen for word in use.tag.split()]
    return [use for use in ranked if not any(same_word(a, b) for a in said for b in use.tag.split())]


def describe(name: str, uses: Sequence[TagUse], domains: Sequence[str]) -> str:
    """One line on what a concept's chunks speak of, and where they come from.

    Args:
        name: of the concept.
        uses: its member tags.
        domains: main domains of its chunks, the first the largest; may be empty.

    Returns:
        a sentence.
    """
    ranked = sorted(uses, key=lambda use: (-use.cosine * math.sqrt(use.coverage), use.tag))
    named = {part.casefold() for part in name.split(", ")}
    others: list[TagUse] = []
    for use in ranked:
        if len(others) == NUM_LISTED:
            break
        if use.display.casefold() not in named and use in _companions(others, [use]):
            others.append(use)
    listed = ", ".join(use.display for use in others)
    place = f"; mostly in {' and '.join(domains)}" if domains else ""
    return _opening(name) + (f": {listed}" if listed else "") + place + "."


def is_described(name: str, description: str) -> bool:
    """Whether a description is one that `describe` made for a name, and so is made anew for another one.

    Args:
        name: of the concept.
        description: of the concept.

    Returns:
        whether it begins so.
    """
    return description.startswith(tuple(_opening(name) + sign for sign in ":;."))


def _opening(name: str) -> str:
    return f"Passages on {name}"


class WordTable:
    """Which words stand in which chunks, to find those that mark a concept."""

    def __init__(self, texts: Sequence[str], min_chunks: int):
        """Index the words.

        Args:
            texts: R chunks.
            min_chunks: chunks a word must stand in.
        """
        rows = [sorted({word.text for word in words(text)} - FUNCTION_WORDS - FILLER) for text in texts]
        spread = Counter(word for row in rows for word in row)
        self.words = sorted(word for word, n in spread.items() if n >= min_chunks and len(word) > 2)
        place = {word: i for i, word in enumerate(self.words)}
        ids = [[place[word] for word in row if word in place] for row in rows]
        indptr = np.cumsum([0] + [len(row) for row in ids])
        flat = np.fromiter((i for row in ids for i in row), np.int64, indptr[-1])
        self._present = csr_array((np.ones(len(flat), np.float32), flat, indptr), shape=(len(rows), len(place)))
        self._share = np.asarray(self._present.sum(0)).ravel() / max(len(rows), 1)

    def characteristic(self, chunks: NDArray[np.int64]) -> tuple[tuple[str, ...], tuple[float, ...]]:
        """Words by lift, among those that stand in enough of the chunks: ordered by share × ln lift.

        Args:
            chunks: rows that carry the concept.

        Returns:
            words and their lifts.
        """
        share = np.asarray(self._present[chunks].sum(0)).ravel() / max(len(chunks), 1)
        lift: Float[np.ndarray, " w"] = share / np.maximum(self._share, 1e-12)
        score = np.where((share >= MIN_WORD_SHARE) & (lift > 1), share * np.log(np.maximum(lift, 1e-12)), 0)
        best = [i for i in np.argsort(-score, kind="stable")[:NUM_WORDS] if score[i] > 0]
        return tuple(self.words[i] for i in best), tuple(round(float(lift[i]), 2) for i in best)
