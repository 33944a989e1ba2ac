"""The annotator: labels any chunk with concepts, scores, spans, and gives the chunk's vector (§4.2.3).

A concept's score on a chunk is `z + 0.7 · min(lexical, 6)`: z is the cosine of the chunk's vector with the
concept's, in standard deviations over the corpus; lexical is the sum over member tags in the chunk of
(1 + ln tf) × idf × cosine(tag, concept) × reliability(tag). The reliability is the share of the tag's chunks
that lie near the concept as a whole; below 0.4 a tag is no member ("adopted" is not yet an anthem). A label
needs a member tag in the text (its spans are those occurrences) and a score above the concept's own
threshold: so it can always be seen in the text, and one stray word is not enough.

Letters: R chunks, n tags, C concepts, E width.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
from jaxtyping import Float32
from numpy.typing import NDArray
from safetensors.numpy import load_file, save
from scipy.sparse import csr_array, lil_array

from vitrail.atlas.geometry import chunk_vectors, count_matrix, tf_idf
from vitrail.atlas.phrases import Occurrence, Tagger
from vitrail.errors import ArtifactError

LEXICAL_WEIGHT = 0.7
LEXICAL_CAP = 6.0
MIN_SCALE = 1e-3
NEAR_SCORE = 1.0
MIN_RELIABILITY = 0.4

WEIGHTS_NAME = "annotator.safetensors"
TAGS_NAME = "tags.parquet"


@dataclass(frozen=True)
class Label:
    """A concept that a chunk carries.

    Attributes:
        concept_id: row of the library.
        score: z-scored cosine plus lexical evidence; above the concept's threshold.
        spans: characters `[start, stop)` of the chunk where its member tags stand, in order.
    """

    concept_id: int
    score: float
    spans: tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class Detector:
    """What is fitted per concept.

    Attributes:
        centroids: [C E] unit rows.
        mean: [C] mean cosine over the corpus.
        scale: [C] its standard deviation.
        members: [n C] weight of each member tag, cosine × reliability; zero elsewhere.
    """

    centroids: Float32[np.ndarray, "C E"]
    mean: Float32[np.ndarray, " C"]
    scale: Float32[np.ndarray, " C"]
    members: csr_array

    @classmethod
    def fit(
        cls,
        tags: Float32[np.ndarray, "n E"],
        centroids: Float32[np.ndarray, "C E"],
        members: Sequence[NDArray[np.int64]],
        counts: csr_array,
        chunks: Float32[np.ndarray, "R E"],
    ) -> "Detector":
        """A detector of concepts.

        Args:
            tags: [n E] unit tag vectors.
            centroids: [C E] unit concept vectors.
            members: candidate tags of each concept; unreliable ones are left out.
            counts: [R n] tags of the chunks.
            chunks: [R E] unit chunk vectors that set the scale.

        Returns:
            the detector.
        """
        cosines = chunks @ centroids.T
        mean, scale = cosines.mean(0), np.maximum(cosines.std(0), MIN_SCALE)
        presence = counts.tocsc().copy()
        presence.data[:] = 1
        table = lil_array((len(tags), len(members)), dtype=np.float32)
        for concept, tag_ids in enumerate(members):
            is_near = ((cosines[:, concept] - mean[concept]) / scale[concept] >= NEAR_SCORE).astype(np.float32)
            own = presence[:, tag_ids]
            reliability = (own.T @ is_near) / np.maximum(own.sum(0), 1)
            is_kept = reliability >= MIN_RELIABILITY
            kept = tag_ids[is_kept]
            table[kept, concept] = np.maximum(tags[kept] @ centroids[concept], 0.05) * reliability[is_kept]
        return cls(centroids, mean, scale, table.tocsr())

    def member_ids(self, concept_id: int) -> NDArray[np.int64]:
        """The reliable tags of a concept.

        Args:
            concept_id: 0..C-1.

        Returns:
            tag numbers, rising.
        """
        column = self.members.tocsc()
        ids = column.indices[column.indptr[concept_id] : column.indptr[concept_id + 1]]
        return np.sort(ids).astype(np.int64)

    def only(self, concept_ids: Sequence[int]) -> "Detector":
        """The detector of some of its concepts.

        Args:
            concept_ids: in the wanted order.

        Returns:
            a smaller detector.
        """
        ids = list(concept_ids)
        return Detector(self.centroids[ids], self.mean[ids], self.scale[ids], self.members.tocsc()[:, ids].tocsr())

    def scores(self, weighted: csr_array, chunks: Float32[np.ndarray, "R E"]) -> Float32[np.ndarray, "R C"]:
        """Score of every concept on every chunk; −inf where no member tag stands in the chunk.

        Args:
            weighted: [R n] tf-idf.
            chunks: [R E] unit chunk vectors.

        Returns:
            [R C] fp32.
        """
        lexical = (weighted @ self.members).toarray()
        z = (chunks @ self.centroids.T - self.mean) / self.scale
        # Rounded, because the last bits of a product depend on how many chunks are multiplied together.
        score = np.round(z + LEXICAL_WEIGHT * np.minimum(lexical, LEXICAL_CAP), 3)
        return np.where(lexical > 0, score, -np.inf).astype(np.float32)


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
        labels = tuple(self._labels(row, occurrences) for row, occurrences in zip(scores, found, strict=True))
        return Annotation(labels, vectors)

    def _labels(self, scores: Float32[np.ndarray, " C"], found: Sequence[Occurrence]) -> tuple[Label, ...]:
        above = np.flatnonzero(scores >= self.thresholds)
        order = sorted(above.tolist(), key=lambda c: (-float(scores[c] - self.thresholds[c]), c))[: self.max_labels]
        return tuple(
            Label(c, float(scores[c]), tuple((o.start, o.stop) for o in found if c in self._concepts_of[o.tag]))
            for c in order
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
