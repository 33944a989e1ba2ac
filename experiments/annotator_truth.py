"""What the annotator is judged by: chunks of split "judge", struck-out tags, subdomains (see annotator.py).

Letters: R chunks, C concepts, E width.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array
from sklearn.metrics import average_precision_score, roc_auc_score

from vitrail.artifacts import read_whole
from vitrail.atlas.annotator import Annotator
from vitrail.atlas.annotator.blanking import blank, tag_pattern
from vitrail.atlas.annotator.encoders import ChunkEncoder
from vitrail.atlas.annotator.fit import Evidence, FitInputs, FittedAnnotator, fit_annotator
from vitrail.atlas.annotator.reading import Reader
from vitrail.atlas.concepts.encoder import MiniLM
from vitrail.atlas.concepts.geometry import chunk_vectors, unit
from vitrail.atlas.concepts.own import OwnConcept
from vitrail.atlas.concepts.selection import calibrate
from vitrail.atlas.concepts.space import Encoded, TagSpace
from vitrail.atlas.sample import gather_chunks
from vitrail.atlas.settings import AtlasSettings
from vitrail.corpus import Corpus, Document, chunk_text, split_of

NUM_NEGATIVES, MAX_POSITIVES, MIN_POSITIVES = 1_000, 100, 3
BOOTSTRAPS = 1_000
BUCKETS = (0, 60, 120, 300, 1_000, 10**9)
BINS = 10
FALSE_SHARE = 0.05


@dataclass(frozen=True)
class Sample:
    """Chunks nobody was fitted on: text, document number, subdomain."""

    texts: list[str]
    documents: NDArray[np.int64]
    subdomains: NDArray[np.int64]


@dataclass(frozen=True)
class Given:
    """What an atlas's annotator is fitted from, restored from the atlas and its corpus."""

    settings: AtlasSettings
    texts: list[str]
    subdomains: NDArray[np.int64]
    heldout: list[str]
    tags: tuple[str, ...]
    encoded: Encoded
    evidence: Evidence
    sample: Sample

    def fit(self, encoder: ChunkEncoder, loss: str, own: Sequence[OwnConcept] = ()) -> FittedAnnotator:
        """The annotator, fitted anew."""
        settings = self.settings.model_copy(update={"loss": loss})
        evidence = self.evidence
        if own:
            evidence = Evidence.none(len(self.tags), self.encoded.space.vectors.shape[1])
        inputs = FitInputs(self.texts, self.heldout, self.tags, self.encoded, evidence, own)
        return fit_annotator(inputs, encoder, settings)


def restore(atlas_dir: Path, corpus_dir: Path, num_chunks: int, num_concepts: int, num_judged: int) -> Given:
    """What an annotator is fitted from; the concepts without tags (own ones) are left out."""
    settings = AtlasSettings.parse(read_whole(atlas_dir, "atlas").settings, str(atlas_dir))
    settings = settings.model_copy(update={"max_chunks": num_chunks})
    annotator = Annotator.load(atlas_dir)
    documents = list(Corpus.open(corpus_dir).documents())
    names = sorted({_subdomain(document) for document in documents})
    number = {name: i for i, name in enumerate(names)}
    by_split = {
        split: gather_chunks([replace(d, domain=_subdomain(d)) for d in documents], settings, split)
        for split in ("train", "heldout")
    }
    chunks = by_split["train"]
    reading = Reader(annotator.tags, annotator.reader.rarity, _Tags(annotator)).read(chunks.texts)
    space = TagSpace(
        annotator.tag_vectors,
        MiniLM.width if annotator.tag_vectors.shape[1] >= MiniLM.width else 0,
        np.bincount(reading.weighted.indices, minlength=len(annotator.tags)).astype(np.int64),
        np.zeros(len(annotator.tags)),
        np.ones(len(annotator.tags)),
    )
    encoded = Encoded(space, annotator.reader.rarity, reading.weighted, reading.vectors)
    with_tags = np.flatnonzero(np.bincount(annotator.detector.members.indices, minlength=annotator.num_concepts))
    picked = np.random.default_rng(0).permutation(with_tags)[:num_concepts]
    detector = annotator.detector.only(np.sort(picked).tolist())
    scores = detector.scores(encoded.weighted, encoded.rows).tocsc()
    columns = [slice(a, b) for a, b in zip(scores.indptr[:-1], scores.indptr[1:], strict=True)]
    thresholds = np.array([calibrate(scores.data[at], len(chunks.texts), settings) for at in columns], np.float32)
    labelled = [
        np.sort(scores.indices[at][scores.data[at] >= t]).astype(np.int64)
        for at, t in zip(columns, thresholds, strict=True)
    ]
    return Given(
        settings,
        chunks.texts,
        np.array([number[chunks.domain_names[d]] for d in chunks.domains]),
        by_split["heldout"].texts,
        annotator.tags,
        encoded,
        Evidence(detector, thresholds, labelled, ["content"] * len(labelled)),
        _sample(documents, settings, number, num_judged),
    )


