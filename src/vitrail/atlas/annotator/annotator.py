"""The annotator: labels any chunk with concepts, scores, spans, and gives the chunk's vector (§4.2.3).

Letters: R chunks, n tags, C concepts, E width.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
from jaxtyping import Float32
from numpy.typing import NDArray
from safetensors.numpy import load_file, save
from scipy.sparse import csr_array

from vitrail.atlas.annotator.detector import Detector
from vitrail.atlas.concepts.geometry import chunk_vectors, count_matrix, tf_idf
from vitrail.atlas.library import Label
from vitrail.atlas.tags import Occurrence, Tagger
from vitrail.errors import ArtifactError

WEIGHTS_NAME = "annotator.safetensors"
TAGS_NAME = "tags.parquet"


@dataclass(frozen=True)
class Annotation:
    """What the annotator says of some texts.

    Attributes:
        labels: per text, by falling score.
        vectors: [R E] unit chunk vectors (zero for a text without tags).
    """

    labels: tuple[tuple[Label, ...], ...]
    vectors: Float32[np.ndarray, "R E"]


class Annotator:
    """Labels chunks: tags, vectors, detector, thresholds."""

    def __init__(
        self,
        tags: Sequence[str],
        rarity: Float32[np.ndarray, " n"],
        vectors: Float32[np.ndarray, "n E"],
        detector: Detector,
        thresholds: Float32[np.ndarray, " C"],
        max_labels: int,
    ):
        """Put the parts together.

        Args:
            tags: n known tags in lower case.
            rarity: [n] inverse document frequencies.
            vectors: [n E] unit tag vectors.
            detector: of C concepts.
            thresholds: [C] lowest score of a label.
            max_labels: labels a chunk can carry.
        """
        self.tags = tuple(tags)
        self.rarity = rarity
        self.vectors = vectors
        self.detector = detector
        self.thresholds = thresholds
        self.max_labels = max_labels
        self._tagger = Tagger(self.tags)
        by_tag = detector.members.tocsr()
        self._concepts_of = [set(by_tag.indices[a:b].tolist()) for a, b in _pairs(by_tag.indptr)]

    @property
    def width(self) -> int:
        """E, the width of a chunk's vector."""
        return int(self.vectors.shape[1])

    @property
    def num_concepts(self) -> int:
        """C."""
        return len(self.thresholds)

    def member_tags(self, concept_id: int) -> list[str]:
        """The tags of a concept, in alphabetical order.

        Args:
            concept_id: 0..C-1.

        Returns:
            lower-case phrases.
        """
        return [tag for tag, concepts in zip(self.tags, self._concepts_of, strict=True) if concept_id in concepts]

    def annotate(self, texts: Sequence[str]) -> Annotation:
        """Labels and vectors of texts.

        Args:
            texts: chunk texts.

        Returns:
            the annotation, one entry a text.
        """
        found = [self._tagger.tag(text) for text in texts]
        counts = count_matrix([[o.tag for o in occurrences] for occurrences in found], len(self.tags))
        weighted = tf_idf(counts, self.rarity)
        vectors = chunk_vectors(weighted, self.vectors)
        scores = self.detector.scores(weighted, vectors)
        rows = zip(_pairs(scores.indptr), found, strict=True)
        labels = tuple(self._labels(scores.indices[a:b], scores.data[a:b], inside) for (a, b), inside in rows)
        return Annotation(labels, vectors)

    def _labels(
        self, concepts: NDArray[np.integer[Any]], scores: Float32[np.ndarray, " c"], found: Sequence[Occurrence]
    ) -> tuple[Label, ...]:
        excess = scores - self.thresholds[concepts]
        above = np.flatnonzero(excess >= 0)
        order = above[np.lexsort((concepts[above], -excess[above]))][: self.max_labels]
        return tuple(
            Label(c, score, tuple((o.start, o.stop) for o in found if c in self._concepts_of[o.tag]))
            for c, score in zip(concepts[order].tolist(), scores[order].tolist(), strict=True)
        )

    def save(self, folder: Path) -> None:
        """Write the weights (the tags themselves stand in the tag table).

        Args:
            folder: the atlas directory.
        """
        members = self.detector.members.tocsr()
        weights = save(
            {
                "tag_vectors": self.vectors,
                "tag_rarity": self.rarity,
                "centroids": self.detector.centroids,
                "cosine_mean": self.detector.mean.astype(np.float32),
                "cosine_scale": self.detector.scale.astype(np.float32),
                "members.indptr": members.indptr.astype(np.int64),
                "members.indices": members.indices.astype(np.int64),
                "members.data": members.data.astype(np.float32),
                "thresholds": self.thresholds,
                "max_labels": np.array([self.max_labels], np.int64),
            }
        )
        (folder / WEIGHTS_NAME).write_bytes(weights)

    @classmethod
    def load(cls, folder: Path) -> "Annotator":
        """Read an annotator from an atlas directory.

        Args:
            folder: the atlas directory.

        Returns:
            the annotator, equal to the saved one.

        Raises:
            ArtifactError: a file is missing or damaged.
        """
        try:
            tags = pq.read_table(folder / TAGS_NAME, columns=["tag"])["tag"].to_pylist()
            w = load_file(folder / WEIGHTS_NAME)
            parts = (w["members.data"], w["members.indices"], w["members.indptr"])
            members = csr_array(parts, shape=(len(tags), len(w["thresholds"])))
            detector = Detector(w["centroids"], w["cosine_mean"], w["cosine_scale"], members)
            return cls(tags, w["tag_rarity"], w["tag_vectors"], detector, w["thresholds"], int(w["max_labels"][0]))
        except Exception as error:
            problem = " ".join(str(error).split())
            raise ArtifactError(f"{folder}: damaged annotator ({problem}); build the atlas again") from error


def _pairs(indptr: np.ndarray) -> list[tuple[int, int]]:
    return list(zip(indptr[:-1].tolist(), indptr[1:].tolist(), strict=True))
