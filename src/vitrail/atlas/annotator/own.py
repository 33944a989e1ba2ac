"""Concepts that people give: from a description, phrases and examples to what a head can be fitted from (§4.2).

The corpus stands for "anything" (unlabelled). Examples are the positives; where there are fewer than eight, the
description counts as one more, and so do chunks of the corpus that hold a marking phrase, together no heavier
than the examples.
A description without examples is placed by the tags that lie nearest to it in meaning. A concept whose words are
all unknown to the corpus goes by its phrases alone.

Letters: R chunks, n tags, C own concepts, E width of a chunk's vector, T width of a tag's.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float32
from numpy.typing import NDArray

from vitrail.atlas.annotator.marks import Mark, Marker, Phrase
from vitrail.atlas.annotator.reading import Reader
from vitrail.atlas.annotator.training import Positives
from vitrail.atlas.concepts.encoder import minilm
from vitrail.atlas.concepts.geometry import chunk_vectors, unit
from vitrail.atlas.concepts.own import OwnConcept
from vitrail.atlas.concepts.space import TagSpace
from vitrail.errors import CorpusError

MARK_CLOSENESS = 0.5
"""What stands for cosine × reliability in the weight of a phrase."""

LEAST_WEIGHT = 0.001
"""Of a phrase that stands in every chunk: without any weight it would not be seen at all."""

NEAR_TAGS = 12
COUNTER_SHARE = 0.25
"""How far a concept's start moves away from its counterexamples (Rocchio's feedback; R)."""

FEW_EXAMPLES = 8
MAX_MARKED = 64
FOLD_EXAMPLES = 6
"""With as many examples, the bar for unseen labels is found on examples left out of the fit."""


def own_marker(own: Sequence[OwnConcept], texts: Sequence[str], first: int) -> Marker:
    """The phrases of own concepts, each weighted by its rarity.

    Args:
        own: the concepts.
        texts: R chunks of the corpus.
        first: number of the first own concept.

    Returns:
        the marker.
    """
    marker = unweighted_marker(own, first)
    if not marker.phrases:
        return marker
    spread = Counter(phrase for text in texts for phrase in {mark.phrase for mark in marker.find(text)})
    rarity = [np.log(max(len(texts), 1) / max(spread[i], 1)) for i in range(len(marker.phrases))]
    weights = [max(round(float(MARK_CLOSENESS * r), 4), LEAST_WEIGHT) for r in rarity]
    return Marker([phrase._replace(weight=weight) for phrase, weight in zip(marker.phrases, weights, strict=True)])


def unweighted_marker(own: Sequence[OwnConcept], first: int = 0) -> Marker:
    """The phrases of own concepts, for finding them alone.

    Args:
        own: the concepts.
        first: number of the first own concept.

    Returns:
        the marker; its phrases weigh nothing.
    """
    return Marker(
        [Phrase(text, first + i, 0.0) for i, concept in enumerate(own) for text in dict.fromkeys(concept.phrases)]
    )


@dataclass(frozen=True)
class OwnTexts:
    """What is known of C own concepts, as vectors.

    Attributes:
        centroids: [C E] where each head starts.
        tag_centroids: [C T] the same among tags.
        examples: vectors of each concept's examples.
        counterexamples: vectors of each concept's counterexamples.
        stated: [C E] vector of name and description.
        marked: chunks of the corpus that hold one of its phrases.
        carried: chunks of the corpus that are themselves examples of it.
    """

    centroids: Float32[np.ndarray, "C E"]
    tag_centroids: Float32[np.ndarray, "C T"]
    examples: list[Float32[np.ndarray, "_ E"]]
    counterexamples: list[Float32[np.ndarray, "_ E"]]
    stated: Float32[np.ndarray, "C E"]
    marked: list[NDArray[np.int64]]
    carried: list[NDArray[np.int64]]

    def positives(self, i: int, chunks: Float32[np.ndarray, "R E"], left_out: int | None = None) -> Positives:
        """What a head is fitted from.

        Args:
            i: the own concept.
            chunks: [R E] vectors of the corpus.
            left_out: 0 or 1 leaves out every second example, from the first or the second on.

        Returns:
            its positives.
        """
        examples = self.examples[i]
        if left_out is not None:
            examples = examples[1 - left_out :: 2]
        parts, weights = [examples], [np.ones(len(examples), np.float32)]
        if len(examples) < FEW_EXAMPLES:
            marked = chunks[self.marked[i][:MAX_MARKED]]
            stated = _seen(self.stated[i][None])
            parts += [stated, marked]
            weight = max(len(examples) + len(stated), 1) / max(len(marked), 1)
            weights += [np.ones(len(stated), np.float32), np.full(len(marked), weight, np.float32)]
        return Positives(np.concatenate(parts), np.concatenate(weights), self.counterexamples[i])


def read_own(
    own: Sequence[OwnConcept],
    reader: Reader,
    space: TagSpace,
    texts: Sequence[str],
    marks: Sequence[Sequence[Mark]],
    first: int,
) -> OwnTexts:
    """Own concepts as vectors.

    Args:
        own: C concepts.
        reader: of chunks, with the concepts' phrases.
        space: the tags.
        texts: R chunks of the corpus.
        marks: of these chunks.
        first: number of the first own concept.

    Returns:
        what heads are fitted from.

    Raises:
        CorpusError: a concept of which nothing is known to the corpus.
    """
    if not own:
        width = reader.encoder.width
        none = np.zeros((0, width), np.float32)
        return OwnTexts(none, np.zeros((0, space.vectors.shape[1]), np.float32), [], [], none, [], [])
    stated = _stated(own)
    near = _near_tags(stated, space)
    said = reader.read(stated)
    said_tags = unit(chunk_vectors(said.weighted, space.vectors) + near)
    # With tags alone a description says little: the tags near to it in meaning say more.
    said_chunks = said.vectors if reader.encoder.reads_text else said_tags
    examples = [reader.read(concept.examples) for concept in own]
    against = [reader.read(concept.counterexamples).vectors for concept in own]
    shown_against = np.stack([_mean(vectors, said_chunks.shape[1]) for vectors in against])
    shown = np.stack([_mean(reading.vectors, said_chunks.shape[1]) for reading in examples])
    shown_tags = np.stack([_mean(chunk_vectors(r.weighted, space.vectors), space.vectors.shape[1]) for r in examples])
    out = OwnTexts(
        unit(unit(shown) + said_chunks - COUNTER_SHARE * unit(shown_against)),
        unit(unit(shown_tags) + said_tags),
        [_seen(reading.vectors) for reading in examples],
        [_seen(vectors) for vectors in against],
        said_chunks,
        _marked(own, reader.marker, marks, first),
        _carried(own, texts),
    )
    for concept, centroid in zip(own, out.centroids, strict=True):
        if not centroid.any() and not concept.phrases:
            raise CorpusError(
                f"own concept '{concept.name}': nothing in its description and examples is known to the corpus; "
                "describe it in more words, or give examples or phrases"
            )
    return out


def _stated(own: Sequence[OwnConcept]) -> list[str]:
    return [". ".join(part for part in (concept.name, concept.description) if part) for concept in own]


def _near_tags(stated: Sequence[str], space: TagSpace) -> Float32[np.ndarray, "C T"]:
    """Mean vector of the tags that lie nearest to each description in meaning; zero if tags have none."""
    if not space.meaning_width:
        return np.zeros((len(stated), space.vectors.shape[1]), np.float32)
    meaning = unit(space.vectors[:, : space.meaning_width])
    closeness = minilm().encode(stated) @ meaning.T
    nearest = np.argsort(-np.round(closeness, 4), axis=1, kind="stable")[:, :NEAR_TAGS]
    return unit(space.vectors[nearest].mean(1))


def _mean(vectors: Float32[np.ndarray, "P E"], width: int) -> Float32[np.ndarray, " E"]:
    return np.asarray(vectors.mean(0) if len(vectors) else np.zeros(width), np.float32)


def _seen(vectors: Float32[np.ndarray, "P E"]) -> Float32[np.ndarray, "p E"]:
    """Vectors of texts in which the encoder sees something."""
    return np.asarray(vectors[np.linalg.norm(vectors, axis=1) > 0], np.float32)


def _marked(
    own: Sequence[OwnConcept], marker: Marker, marks: Sequence[Sequence[Mark]], first: int
) -> list[NDArray[np.int64]]:
    rows: list[list[int]] = [[] for _ in own]
    for row, inside in enumerate(marks):
        for i in sorted({marker.phrases[mark.phrase].concept_id - first for mark in inside}):
            rows[i].append(row)
    return [np.array(found, np.int64) for found in rows]


def _carried(own: Sequence[OwnConcept], texts: Sequence[str]) -> list[NDArray[np.int64]]:
    wanted = {text for concept in own for text in concept.examples}
    rows: dict[str, list[int]] = {}
    for row, text in enumerate(texts):
        if text in wanted:
            rows.setdefault(text, []).append(row)
    return [
        np.unique(np.array([row for text in concept.examples for row in rows.get(text, [])], np.int64))
        for concept in own
    ]
