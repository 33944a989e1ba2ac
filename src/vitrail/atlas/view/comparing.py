"""Concept frequencies compared: the groups of one corpus with each other, or two corpora.

A difference is a log odds ratio of "the chunk carries the concept", half a chunk added to each count (Haldane,
Anscombe), with a 95 % interval that allows for chunks of one document being alike (`tally.Counts.logit`). Rows are
sorted by how far the interval stays away from 0: large and sure before large and unsure. With hundreds of concepts
one in twenty intervals misses 0 by chance alone, so single rows near 0 are no finding.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from jaxtyping import Int64

from vitrail.atlas.annotated import AnnotatedCorpus
from vitrail.atlas.library import Card
from vitrail.atlas.view.columns import By
from vitrail.atlas.view.gather import MOST_GROUPS, known_cards
from vitrail.atlas.view.tally import Counts, log_odds, tally
from vitrail.errors import ArtifactError


@dataclass(frozen=True)
class Difference:
    """How much more frequent a concept is in one set of chunks than in another.

    Attributes:
        group: source or domain that is compared; empty for whole corpora.
        name: the concept.
        first_id: its id in the first corpus.
        second_id: its id in the second corpus; the same for one corpus.
        first_chunks: chunks that carry it in the first set.
        first_total: chunks of the first set.
        second_chunks: chunks that carry it in the second set.
        second_total: chunks of the second set.
        log_odds: log odds ratio, first against second [nats].
        low: lower end of its 95 % interval.
        high: upper end.
    """

    group: str
    name: str
    first_id: int
    second_id: int
    first_chunks: int
    first_total: int
    second_chunks: int
    second_total: int
    log_odds: float
    low: float
    high: float

    @property
    def first_share(self) -> float:
        """Share of the first set's chunks that carry it."""
        return self.first_chunks / max(self.first_total, 1)

    @property
    def second_share(self) -> float:
        """Share of the second set's chunks that carry it."""
        return self.second_chunks / max(self.second_total, 1)

    @property
    def distance(self) -> float:
        """How far the interval stays away from 0; negative if it holds 0."""
        return max(self.low, -self.high)


@dataclass(frozen=True)
class Comparison:
    """What was compared, and the differences.

    Attributes:
        differences: the surest and largest first; within each group where there are groups.
        only_first: names of concepts that only the first library has.
        only_second: names of concepts that only the second library has.
        left_out: groups that only one corpus has.
        num_smaller: groups beyond the `MOST_GROUPS` with most chunks, which are not compared.
    """

    differences: tuple[Difference, ...]
    only_first: tuple[str, ...] = ()
    only_second: tuple[str, ...] = ()
    left_out: tuple[str, ...] = ()
    num_smaller: int = 0


def compare_groups(folder: Path, by: By) -> Comparison:
    """Each source or domain of a corpus against all its other chunks.

    Args:
        folder: the annotated corpus.
        by: `source` or `domain`.

    Returns:
        the comparison, groups with most chunks first, `MOST_GROUPS` at most.

    Raises:
        ArtifactError: not an annotated corpus, damaged, or of a single group.
    """
    corpus = AnnotatedCorpus.open(folder)
    cards = known_cards(corpus)
    counted = tally(corpus, len(cards), by)
    if len(counted.groups) < 2:
        raise ArtifactError(
            f"{folder}: all chunks are of one {by} ('{''.join(counted.groups)}'), so there is nothing to compare; "
            "name a second annotated corpus"
        )
    whole = counted.whole()
    found: list[Difference] = []
    for number, group in enumerate(counted.groups[:MOST_GROUPS]):
        inside = counted.of(number)
        found += _differences(group, cards, cards, inside, whole - inside)
    return Comparison(tuple(found), num_smaller=max(len(counted.groups) - MOST_GROUPS, 0))


def compare_corpora(first: Path, second: Path, by: By = "corpus") -> Comparison:
    """Two annotated corpora, whole or group by group; concepts are matched by name.

    Args:
        first: an annotated corpus.
        second: another one.
        by: `source` or `domain` compares within each group that both have (those with most chunks in the first
            corpus, `MOST_GROUPS` at most), so that another mixture of sources is not taken for another frequency of
            concepts.

    Returns:
        the comparison.

    Raises:
        ArtifactError: not annotated corpora, damaged, or without a concept or group in common.
    """
    corpora = AnnotatedCorpus.open(first), AnnotatedCorpus.open(second)
    libraries = [known_cards(corpus) for corpus in corpora]
    pairs = _same_names(*libraries)
    if not pairs:
        raise ArtifactError(
            f"{first} and {second} have no concept in common (compared by name); annotate both with the same atlas"
        )
    tallies = [tally(corpus, len(cards), by) for corpus, cards in zip(corpora, libraries, strict=True)]
    places = [{group: number for number, group in enumerate(counted.groups)} for counted in tallies]
    shared = [group for group in tallies[0].groups if group in places[1]]
    if not shared:
        raise ArtifactError(f"{first} and {second} have no {by} in common; compare them without --by")
    sides = [list(side) for side in zip(*pairs, strict=True)]
    cards = [[library[c] for c in side] for library, side in zip(libraries, sides, strict=True)]
    found: list[Difference] = []
    for group in shared[:MOST_GROUPS]:
        counts = [
            _picked(counted.of(place[group]), side) for counted, place, side in zip(tallies, places, sides, strict=True)
        ]
        found += _differences(group, cards[0], cards[1], counts[0], counts[1])
    return Comparison(
        tuple(found),
        _unmatched(libraries[0], sides[0]),
        _unmatched(libraries[1], sides[1]),
        tuple(sorted(places[0].keys() ^ places[1].keys())),
        max(len(shared) - MOST_GROUPS, 0),
    )


def _differences(
    group: str, first: Sequence[Card], second: Sequence[Card], ours: Counts, theirs: Counts
) -> list[Difference]:
    ratio, low, high = (np.round(value, 4).tolist() for value in log_odds(ours, theirs))
    found = [
        Difference(
            group=group,
            name=a.name,
            first_id=a.concept_id,
            second_id=b.concept_id,
            first_chunks=int(ours.carrying[i]),
            first_total=ours.chunks,
            second_chunks=int(theirs.carrying[i]),
            second_total=theirs.chunks,
            log_odds=ratio[i],
            low=low[i],
            high=high[i],
        )
        for i, (a, b) in enumerate(zip(first, second, strict=True))
    ]
    return sorted(found, key=lambda row: (-row.distance, row.first_id))


def _same_names(first: Iterable[Card], second: Iterable[Card]) -> list[tuple[int, int]]:
    theirs = {" ".join(card.name.casefold().split()): card.concept_id for card in second}
    names = ((card.concept_id, " ".join(card.name.casefold().split())) for card in first)
    return [(concept_id, theirs[name]) for concept_id, name in names if name in theirs]


def _unmatched(cards: Sequence[Card], matched: Sequence[int]) -> tuple[str, ...]:
    inside = set(matched)
    return tuple(card.name for card in cards if card.concept_id not in inside)


def _picked(counts: Counts, concept_ids: Sequence[int]) -> Counts:
    picked: Int64[np.ndarray, " C"] = np.array(concept_ids, np.int64)
    return Counts(
        counts.documents,
        counts.chunks,
        counts.square_sizes,
        counts.carrying[picked],
        counts.square_carrying[picked],
        counts.cross[picked],
    )
