"""Relevance of labels, 1 to 5: do the concepts that chunks were given fit them (§4.2)?

As in the paper, a rating of 2 or more counts as a success; figures are given per label, per chunk (the mean of its
labels' ratings) and per concept. Chunks are drawn at random; so that rare concepts have figures too, a few more chunks
are drawn for each concept, which enter the figures per concept only. Beside every figure stands what the same rater
says of the same passages with each other's labels: what it would say by chance.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol, runtime_checkable

import numpy as np
from jaxtyping import Float64, Int64
from pydantic import Field, model_validator

from vitrail.atlas.annotated import AnnotatedCorpus, Chunk
from vitrail.atlas.judge.raters import Rater
from vitrail.atlas.library import ConceptLibrary
from vitrail.atlas.llm import RatingModel
from vitrail.errors import CorpusError
from vitrail.settings import Seed, Settings

SUCCESS = 2.0
"""A rating from which a label counts as right (§4.2)."""
NUM_WORST = 10
NUM_REFERENCE = 400
"""Passages that a rater may compare with, at least, where the corpus has them."""


class RelevanceSettings(Settings):
    """What is rated, and by whom."""

    judge: Literal["embedded", "endpoint"] = "embedded"
    """Who rates: MiniLM's cosine by a rule, or a language model."""
    sample: int = Field(default=400, ge=10)
    """Chunks drawn at random."""
    per_concept: int = Field(default=3, ge=0)
    """Further labels drawn for each concept; they enter its own figures only."""
    pool: int = Field(default=20_000, ge=10)
    """Random chunks that are read to draw from: the sample, and further ones to look for rare concepts in."""
    shuffled: int = Field(default=400, ge=0)
    """Pairs of a passage and another's label, rated for comparison."""
    min_ratings: int = Field(default=3, ge=1)
    """Ratings that a concept needs to enter the figures per concept."""
    llm: RatingModel | None = None
    """The language model that rates, and its prompt."""
    seed: Seed = 0
    """Seed of the draws."""

    @model_validator(mode="after")
    def _pool_holds_the_sample(self) -> "RelevanceSettings":
        if self.sample > self.pool:
            raise ValueError(
                f"sample is {self.sample}, but the pool it is drawn from {self.pool}; raise pool (--pool) above sample"
            )
        return self


@runtime_checkable
class IntervalOf(Protocol):
    """A mean with its 95 % interval, resampled by clusters; `vitrail.metrics.mean_interval` is one."""

    def __call__(
        self, values: Float64[np.ndarray, " n"], *, clusters: Int64[np.ndarray, " n"] | None = None, seed: int = 0
    ) -> Any:
        """The interval; it has `value`, `low` and `high`."""


@dataclass(frozen=True)
class Drawn:
    """What is to be rated.

    Attributes:
        chunks: drawn at random, those without labels included.
        pairs: every label of these chunks: chunk and concept.
        further: labels of other chunks, for the figures per concept.
        shuffled: passages with a label of another.
        reference: passages drawn without regard to their labels, to compare with; `chunks` are the first of them.
    """

    chunks: tuple[Chunk, ...]
    pairs: tuple[tuple[Chunk, int], ...]
    further: tuple[tuple[Chunk, int], ...]
    shuffled: tuple[tuple[Chunk, int], ...]
    reference: tuple[Chunk, ...]


@dataclass(frozen=True)
class Ratings:
    """Ratings of what was drawn; NaN where there is none.

    Attributes:
        rater: who rated.
        drawn: what.
        pairs: ratings of `drawn.pairs`.
        further: ratings of `drawn.further`.
        shuffled: ratings of `drawn.shuffled`.
    """

    rater: str
    drawn: Drawn
    pairs: Float64[np.ndarray, " p"]
    further: Float64[np.ndarray, " f"]
    shuffled: Float64[np.ndarray, " s"]


def draw(annotated: AnnotatedCorpus, settings: RelevanceSettings) -> Drawn:
    """Draw what is to be rated.

    Args:
        annotated: the corpus whose labels are judged.
        settings: how much, with which seed.

    Returns:
        the draw; a function of the corpus and the settings.

    Raises:
        CorpusError: none of the sample carries a label.
        ArtifactError: the corpus is damaged.
    """
    rng = np.random.default_rng(settings.seed)
    rows = rng.choice(annotated.num_chunks, min(settings.pool, annotated.num_chunks), replace=False)
    read = {row: annotated.chunk(row) for row in sorted(rows.tolist())}
    pool = [read[row] for row in rows.tolist()]
    chunks, others = pool[: settings.sample], pool[settings.sample :]
    pairs = [(chunk, label.concept_id) for chunk in chunks for label in chunk.labels]
    if not pairs:
        raise CorpusError(f"{annotated.path}: none of {len(chunks)} chunks carries a label; there is nothing to rate")
    shuffled = _shuffled(pairs, settings.shuffled, rng)
    further = _few_of_each(others, settings.per_concept)
    reference = pool[: max(settings.sample, NUM_REFERENCE)]
    return Drawn(tuple(chunks), tuple(pairs), tuple(further), tuple(shuffled), tuple(reference))


def rate(drawn: Drawn, library: ConceptLibrary, rater: Rater) -> Ratings:
    """Have all that was drawn rated.

    Args:
        drawn: the pairs.
        library: their concepts.
        rater: who rates.

    Returns:
        the ratings.
    """
    together = (*drawn.pairs, *drawn.further, *drawn.shuffled)
    cards = [library.card("known", concept_id) for _, concept_id in together]
    values = rater.rate([chunk.text for chunk, _ in together], cards)
    first, second = len(drawn.pairs), len(drawn.pairs) + len(drawn.further)
    return Ratings(rater.name, drawn, values[:first], values[first:second], values[second:])


