"""Fitting the annotator: from labels by evidence and from own concepts to heads and thresholds (§4.2.3).

In order: encode the chunks; draw the reservoir; fit all heads against it; standardise their logits on the corpus;
calibrate logits and thresholds on held-out chunks. Automatic concepts come first, own ones after them.

Letters: R chunks, n tags, C concepts (automatic, then own), E width of a chunk's vector, T width of a tag's.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import pairwise

import numpy as np
from jaxtyping import Float32
from numpy.typing import NDArray
from scipy.sparse import coo_array, csc_array, csr_array

from vitrail.atlas.annotator.annotator import Annotator
from vitrail.atlas.annotator.calibration import Judged, calibrated, matched_thresholds
from vitrail.atlas.annotator.detector import LEXICAL_CAP, LEXICAL_WEIGHT, Detector
from vitrail.atlas.annotator.encoders import ChunkEncoder
from vitrail.atlas.annotator.heads import Heads, standardised
from vitrail.atlas.annotator.own import FOLD_EXAMPLES, own_marker, read_own
from vitrail.atlas.annotator.reading import Reader, mark_table
from vitrail.atlas.annotator.reservoir import draw_reservoir
from vitrail.atlas.annotator.scoring import Scoring
from vitrail.atlas.annotator.teaching import Teacher
from vitrail.atlas.annotator.training import Positives, Unlabelled, train
from vitrail.atlas.annotator.unseen import Hint, unseen_bars
from vitrail.atlas.concepts.geometry import chunk_vectors, unit
from vitrail.atlas.concepts.own import OwnConcept
from vitrail.atlas.concepts.space import Encoded
from vitrail.atlas.settings import AtlasSettings

PRIOR_FACTOR = 1.5
"""A concept is carried by more chunks than evidence labels: π is this many times the labelled share (C)."""

CONTENT_Z = 1.0
"""How well a chunk must fit an own concept of content, besides holding one of its phrases."""

LISTED_TAGS = 24
"""Tags that an encoder of texts reads of a concept."""

MIN_PRIOR, MAX_PRIOR = 1e-5, 0.3


@dataclass(frozen=True)
class Evidence:
    """Automatic concepts and the chunks that evidence labels with them.

    Attributes:
        detector: of the automatic concepts.
        thresholds: lowest evidence of a label.
        labelled: chunks of each concept among those the atlas is built from.
        kinds: of each concept.
    """

    detector: Detector
    thresholds: Float32[np.ndarray, " c"]
    labelled: Sequence[NDArray[np.int64]]
    kinds: Sequence[str]

    @classmethod
    def none(cls, num_tags: int, width: int) -> "Evidence":
        """No automatic concept at all."""
        return cls(Detector.empty(num_tags, width), np.zeros(0, np.float32), [], [])


@dataclass(frozen=True)
class FitInputs:
    """What an annotator is fitted from.

    Attributes:
        texts: R chunks that the atlas is built from.
        heldout: chunks of other documents, to calibrate on; may be few or none.
        tags: n known tags.
        encoded: tags and chunks as vectors.
        evidence: the automatic concepts.
        own: concepts that people gave.
    """

    texts: Sequence[str]
    heldout: Sequence[str]
    tags: Sequence[str]
    encoded: Encoded
    evidence: Evidence
    own: Sequence[OwnConcept] = ()


@dataclass(frozen=True)
class FittedAnnotator:
    """The annotator and what it says of the chunks it was built from.

    Attributes:
        annotator: of all concepts.
        labelled: [C] chunks above each concept's threshold (before the limit of labels a chunk).
    """

    annotator: Annotator
    labelled: list[NDArray[np.int64]]


def fit_annotator(inputs: FitInputs, encoder: ChunkEncoder, settings: AtlasSettings) -> FittedAnnotator:
    """An annotator of automatic and own concepts.

    Args:
        inputs: chunks, tags and concepts.
        encoder: of chunks.
        settings: loss, rule of labels, prevalence limits, seed.

    Returns:
        the annotator, and the chunks it labels.

    Raises:
        CorpusError: an own concept of which nothing is known to the corpus.
    """
    return _Fit(inputs, encoder, settings).run()


class _Fit:
    """The steps of one fit, and what they share."""

    def __init__(self, inputs: FitInputs, encoder: ChunkEncoder, settings: AtlasSettings):
        self.encoded, self.evidence, self.own, self.settings = inputs.encoded, inputs.evidence, inputs.own, settings
        texts, encoded, evidence = inputs.texts, inputs.encoded, inputs.evidence
        first = len(evidence.labelled)
        self.reader = Reader(inputs.tags, encoded.rarity, encoder, own_marker(self.own, texts, first))
        self.vectors = encoder.encode(texts, encoded.weighted) if encoder.reads_text else encoded.rows
        marks = [self.reader.marker.find(text) for text in texts]
        self.known = read_own(self.own, self.reader, encoded.space, texts, marks, first)
        self.detector = evidence.detector.extended(self.known.tag_centroids, encoded.rows)
        self.marked = mark_table(marks, self.reader.marker, first + len(self.own))
        self.heldout = self.reader.read(inputs.heldout)
        self.teacher = Teacher(
            texts,
            inputs.tags,
            encoded.weighted,
            self.vectors,
            encoder,
            evidence.detector,
            evidence.labelled,
            settings.seed,
        )

    def run(self) -> FittedAnnotator:
        heads, folds = self._heads()
        thresholds = self._thresholds(heads)
        unseen = unseen_bars(self._hints(heads, folds), heads, self.vectors, self.settings)
        scoring = Scoring(self.detector.members, heads, thresholds, unseen)
        annotator = Annotator(self.reader, self.encoded.space.vectors, self.detector, scoring, self.settings.max_labels)
        found = scoring.labels(self.encoded.weighted, self.marked, self.vectors).tocsc()
        return FittedAnnotator(annotator, [np.sort(rows) for rows in _columns(found)])

    @cached_property
    def _evidence_heldout(self) -> list[NDArray[np.int64]]:
        """The held-out chunks that evidence labels with each automatic concept."""
        rows = chunk_vectors(self.heldout.weighted, self.encoded.space.vectors)
        scores = self.evidence.detector.scores(self.heldout.weighted, rows)
        kept = scores.data >= self.evidence.thresholds[scores.indices]
        return _columns(_only(scores, kept).tocsc())

    def _heads(self) -> tuple[Heads, dict[int, Float32[np.ndarray, " e"]]]:
        """Calibrated heads, and for some own concepts the z of examples that the head had not seen."""
        tasks = [*self._automatic_tasks(), *self._own_tasks()]
        folds = [(i, side) for i in range(len(self.own)) for side in (0, 1) if self._is_folded(i)]
        fold_tasks = [self._own_task(i, side) for i, side in folds]
        weights, biases = self._train([*tasks, *fold_tasks])
        unknown = [len(self.evidence.labelled) + i for i in range(len(self.own)) if not self._is_known(i)]
        weights[unknown] = 0  # what little their chunks have in common is chance
        kinds = [*self.evidence.kinds, *(concept.kind for concept in self.own)]
        heads = standardised(weights[: len(tasks)], biases[: len(tasks)], kinds, self.vectors)
        sides = standardised(weights[len(tasks) :], biases[len(tasks) :], ["fold"] * len(folds), self.vectors)
        unseen: dict[int, list[Float32[np.ndarray, " e"]]] = {}
        for row, (i, side) in enumerate(folds):
            left_out = self.known.examples[i][side::2]
            concepts = np.full(len(left_out), row)
            unseen.setdefault(i, []).append(sides.z_at(left_out, np.arange(len(left_out)), concepts))
        return self._calibrated(heads), {i: np.concatenate(parts) for i, parts in unseen.items()}

    def _calibrated(self, heads: Heads) -> Heads:
        if self.heldout.occurrences:
            return calibrated(heads, self.heldout.vectors, self._evidence_heldout)
        return calibrated(heads, self.vectors, self.evidence.labelled)

    def _train(self, tasks: Sequence["_Task"]) -> tuple[Float32[np.ndarray, "C E"], Float32[np.ndarray, " C"]]:
        labelled = [*self.evidence.labelled, *self.known.carried]
        reservoir = draw_reservoir(labelled, len(self.vectors), self.settings.seed)
        return train(
            lambda c: tasks[c].positives(),
            Unlabelled(
                self.vectors[reservoir.rows],
                reservoir.importance,
                lambda c: np.isin(reservoir.rows, tasks[c].labelled),
            ),
            np.stack([task.centroid for task in tasks]),
            np.array([task.prior for task in tasks], np.float32),
            self.settings.loss,
            self.settings.seed,
        )

    def _automatic_tasks(self) -> list["_Task"]:
        return [
            _Task(partial(self.teacher.positives, c), centroid, self._prior(rows, MIN_PRIOR), rows)
            for c, (rows, centroid) in enumerate(zip(self.evidence.labelled, self._centroids(), strict=True))
        ]

    def _centroids(self) -> Float32[np.ndarray, "c E"]:
        """Where the heads of automatic concepts start: among tags the concept itself.

        An encoder of texts reads the concept's tags instead, and the mean labelled chunk is put beside that.
        """
        detector, encoder = self.evidence.detector, self.reader.encoder
        if not encoder.reads_text:
            return detector.centroids
        if not len(detector.mean):
            return np.zeros((0, encoder.width), np.float32)
        members = [detector.member_ids(c) for c in range(len(detector.mean))]
        listed = [", ".join(self.reader.tags[tag] for tag in ids[:LISTED_TAGS]) for ids in members]
        said = encoder.encode(listed, csr_array((len(listed), len(self.reader.tags)), dtype=np.float32))
        mean = self.vectors.mean(0)
        shown = np.stack([self.vectors[rows].mean(0) if len(rows) else mean for rows in self.evidence.labelled])
        return unit(unit(said - mean) + unit(shown - mean))

    def _own_tasks(self) -> list["_Task"]:
        return [self._own_task(i) for i in range(len(self.own))]

    def _own_task(self, i: int, left_out: int | None = None) -> "_Task":
        centroid = self.known.centroids[i]
        if self.reader.encoder.reads_text:
            centroid = unit((centroid - self.vectors.mean(0))[None])[0]
        carried = self.known.carried[i]
        prior = self._prior(carried, self.settings.least_prevalence)
        return _Task(partial(self.known.positives, i, self.vectors, left_out), centroid, prior, carried)

    def _prior(self, rows: NDArray[np.int64], least: float) -> float:
        return float(np.clip(PRIOR_FACTOR * len(rows) / len(self.vectors), least, MAX_PRIOR))

    def _is_known(self, i: int) -> bool:
        return bool(self.known.centroids[i].any())

    def _is_folded(self, i: int) -> bool:
        return len(self.known.examples[i]) >= FOLD_EXAMPLES

    def _thresholds(self, heads: Heads) -> Float32[np.ndarray, " C"]:
        no_bar = np.full(len(heads.biases), np.inf, np.float32)
        scoring = Scoring(self.detector.members, heads, no_bar, no_bar)
        scores = scoring.seen(self.encoded.weighted, self.marked, self.vectors)
        marked = mark_table(self.heldout.marks, self.reader.marker, len(heads.biases))
        fresh = scoring.seen(self.heldout.weighted, marked, self.heldout.vectors)
        automatic = matched_thresholds(Judged(scores, self.evidence.labelled), Judged(fresh, self._evidence_heldout))
        own = self._own_thresholds(_values(scores.tocsc())[len(automatic) :])
        return np.concatenate([automatic, np.array(own, np.float32)])

    def _own_thresholds(self, scores: Sequence[NDArray[np.float32]]) -> list[float]:
        """One usual phrase is enough in a chunk that fits no worse than the average, of content clearly better."""
        at_most = max(int(self.settings.max_prevalence * len(self.vectors)), 1)
        weights: list[list[float]] = [[] for _ in self.own]
        for phrase in self.reader.marker.phrases:
            weights[phrase.concept_id - len(self.evidence.labelled)].append(phrase.weight)
        found = []
        for i, concept in enumerate(self.own):
            needed = CONTENT_Z if concept.kind == "content" and self._is_known(i) else 0.0
            usual = float(np.median(weights[i])) if weights[i] else LEXICAL_CAP
            falling = np.sort(scores[i])[::-1]
            limit = float(falling[at_most]) + 1e-3 if at_most < len(falling) else -np.inf
            found.append(round(max(needed + LEXICAL_WEIGHT * min(usual, LEXICAL_CAP), limit) - 5e-4, 3))
        return found

    def _hints(self, heads: Heads, folds: Mapping[int, Float32[np.ndarray, " e"]]) -> list[Hint]:
        num_members = np.bincount(self.detector.members.indices, minlength=len(heads.biases))
        first = len(self.evidence.labelled)
        hints = []
        for c in range(len(heads.kinds)):
            own = self.own[c - first] if c >= first else None
            is_visible = bool(num_members[c]) or bool(own and own.phrases)
            is_known = own is None or self._is_known(c - first)
            rows = self.known.carried[c - first] if own else self.evidence.labelled[c]
            hints.append(
                Hint(
                    must_be_seen=not is_known or (self.settings.visible_labels and is_visible),
                    labelled=rows,
                    is_own=own is not None,
                    fresh=folds.get(c - first),
                )
            )
        return hints


@dataclass(frozen=True)
class _Task:
    """What one head is fitted from."""

    positives: Callable[[], Positives]
    centroid: Float32[np.ndarray, " E"]
    prior: float
    labelled: NDArray[np.int64]


def _values(table: csc_array) -> list[NDArray[np.float32]]:
    return [table.data[a:b] for a, b in pairwise(table.indptr)]


def _columns(table: csc_array) -> list[NDArray[np.int64]]:
    return [table.indices[a:b].astype(np.int64) for a, b in pairwise(table.indptr)]


def _only(scores: csr_array, kept: NDArray[np.bool_]) -> csr_array:
    row, concept = scores.tocoo().coords
    return coo_array((scores.data[kept], (row[kept], concept[kept])), shape=scores.shape).tocsr()
