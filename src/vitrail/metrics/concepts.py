"""Concept detection on held-out chunks: how well the known head finds what the annotator labelled (§7, H).

Scores are the chunk's aggregated concept logits on clean text, by the same aggregation as the concept loss.
Scored are all concepts with at least ten positives. Detection is partly recognition of the source, so three
references stand beside the figures: the ranking within each concept's main source, an oracle that knows only
the source, and a bag-of-words logistic regression fitted on the train split.

A *source* here is a collection of documents: the first part of a document's `source` (`python-stdlib/json`
belongs to `python-stdlib`). Letters: `J` held-out chunks, `C` concepts.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float, Int

from vitrail.atlas import AnnotatedCorpus, Chunk
from vitrail.errors import ArtifactError
from vitrail.metrics.concept_loss import Aggregation, chunk_concept_logits, prior_loss
from vitrail.metrics.intervals import Interval, mean_interval, plain
from vitrail.metrics.ranking import auc_per_concept, average_precision_per_concept
from vitrail.metrics.states import sample_rows
from vitrail.model import ConceptLM
from vitrail.packed import PackedCorpus

MIN_POSITIVES = 10
_BATCH_SIZE = 16


@dataclass(frozen=True)
class ChunkScores:
    """Aggregated concept logits of held-out chunks beside the annotator's labels.

    Attributes:
        logits: [J C] by the aggregation of the concept loss.
        or_logits: [J C] by noisy-or, the paper's soft OR.
        labels: [J C].
        rows: [J] rows of the annotated corpus.
    """

    logits: Float[np.ndarray, "J C"]
    or_logits: Float[np.ndarray, "J C"]
    labels: Bool[np.ndarray, "J C"]
    rows: Int[np.ndarray, " J"]


@dataclass(frozen=True)
class TrainChunks:
    """What the references know: chunks of the train split.

    Attributes:
        texts: their texts.
        labels: [n C].
        sources: their sources.
    """

    texts: list[str]
    labels: Bool[np.ndarray, "n C"]
    sources: list[str]


def concept_detection(
    model: ConceptLM,
    packed: PackedCorpus,
    annotated: AnnotatedCorpus,
    *,
    how: Aggregation = "log_mean_exp",
    num_sequences: int = 1000,
    num_train_chunks: int = 16_000,
    seed: int = 0,
) -> dict[str, Any]:
    """Detection figures of the known head on held-out chunks, with their references.

    Args:
        model: the model.
        packed: gives the held-out sequences.
        annotated: gives texts, sources, and the train chunks of the references.
        how: aggregation over a chunk's tokens, as in training.
        num_sequences: held-out sequences at most.
        num_train_chunks: train chunks the references are fitted on, at most.
        seed: of samples and bootstrap.

    Returns:
        `count` (C), `num_scored` (concepts with at least ten positives), `num_chunks`, `auc_macro`, `map`,
        `base_rate`, `auc_within_source`, `map_within_source`, `base_rate_within_source`,
        `num_scored_within_source`, `auc_source_oracle`, `map_source_oracle`, `bag_of_words` {auc, map},
        `bce_minus_prior` (noisy-or; nats a chunk, negative is better than the prior), `bce_prior`,
        `bce_minus_prior_own` (by `how`), and `ci95` of the main figures over concepts.

    Raises:
        ArtifactError: the packed corpus was made from another annotated corpus.
    """
    from vitrail.atlas.judge import BagOfWords  # loads scikit-learn, which who only generates need not wait for

    _check_same(packed, annotated)
    scores = chunk_scores(model, packed, how=how, num_sequences=num_sequences, seed=seed)
    chunks = _chunks_at(annotated, scores.rows)
    train = train_chunks(annotated, scores.labels.shape[1], num_train_chunks, seed)
    oracle = source_oracle(train, [collection(chunk.source) for chunk in chunks])
    scored = scores.labels.sum(0) >= MIN_POSITIVES
    words = BagOfWords.fit(train.texts, train.labels[:, scored], seed=seed)
    labels = scores.labels[:, scored]
    ours = _ranking(scores.logits[:, scored], labels, seed)
    by_source = _ranking(oracle[:, scored], labels, seed)
    by_words = _ranking(words.probs([chunk.text for chunk in chunks]), labels, seed)
    within = within_main_source(scores, chunks, train, seed)
    table = {
        "count": scores.labels.shape[1],
        "num_scored": int(scored.sum()),
        "num_chunks": len(chunks),
        "auc_macro": ours["auc"].value,
        "map": ours["map"].value,
        "base_rate": float(labels.mean()) if labels.size else float("nan"),
        **within,
        "auc_source_oracle": by_source["auc"].value,
        "map_source_oracle": by_source["map"].value,
        "bag_of_words": {name: figure.value for name, figure in by_words.items()},
        **_cross_entropies(scores),
        "ci95": {
            "auc_macro": ours["auc"].ci95,
            "map": ours["map"].ci95,
            "auc_source_oracle": by_source["auc"].ci95,
            "bag_of_words_auc": by_words["auc"].ci95,
            "bag_of_words_map": by_words["map"].ci95,
        },
    }
    return dict(plain(table))


@torch.no_grad()
def chunk_scores(
    model: ConceptLM, packed: PackedCorpus, *, how: Aggregation, num_sequences: int, seed: int
) -> ChunkScores:
    """Concept logits of held-out chunks on clean text.

    Args:
        model: the model.
        packed: gives the held-out sequences.
        how: aggregation of `logits`.
        num_sequences: sequences at most.
        seed: of the sample.

    Returns:
        scores and labels, one row per chunk.

    Cost: one forward of every sequence; [J C] numbers are kept.
    """
    own: list[np.ndarray] = []
    soft_or: list[np.ndarray] = []
    labels, rows = [], []
    drawn = sample_rows(packed, "heldout", num_sequences, seed)
    for start in range(0, len(drawn), _BATCH_SIZE):
        batch = packed.batch("heldout", drawn[start : start + _BATCH_SIZE])
        if not batch.num_chunks:
            continue
        hidden = model.hidden(batch.tokens)
        for kept, aggregation in ((own, how), (soft_or, "noisy_or")):
            parts = chunk_concept_logits(
                model.known_head,
                hidden,
                batch.chunk,
                batch.num_chunks,
                how=aggregation,
                slab_size=model.config.slab,
            )
            kept.append(torch.cat([logits for _, logits in parts], dim=1).numpy())
        carried = torch.zeros(batch.num_chunks, model.config.num_concepts, dtype=torch.bool)
        carried[batch.label_chunk, batch.label_concept] = True
        labels.append(carried.numpy())
        rows.append(batch.rows.numpy())
    empty = np.zeros((0, model.config.num_concepts), dtype=np.float32)
    return ChunkScores(
        np.concatenate([empty, *own]),
        np.concatenate([empty, *soft_or]),
        np.concatenate([empty.astype(bool), *labels]),
        np.concatenate([np.zeros(0, dtype=np.int64), *rows]),
    )


def train_chunks(annotated: AnnotatedCorpus, num_concepts: int, num_chunks: int, seed: int) -> TrainChunks:
    """A sample of the train split for the references.

    Args:
        annotated: the annotated corpus.
        num_concepts: C.
        num_chunks: how many at most.
        seed: of the sample.

    Returns:
        texts, labels and sources; chunks of other splits are never among them.
    """
    share = np.random.default_rng(seed).random(annotated.num_chunks)
    limit = np.sort(share)[min(num_chunks, annotated.num_chunks) - 1] if annotated.num_chunks else 0.0
    kept = [chunk for chunk in annotated.chunks() if chunk.split == "train" and share[chunk.row] <= limit]
    labels = np.zeros((len(kept), num_concepts), dtype=bool)
    for row, chunk in enumerate(kept):
        labels[row, [label.concept_id for label in chunk.labels]] = True
    return TrainChunks([chunk.text for chunk in kept], labels, [collection(chunk.source) for chunk in kept])


def source_oracle(train: TrainChunks, sources: Sequence[str]) -> Float[np.ndarray, "J C"]:
    """Scores of one who knows only where a chunk comes from: the concept's share in that source.

    Args:
        train: where the shares are counted.
        sources: source of each chunk to score.

    Returns:
        [J C] shares; an unknown source gets the overall share.
    """
    overall = train.labels.mean(0) if len(train.labels) else np.zeros(train.labels.shape[1])
    known = np.array(train.sources)
    shares = {source: train.labels[known == source].mean(0) for source in set(train.sources)}
    return (
        np.stack([shares.get(source, overall) for source in sources]) if len(sources) else np.zeros((0, len(overall)))
    )


def within_main_source(
    scores: ChunkScores, chunks: Sequence[Chunk], train: TrainChunks, seed: int
) -> dict[str, float | int]:
    """Ranking of each concept among held-out chunks of the source where it is most frequent in training.

    Args:
        scores: scores and labels.
        chunks: the chunks of their rows.
        train: decides each concept's main source.
        seed: of the bootstrap.

    Returns:
        `auc_within_source`, `map_within_source`, `base_rate_within_source`, `num_scored_within_source`.
    """
    source_of = np.array([collection(chunk.source) for chunk in chunks])
    names = sorted(set(train.sources))
    counts = np.array([train.labels[np.array(train.sources) == name].sum(0) for name in names])
    figures = []
    for concept_id in range(scores.labels.shape[1]):
        if not len(names):
            break
        inside = source_of == names[int(counts[:, concept_id].argmax())]
        labels, values = scores.labels[inside, concept_id, None], scores.logits[inside, concept_id, None]
        if MIN_POSITIVES <= labels.sum() < len(labels):
            precision = average_precision_per_concept(values, labels)[0]
            figures.append((auc_per_concept(values, labels)[0], precision, labels.mean()))
    auc, average_precision, base_rate = np.mean(figures, axis=0) if figures else (np.nan,) * 3
    return {
        "auc_within_source": float(auc),
        "map_within_source": float(average_precision),
        "base_rate_within_source": float(base_rate),
        "num_scored_within_source": len(figures),
    }


def collection(source: str) -> str:
    """The collection that a document's source belongs to: its first part."""
    return source.split("/", 1)[0]


