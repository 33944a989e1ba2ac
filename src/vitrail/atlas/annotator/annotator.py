"""The annotator: labels any chunk with concepts, scores, spans, and gives the chunk's vector (§4.2.3).

Letters: R chunks, n tags, C concepts, E width of a chunk's vector.
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from jaxtyping import Float32
from numpy.typing import NDArray
from scipy.sparse import csr_array

from vitrail.atlas.annotator import storing
from vitrail.atlas.annotator.detector import Detector
from vitrail.atlas.annotator.heads import Heads
from vitrail.atlas.annotator.marks import Marker
from vitrail.atlas.annotator.reading import Reader, Reading, mark_table
from vitrail.atlas.annotator.scoring import Scoring
from vitrail.atlas.library import Label
from vitrail.atlas.llm.endpoint import Endpoint


@dataclass(frozen=True)
class Annotation:
    """What the annotator says of some texts.

    Attributes:
        labels: per text, by falling excess over the threshold.
        vectors: [R E] unit chunk vectors (zero for a text in which the encoder sees nothing).
    """

    labels: tuple[tuple[Label, ...], ...]
    vectors: Float32[np.ndarray, "R E"]


class Annotator:
    """Labels chunks: tags, marks, encoder, heads, thresholds."""

    def __init__(
        self,
        reader: Reader,
        tag_vectors: Float32[np.ndarray, "n T"],
        detector: Detector,
        scoring: Scoring,
        max_labels: int,
    ):
        """Put the parts together.

        Args:
            reader: of chunks.
            tag_vectors: [n T] unit tag vectors, in which the concepts' centroids lie.
            detector: centroids and evidence of the C concepts, by which the heads were taught.
            scoring: heads and thresholds.
            max_labels: labels a chunk can carry.
        """
        self.reader, self.tag_vectors, self.detector, self.scoring = reader, tag_vectors, detector, scoring
        self.max_labels = max_labels
        self._concepts_of = _columns_of(scoring.members)

    @property
    def tags(self) -> tuple[str, ...]:
        """The n known tags."""
        return self.reader.tags

    @property
    def heads(self) -> Heads:
        """The heads of all concepts."""
        return self.scoring.heads

    @property
    def thresholds(self) -> Float32[np.ndarray, " C"]:
        """[C] lowest score of a label."""
        return self.scoring.thresholds

    @property
    def encoder(self) -> str:
        """Name of the encoder of chunks."""
        return self.reader.encoder.name

    @property
    def width(self) -> int:
        """E, the width of a chunk's vector."""
        return self.reader.encoder.width

    @property
    def num_concepts(self) -> int:
        """C."""
        return len(self.thresholds)

    def member_tags(self, concept_id: int) -> list[str]:
        """The tags of a concept and the phrases that mark it, in alphabetical order.

        Args:
            concept_id: 0..C-1.

        Returns:
            phrases; tags are in lower case.
        """
        tags = [tag for tag, concepts in zip(self.tags, self._concepts_of, strict=True) if concept_id in concepts]
        return sorted({*tags, *(p.text for p in self.reader.marker.phrases if p.concept_id == concept_id)})

    def annotate(self, texts: Sequence[str]) -> Annotation:
        """Labels and vectors of texts.

        Args:
            texts: chunk texts.

        Returns:
            the annotation, one entry a text.
        """
        reading = self.reader.read(texts)
        found = self.scoring.labels(reading.weighted, self._marks(reading), reading.vectors)
        bounds = zip(found.indptr[:-1].tolist(), found.indptr[1:].tolist(), strict=True)
        labels = tuple(
            self._labels(found.indices[a:b], found.data[a:b], self._spans(reading, row))
            for row, (a, b) in enumerate(bounds)
        )
        return Annotation(labels, reading.vectors)

    def scores(self, texts: Sequence[str]) -> csr_array:
        """Scores of the concepts that can be seen in texts, whether they reach their threshold or not.

        Args:
            texts: R chunk texts.

        Returns:
            [R C] fp32, sparse: a place that is not stored has neither tag nor mark.
        """
        reading = self.reader.read(texts)
        return self.scoring.seen(reading.weighted, self._marks(reading), reading.vectors)

    def log_odds(self, texts: Sequence[str], concept_ids: Sequence[int]) -> Float32[np.ndarray, "R c"]:
        """What the heads alone say, calibrated.

        Args:
            texts: R chunk texts.
            concept_ids: c concepts.

        Returns:
            [R c] log-odds that a chunk carries a concept.
        """
        ids = list(concept_ids)
        vectors = self.reader.read(texts).vectors
        return np.asarray(vectors @ self.heads.weights[ids].T + self.heads.biases[ids], np.float32)

    def _marks(self, reading: Reading) -> csr_array:
        return mark_table(reading.marks, self.reader.marker, self.num_concepts)

    def _spans(self, reading: Reading, row: int) -> dict[int, list[tuple[int, int]]]:
        """Where each concept can be seen in a chunk."""
        spans: dict[int, list[tuple[int, int]]] = defaultdict(list)
        for occurrence in reading.occurrences[row]:
            for concept in self._concepts_of[occurrence.tag]:
                spans[concept].append((occurrence.start, occurrence.stop))
        for mark in reading.marks[row]:
            spans[self.reader.marker.phrases[mark.phrase].concept_id].append((mark.start, mark.stop))
        return spans

    def _labels(
        self, concepts: NDArray[np.integer], scores: Float32[np.ndarray, " c"], spans: dict[int, list[tuple[int, int]]]
    ) -> tuple[Label, ...]:
        excess = scores - self.thresholds[concepts]
        order = np.lexsort((concepts, -excess))[: self.max_labels]
        return tuple(
            Label(concept, score, tuple(sorted(set(spans.get(concept, ())))))
            for concept, score in zip(concepts[order].tolist(), scores[order].tolist(), strict=True)
        )

    def save(self, folder: Path) -> None:
        """Write weights and marks (the tags themselves stand in the tag table).

        Args:
            folder: the atlas directory.
        """
        stored = storing.Stored(
            self.encoder,
            self.tags,
            self.reader.rarity,
            self.tag_vectors,
            self.detector,
            self.scoring,
            self.reader.marker.phrases,
            self.max_labels,
        )
        storing.save(stored, folder)

    @classmethod
    def load(cls, folder: Path, endpoint: Endpoint | None = None) -> "Annotator":
        """Read an annotator from an atlas directory.

        Args:
            folder: the atlas directory.
            endpoint: the server of embeddings, if the atlas was built with one.

        Returns:
            the annotator, equal to the saved one.

        Raises:
            ArtifactError: a file is missing or damaged, or comes from another version.
            ConfigError: the atlas needs a server, and none is given or another one.
            RunFailed: the server does not answer.
        """
        stored = storing.load(folder)
        encoder = storing.make_encoder(stored.encoder, stored.tag_vectors, endpoint)
        storing.check_encoder(stored, encoder, folder)
        reader = Reader(stored.tags, stored.rarity, encoder, Marker(stored.phrases))
        return cls(reader, stored.tag_vectors, stored.detector, stored.scoring, stored.max_labels)


def _columns_of(members: csr_array) -> list[set[int]]:
    bounds = zip(members.indptr[:-1].tolist(), members.indptr[1:].tolist(), strict=True)
    return [set(members.indices[a:b].tolist()) for a, b in bounds]