def concept_table(ratings: Ratings, library: ConceptLibrary) -> list[dict[str, Any]]:
    """The ratings by concept, the worst first.

    Args:
        ratings: all of them.
        library: their concepts.

    Returns:
        a row for each concept with a rating: `concept_id`, `name`, `kind`, `num_rated`, `mean`, `share_2`.
    """
    found: Mapping[int, list[float]] = defaultdict(list)
    pairs = (*ratings.drawn.pairs, *ratings.drawn.further)
    for (_, concept_id), rating in zip(pairs, np.concatenate([ratings.pairs, ratings.further]), strict=True):
        if not np.isnan(rating):
            found[concept_id].append(float(rating))
    rows = []
    for concept_id, values in found.items():
        card = library.card("known", concept_id)
        rows.append(
            {
                "concept_id": concept_id,
                "name": card.name,
                "kind": card.kind,
                "num_rated": len(values),
                "mean": round(float(np.mean(values)), 4),
                "share_2": round(float(np.mean(np.array(values) >= SUCCESS)), 4),
            }
        )
    return sorted(rows, key=lambda row: (row["mean"], row["concept_id"]))


def report(
    ratings: Ratings, library: ConceptLibrary, settings: RelevanceSettings, interval: IntervalOf
) -> dict[str, Any]:
    """The figures: per label, per chunk, per concept, and by chance, each with its 95 % interval.

    Args:
        ratings: all of them.
        library: their concepts.
        settings: by which they were drawn.
        interval: of a mean.

    Returns:
        plain values; `judge` names the rater; figures are None where nothing was rated.
    """
    drawn = ratings.drawn
    rows = np.array([chunk.row for chunk, _ in drawn.pairs], np.int64)
    documents = _numbers([chunk.document_id for chunk, _ in drawn.pairs])
    is_rated = ~np.isnan(ratings.pairs)
    by_chunk, chunk_documents = _chunk_means(ratings.pairs[is_rated], rows[is_rated], documents[is_rated])
    table = [row for row in concept_table(ratings, library) if row["num_rated"] >= settings.min_ratings]
    by_concept = np.array([row["mean"] for row in table], np.float64)
    by_chance = ratings.shuffled[~np.isnan(ratings.shuffled)]
    figures = _Figures(interval, settings.seed)
    return {
        "judge": ratings.rater,
        "labels": figures.of(ratings.pairs[is_rated], documents[is_rated]),
        "chunks": figures.of(by_chunk, chunk_documents)
        | {"num_drawn": len(drawn.chunks), "num_without_label": sum(not chunk.labels for chunk in drawn.chunks)},
        "concepts": figures.of(by_concept, None) | {"num_concepts": library.num_known},
        "shuffled": figures.of(by_chance, None),
        "num_unrated": int(np.isnan(np.concatenate([ratings.pairs, ratings.further, ratings.shuffled])).sum()),
        "worst": table[:NUM_WORST],
    }


class _Figures:
    """Mean and share of successes of some ratings."""

    def __init__(self, interval: IntervalOf, seed: int):
        self._interval, self._seed = interval, seed

    def of(self, values: Float64[np.ndarray, " n"], clusters: Int64[np.ndarray, " n"] | None) -> dict[str, Any]:
        if not len(values):
            return {"num": 0, "mean": None, "mean_ci95": None, "share_2": None, "share_2_ci95": None}
        figures: dict[str, Any] = {"num": len(values)}
        for name, each in (("mean", values), ("share_2", (values >= SUCCESS).astype(np.float64))):
            found = self._interval(each, clusters=clusters, seed=self._seed)
            figures |= {name: round(found.value, 4), f"{name}_ci95": [round(found.low, 4), round(found.high, 4)]}
        return figures


def _shuffled(pairs: Sequence[tuple[Chunk, int]], most: int, rng: np.random.Generator) -> list[tuple[Chunk, int]]:
    """Passages with the label of another one, which they do not carry."""
    order = rng.permutation(len(pairs))
    mixed = [(chunk, pairs[j][1]) for (chunk, _), j in zip(pairs, order.tolist(), strict=True)]
    foreign = [(chunk, c) for chunk, c in mixed if c not in {label.concept_id for label in chunk.labels}]
    return foreign[:most]


def _few_of_each(chunks: Sequence[Chunk], most: int) -> list[tuple[Chunk, int]]:
    """The first labels of each concept among chunks in random order."""
    found: Mapping[int, list[Chunk]] = defaultdict(list)
    for chunk in chunks:
        for label in chunk.labels:
            if len(found[label.concept_id]) < most:
                found[label.concept_id].append(chunk)
    return [(chunk, concept_id) for concept_id in sorted(found) for chunk in found[concept_id]]


def _chunk_means(
    ratings: Float64[np.ndarray, " p"], rows: Int64[np.ndarray, " p"], documents: Int64[np.ndarray, " p"]
) -> tuple[Float64[np.ndarray, " n"], Int64[np.ndarray, " n"]]:
    """Mean rating of each chunk, and its document."""
    _, first, inverse = np.unique(rows, return_index=True, return_inverse=True)
    means = np.bincount(inverse, ratings) / np.maximum(np.bincount(inverse), 1)
    return np.asarray(means, np.float64), np.asarray(documents[first], np.int64)


def _numbers(names: Sequence[str]) -> Int64[np.ndarray, " n"]:
    return np.asarray(np.unique(np.array(names, dtype=str), return_inverse=True)[1], np.int64)