class Remembering:
    """An encoder that keeps the vectors of texts it has read, for the next fit."""

    def __init__(self, encoder: ChunkEncoder):
        self.name, self.reads_text, self.width = encoder.name, encoder.reads_text, encoder.width
        self._encoder = encoder
        self._kept: dict[str, NDArray[np.float32]] = {}

    def encode(self, texts: Sequence[str], weighted: csr_array) -> NDArray[np.float32]:
        """Vectors of texts."""
        if not self.reads_text:
            return self._encoder.encode(texts, weighted)
        new = sorted({text for text in texts if text not in self._kept})
        if new:
            empty = csr_array((len(new), weighted.shape[1]), dtype=np.float32)
            self._kept.update(zip(new, self._encoder.encode(new, empty), strict=True))
        kept = [self._kept[text] for text in texts]
        return np.stack(kept) if kept else np.zeros((0, self.width), np.float32)


class _Tags:
    """The tags encoder of an atlas, whatever encoder it was built with."""

    name, reads_text = "tags", False

    def __init__(self, annotator: Annotator):
        self._vectors = annotator.tag_vectors

    @property
    def width(self) -> int:
        return int(self._vectors.shape[1])

    def encode(self, texts: Sequence[str], weighted: csr_array) -> NDArray[np.float32]:
        return chunk_vectors(weighted, self._vectors)


def _subdomain(document: Document) -> str:
    return f"{document.domain}/{document.metadata.get('subdomain', '')}"


def _sample(documents: Sequence[Document], settings: AtlasSettings, number: Mapping[str, int], size: int) -> Sample:
    rows = [
        (document.text[start:stop], i, number[_subdomain(document)])
        for i, document in enumerate(documents)
        if split_of(document.id) == "judge"
        for start, stop in chunk_text(document.text, settings.chunk_tokens, settings.chunk_chars)
    ]
    chosen = np.sort(np.random.default_rng(0).permutation(len(rows))[:size])
    texts, owner, subdomain = zip(*(rows[i] for i in chosen), strict=True)
    return Sample(list(texts), np.array(owner), np.array(subdomain))


@dataclass(frozen=True)
class Struck:
    """One concept's judged chunks with its tags struck out: vectors for head and for centroid, and the truth."""

    concept: int
    vectors: NDArray[np.float32]
    tag_vectors: NDArray[np.float32]
    carries: NDArray[np.bool_]


def evidence_labels(given: Given, fitted: FittedAnnotator) -> list[NDArray[np.int64]]:
    """The judged chunks that evidence labels with each concept."""
    reading = fitted.annotator.reader.read(given.sample.texts)
    rows = chunk_vectors(reading.weighted, given.encoded.space.vectors)
    scores = given.evidence.detector.scores(reading.weighted, rows).tocsc()
    out = []
    for c, threshold in enumerate(given.evidence.thresholds):
        at = slice(scores.indptr[c], scores.indptr[c + 1])
        out.append(np.sort(scores.indices[at][scores.data[at] >= threshold]).astype(np.int64))
    return out


def struck(given: Given, fitted: FittedAnnotator, truth: Sequence[NDArray[np.int64]]) -> Iterator[Struck]:
    """Each concept's positives and the common negatives, every member tag struck out of the text."""
    reader, space = fitted.annotator.reader, given.encoded.space
    texts = given.sample.texts
    whole = reader.read(texts)
    negatives = np.sort(np.random.default_rng(1).permutation(len(texts))[:NUM_NEGATIVES])
    for c, carried in enumerate(truth):
        if len(carried) < MIN_POSITIVES:
            continue
        positives = np.sort(np.random.default_rng([2, c]).permutation(carried)[:MAX_POSITIVES])
        rows = np.concatenate([positives, np.setdiff1d(negatives, carried)])
        pattern = tag_pattern([given.tags[tag] for tag in given.evidence.detector.member_ids(c)])
        changed = [(i, blank(texts[row], pattern)) for i, row in enumerate(rows)]
        changed = [(i, text) for i, text in changed if text != texts[rows[i]]]
        again = reader.read([text for _, text in changed])
        places = [i for i, _ in changed]
        vectors = whole.vectors[rows].copy()
        vectors[places] = again.vectors
        tags = chunk_vectors(whole.weighted[rows], space.vectors)
        tags[places] = chunk_vectors(again.weighted, space.vectors)
        yield Struck(c, vectors, tags, np.arange(len(rows)) < len(positives))


