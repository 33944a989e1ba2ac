"""The cards of a library: name, description, words, counts of each selected concept (§4.2.2)."""

from collections import Counter

import numpy as np
from jaxtyping import Float32
from numpy.typing import NDArray
from scipy.sparse import csc_array

from vitrail.atlas.annotator.detector import Detector
from vitrail.atlas.concepts.cards import TagUse, WordTable, describe, name_concepts
from vitrail.atlas.concepts.selection import Selection
from vitrail.atlas.concepts.space import TagSpace
from vitrail.atlas.library import Card, ConceptLibrary
from vitrail.atlas.sample import Chunks
from vitrail.atlas.tags.phrases import TagTable
from vitrail.atlas.tags.tagging import Tagging


def make_library(
    detector: Detector, selection: Selection, space: TagSpace, tagging: Tagging, chunks: Chunks
) -> ConceptLibrary:
    """A card for each selected concept.

    Args:
        detector: of the selected concepts.
        selection: which they are, and the chunks they label.
        space: the tags.
        tagging: of the chunks.
        chunks: the sample.

    Returns:
        the library, without places in the taxonomy.
    """
    table, presence = tagging.table, tagging.occurrences.tocsc()
    uses = [
        _uses(detector.member_ids(c), detector.centroids[c], labelled, space, table, presence)
        for c, labelled in enumerate(selection.labelled)
    ]
    names = name_concepts(uses)
    words = WordTable(chunks.texts, min_chunks=4)
    cards = []
    for concept_id, (name, labelled) in enumerate(zip(names, selection.labelled, strict=True)):
        marking, lift = words.characteristic(labelled)
        cards.append(
            Card(
                concept_id=concept_id,
                head="known",
                name=name,
                description=describe(name, uses[concept_id], _main_domains(labelled, chunks)),
                kind="content",
                words=marking,
                lift=lift,
                path=(),
                num_chunks=len(labelled),
                threshold=float(selection.thresholds[concept_id]),
                is_automatic=True,
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
            )
        )
    return uses


def _main_domains(labelled: NDArray[np.int64], chunks: Chunks) -> list[str]:
    """The largest domains of some chunks that hold at least a fifth of them, two at most."""
    count = Counter(chunks.domains[labelled].tolist())
    best = sorted(count, key=lambda domain: (-count[domain], domain))[:2]
    return [chunks.domain_names[d] for d in best if count[d] >= 0.2 * len(labelled) and chunks.domain_names[d]]
