"""The cards of a library: name, description, words, counts of each selected concept (§4.2.2)."""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float32
from numpy.typing import NDArray
from scipy.sparse import csc_array

from vitrail.atlas.annotator.detector import Detector
from vitrail.atlas.concepts.cards import TagUse, WordTable, describe, name_concepts
from vitrail.atlas.concepts.own import OwnConcept
from vitrail.atlas.concepts.space import TagSpace
from vitrail.atlas.library import Card, ConceptLibrary, Kind
from vitrail.atlas.sample import Chunks
from vitrail.atlas.tags.phrases import TagTable
from vitrail.atlas.tags.tagging import Tagging


@dataclass(frozen=True)
class Sayings:
    """What is said of each found concept, before it has a card.

    Attributes:
        names: unique.
        descriptions: one line each.
        kinds: which head each belongs to.
        is_automatic: whether a program gave the name.
    """

    names: list[str]
    descriptions: list[str]
    kinds: list[Kind]
    is_automatic: list[bool]

    def rows(self) -> Iterator[tuple[str, str, Kind, bool]]:
        """What is said of one concept after the other: name, description, kind, whether a program gave the name."""
        return zip(self.names, self.descriptions, self.kinds, self.is_automatic, strict=True)


def say_from_tags(
    detector: Detector,
    labelled: Sequence[NDArray[np.int64]],
    space: TagSpace,
    tagging: Tagging,
    chunks: Chunks,
    given_names: Sequence[str] | None = None,
    taken: Sequence[str] = (),
) -> Sayings:
    """Names and descriptions of found concepts, made of their tags.

    Args:
        detector: of the concepts.
        labelled: the chunks that carry each.
        space: the tags.
        tagging: of the chunks.
        chunks: the sample.
        given_names: names that they have already; None finds them.
        taken: names that are not to be given, since other concepts have them.

    Returns:
        what is said of them.
    """
    presence = tagging.occurrences.tocsc()
    uses = [
        _uses(detector.member_ids(c), detector.centroids[c], rows, space, tagging.table, presence)
        for c, rows in enumerate(labelled)
    ]
    names = list(given_names) if given_names is not None else name_concepts(uses, taken)
    descriptions = [
        describe(name, members, _main_domains(rows, chunks))
        for name, members, rows in zip(names, uses, labelled, strict=True)
    ]
    return Sayings(names, descriptions, ["content"] * len(names), [given_names is None] * len(names))


def make_library(
    said: Sayings,
    own: Sequence[OwnConcept],
    labelled: Sequence[NDArray[np.int64]],
    thresholds: Float32[np.ndarray, " C"],
    chunks: Chunks,
) -> ConceptLibrary:
    """A card for each concept.

    Args:
        said: of the found concepts.
        own: concepts that people gave; they come after the found ones.
        labelled: the chunks that the annotator labels with each of the C concepts.
        thresholds: [C] lowest scores of a label.
        chunks: the sample.

    Returns:
        the library, without places in the taxonomy.
    """
    words = WordTable(chunks.texts, min_chunks=4)
    names = [*said.names, *(concept.name for concept in own)]
    descriptions = [*said.descriptions, *(concept.description for concept in own)]
    kinds = [*said.kinds, *(concept.kind for concept in own)]
    is_automatic = [*said.is_automatic, *(False for _ in own)]
    cards = []
    for concept_id, rows in enumerate(labelled):
        marking, lift = words.characteristic(rows)
        cards.append(
            Card(
                concept_id=concept_id,
                head="known",
                name=names[concept_id],
                description=descriptions[concept_id],
                kind=kinds[concept_id],
                words=marking,
                lift=lift,
                path=(),
                num_chunks=len(rows),
                threshold=float(thresholds[concept_id]),
                is_automatic=is_automatic[concept_id],
            )
        )
    return ConceptLibrary(cards)


def _uses(
    members: NDArray[np.int64],
    centroid: Float32[np.ndarray, " E"],
    labelled: NDArray[np.int64],
    space: TagSpace,
    table: TagTable,
    presence: csc_array,
) -> list[TagUse]:
    is_labelled = np.zeros(presence.shape[0], bool)
    is_labelled[labelled] = True
    uses = []
    for tag in members.tolist():
        carriers = presence.indices[presence.indptr[tag] : presence.indptr[tag + 1]]
        both = int(is_labelled[carriers].sum())
        uses.append(
            TagUse(
                tag=table.tags[tag],
                display=table.display[tag],
                cosine=float(space.vectors[tag] @ centroid),
                coverage=both / max(len(labelled), 1),
                purity=both / max(len(carriers), 1),
                specificity=float(space.specificity[tag]),
                noun_share=float(space.noun_share[tag]),
            )
        )
    return uses


def _main_domains(labelled: NDArray[np.int64], chunks: Chunks) -> list[str]:
    """The largest domains of some chunks that hold at least a fifth of them, two at most; none if there is one only."""
    if chunks.domains.min() == chunks.domains.max():
        return []
    count = Counter(chunks.domains[labelled].tolist())
    best = sorted(count, key=lambda domain: (-count[domain], domain))[:2]
    return [chunks.domain_names[d] for d in best if count[d] >= 0.2 * len(labelled) and chunks.domain_names[d]]