def interval(values: NDArray[np.float64], seed: int = 0) -> tuple[float, float]:
    """95 % bootstrap interval of a mean over concepts."""
    means = np.random.default_rng(seed).choice(values, (BOOTSTRAPS, len(values))).mean(1)
    low, high = np.percentile(means, [2.5, 97.5])
    return float(low), float(high)


def aucs(given: Given, fitted: FittedAnnotator, blanked: Sequence[Struck]) -> dict[str, NDArray[np.float64]]:
    """Per concept: AUC of the head, of the centroid among tags, of the mean labelled chunk, and recall of the head."""
    heads, detector = fitted.annotator.heads, given.evidence.detector
    found: dict[str, list[float]] = {name: [] for name in ("head", "centroid", "mean_chunk", "recall")}
    for one in blanked:
        logits = heads.logits(one.vectors, one.concept)
        labelled = given.evidence.labelled[one.concept]
        mean = unit((given.encoded.rows[labelled].mean(0) - given.encoded.rows.mean(0))[None])[0]
        found["head"].append(roc_auc_score(one.carries, logits))
        found["centroid"].append(roc_auc_score(one.carries, one.tag_vectors @ detector.centroids[one.concept]))
        found["mean_chunk"].append(roc_auc_score(one.carries, one.tag_vectors @ mean))
        bar = np.quantile(logits[~one.carries], 1 - FALSE_SHARE)
        found["recall"].append(float((logits[one.carries] > bar).mean()))
    return {name: np.array(values) for name, values in found.items()}


def ranking(
    fitted: FittedAnnotator, vectors: NDArray[np.float32], truth: Sequence[NDArray[np.int64]]
) -> tuple[float, float, list[tuple[float, float, int]]]:
    """Mean average precision, ECE, and rows (mean probability, share that carries, pairs) of the heads alone."""
    heads = fitted.annotator.heads
    precisions = []
    total, chance, hits = (np.zeros(BINS) for _ in range(3))
    edges = np.concatenate([[0], np.logspace(-4, 0, BINS)])
    for c, carried in enumerate(truth):
        carries = np.zeros(len(vectors), bool)
        carries[carried] = True
        logits = heads.logits(vectors, c).astype(np.float64)
        prob = 1 / (1 + np.exp(-logits))
        place = np.clip(np.digitize(prob, edges) - 1, 0, BINS - 1)
        total += np.bincount(place, minlength=BINS)
        chance += np.bincount(place, prob, BINS)
        hits += np.bincount(place, carries, BINS)
        if carries.any():
            precisions.append(average_precision_score(carries, logits))
    kept = total > 0
    rows = [(a / n, b / n, int(n)) for a, b, n in zip(chance[kept], hits[kept], total[kept], strict=True)]
    ece = float(np.abs(chance - hits).sum() / total.sum())
    return float(np.mean(precisions)), ece, rows


def purity(labelled: Sequence[NDArray[np.int64]], sample: Sample) -> tuple[float, float, int]:
    """Chance that two of a concept's chunks, of different documents, share a subdomain; for random chunks; concepts."""
    found = []
    for rows in labelled:
        rows = np.random.default_rng(0).permutation(rows)[:400]
        if (share := _same(rows, sample)) is not None:
            found.append(share)
    every = _same(np.random.default_rng(0).permutation(len(sample.texts))[:2_000], sample)
    return float(np.mean(found)), float(every or 0), len(found)


def _same(rows: NDArray[np.int64], sample: Sample) -> float | None:
    documents, subdomains = sample.documents[rows], sample.subdomains[rows]
    is_other = documents[:, None] != documents[None]
    if is_other.sum() < 6:
        return None
    return float((subdomains[:, None] == subdomains[None])[is_other].mean())


def recall_of_subdomains(
    given: Given, fitted_on: Sequence[NDArray[np.int64]], judged: Sequence[NDArray[np.int64]], least: int = 20
) -> tuple[float, float, int]:
    """Precision and recall, on judged chunks, of the concept that fits each subdomain best on training chunks."""
    precision, recall = [], []
    train, sample = given.subdomains, given.sample.subdomains
    sizes = np.bincount(train, minlength=max(train.max(), sample.max()) + 1)
    counts = np.stack([np.bincount(train[rows], minlength=len(sizes)) for rows in fitted_on])
    lengths = np.array([len(rows) for rows in fitted_on])
    for subdomain in np.flatnonzero(np.bincount(sample, minlength=len(sizes)) >= least):
        if sizes[subdomain] < least:
            continue
        both = counts[:, subdomain]
        best = int(np.argmax(2 * both / (lengths + sizes[subdomain])))
        inside = sample[judged[best]] == subdomain
        precision.append(inside.mean() if len(inside) else 0.0)
        recall.append(inside.sum() / (sample == subdomain).sum())
    return float(np.mean(precision)), float(np.mean(recall)), len(recall)