def _check_same(packed: PackedCorpus, annotated: AnnotatedCorpus) -> None:
    """Rows of one annotated corpus mean nothing in another."""
    made_from, given = packed.manifest.inputs["annotated"].id, annotated.manifest.id
    if made_from != given:
        raise ArtifactError(
            f"{packed.path}: packed from annotated corpus {made_from[:12]}, but {annotated.path} is {given[:12]}; "
            "pack it again"
        )


def _chunks_at(annotated: AnnotatedCorpus, rows: Int[np.ndarray, " J"]) -> list[Chunk]:
    # Ascending, since neighbouring rows share a read.
    found = {int(row): annotated.chunk(int(row)) for row in np.sort(rows)}
    return [found[int(row)] for row in rows]


def _ranking(scores: np.ndarray, labels: np.ndarray, seed: int) -> dict[str, Interval]:
    auc, precision = auc_per_concept(scores, labels), average_precision_per_concept(scores, labels)
    return {
        "auc": mean_interval(auc[np.isfinite(auc)], seed=seed),
        "map": mean_interval(precision[np.isfinite(precision)], seed=seed),
    }


def _cross_entropies(scores: ChunkScores) -> dict[str, float]:
    """Binary cross-entropies per chunk, summed over concepts, minus that of answering the base rates."""
    num_chunks = max(len(scores.labels), 1)
    prior = prior_loss(torch.from_numpy(scores.labels.sum(0).astype(np.float64)), num_chunks)

    def per_chunk(logits: np.ndarray) -> float:
        wide = logits.astype(np.float64)
        return float((np.logaddexp(0, wide) - wide * scores.labels).sum() / num_chunks)

    return {
        "bce_minus_prior": per_chunk(scores.or_logits) - prior,
        "bce_minus_prior_own": per_chunk(scores.logits) - prior,
        "bce_prior": prior,
    }
