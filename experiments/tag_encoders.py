"""Which vectors of tags make the better concepts: meaning, company, or both (§4.2.2 leaves the encoder open).

    python experiments/tag_encoders.py CORPUS [--concepts 512] [--chunks 24000] [--seeds 0 1 2]
        [--cache DIR] [--out docs/results/tag_encoders.csv]

One library per encoder and seed is built from the training documents of a corpus whose documents name a
`subdomain`. Judged on documents it never saw, by three things that no encoder was fitted to:

- purity: of the chunks that carry a concept, the share in its two commonest subdomains, against the same after the
  labels were dealt out at random (mean over concepts; `lift` is their ratio);
- coherence: normalised pointwise mutual information of a concept's five commonest tags within a chunk (-1..1);
- prediction: each chunk is cut in the middle; the cosine of the first half's vector tells whether a member tag
  stands in the second half (AUC, mean over concepts).

Intervals are 95 %, by resampling concepts. `concepts` is how many of those wanted were sound. One row a run.
"""

import argparse
import time
from collections import Counter
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import Any, get_args

import faiss
import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array
from sklearn.metrics import roc_auc_score
from tables import add_row
from threadpoolctl import threadpool_limits

from vitrail.atlas.annotator import Detector
from vitrail.atlas.concepts.finding import find_concepts
from vitrail.atlas.concepts.geometry import chunk_vectors, count_matrix, tf_idf
from vitrail.atlas.concepts.space import VectorKind, encode
from vitrail.atlas.sample import Chunks, gather_chunks
from vitrail.atlas.settings import AtlasSettings
from vitrail.atlas.tags import Tagger
from vitrail.atlas.tags.tagging import Tagging, tag_chunks
from vitrail.corpus import Corpus, chunk_text, split_of

COLUMNS = [
    "encoder",
    "seed",
    "wanted",
    "concepts",
    "purity",
    "purity_low",
    "purity_high",
    "purity_chance",
    "lift",
    "coherence",
    "coherence_low",
    "coherence_high",
    "prediction",
    "prediction_low",
    "prediction_high",
    "seconds",
]
TOP_TAGS, MIN_HELD, MAX_HELDOUT = 5, 10, 12_000


@dataclass(frozen=True)
class HeldOut:
    """Chunks that no library was built from, with the number of their subdomain."""

    texts: list[str]
    subdomains: NDArray[np.int64]


def held_out(corpus: Corpus, settings: AtlasSettings) -> HeldOut:
    """Held-out chunks whose documents name a subdomain."""
    texts: list[str] = []
    names: list[str] = []
    for document in corpus.documents():
        name = (document.metadata or {}).get("subdomain")
        if name is None or split_of(document.id) == "train":
            continue
        spans = chunk_text(document.text, settings.chunk_tokens, settings.chunk_chars)
        texts += [document.text[start:stop] for start, stop in spans]
        names += [f"{document.domain}/{name}"] * len(spans)
        if len(texts) >= MAX_HELDOUT:
            break
    if not texts:
        raise SystemExit("the corpus has no held-out documents that name a subdomain in their metadata")
    return HeldOut(texts, np.unique(names, return_inverse=True)[1].astype(np.int64))


def counts_of(texts: list[str], tags: tuple[str, ...]) -> csr_array:
    """Tags of texts that the library was not built from."""
    tagger = Tagger(tags)
    return count_matrix([[occurrence.tag for occurrence in tagger.tag(text)] for text in texts], len(tags))


def purity(labels: csr_array, thresholds: NDArray[Any], subdomains: NDArray[np.int64]) -> list[float]:
    """Share of each concept's chunks that lies in its two commonest subdomains."""
    by_concept = labels.tocsc()
    out = []
    for concept, threshold in enumerate(thresholds):
        column = slice(by_concept.indptr[concept], by_concept.indptr[concept + 1])
        rows = by_concept.indices[column][by_concept.data[column] >= threshold]
        if len(rows) >= MIN_HELD:
            top = Counter(subdomains[rows].tolist()).most_common(2)
            out.append(sum(n for _, n in top) / len(rows))
    return out


def coherence(detector: Detector, counts: csr_array) -> list[float]:
    """NPMI of the commonest tags of each concept."""
    presence = (counts > 0).astype(np.float64).tocsc()
    share = np.asarray(presence.sum(0)).ravel() / presence.shape[0]
    out = []
    for concept in range(len(detector.mean)):
        tags = detector.member_ids(concept)
        top = tags[np.argsort(-share[tags], kind="stable")[:TOP_TAGS]]
        pairs = [(a, b) for a, b in combinations(top.tolist(), 2) if share[a] > 0 and share[b] > 0]
        both = [float((presence[:, [a]].multiply(presence[:, [b]])).sum()) / presence.shape[0] for a, b in pairs]
        if pairs:
            out.append(float(np.mean([_npmi(p, share[a] * share[b]) for p, (a, b) in zip(both, pairs, strict=True)])))
    return out


def _npmi(together: float, chance: float) -> float:
    return -1.0 if together == 0 else float(np.log(together / chance) / -np.log(together))


def prediction(
    detector: Detector, rarity: NDArray[np.float32], vectors: NDArray[np.float32], halves: list[csr_array]
) -> list[float]:
    """How well the first half of a chunk tells which concepts' tags stand in the second: AUC of each concept."""
    first = chunk_vectors(tf_idf(halves[0], rarity), vectors)
    stands = ((halves[1] @ (detector.members > 0).astype(np.float32)) > 0).toarray()
    cosine = first @ detector.centroids.T
    counts = stands.sum(0)
    return [float(roc_auc_score(stands[:, c], cosine[:, c])) for c in np.flatnonzero(counts >= MIN_HELD).tolist()]


def with_interval(values: list[float], seed: int) -> tuple[float, float, float]:
    """Mean, and the 95 % interval by resampling."""
    drawn = np.random.default_rng(seed).choice(values, (1000, len(values))).mean(1)
    return float(np.mean(values)), float(np.percentile(drawn, 2.5)), float(np.percentile(drawn, 97.5))


def measure(
    name: VectorKind,
    corpus_chunks: Chunks,
    tagging: Tagging,
    held: HeldOut,
    settings: AtlasSettings,
    cache: Path | None,
) -> dict[str, Any]:
    """One row of the table."""
    started = time.perf_counter()
    encoded = encode(tagging, corpus_chunks, settings.seed, name, cache)
    found = find_concepts(encoded, tagging, corpus_chunks, settings)
    detector, selection = found.detector, found.selection
    seconds = time.perf_counter() - started
    tags = tagging.table.tags
    counts = counts_of(held.texts, tags)
    rows = chunk_vectors(weighted := tf_idf(counts, encoded.rarity), encoded.space.vectors)
    labels = detector.scores(weighted, rows)
    dealt = np.random.default_rng(settings.seed).permutation(held.subdomains)
    halves = [
        counts_of([text[: len(text) // 2] for text in held.texts], tags),
        counts_of([text[len(text) // 2 :] for text in held.texts], tags),
    ]
    row: dict[str, Any] = {"encoder": name, "seed": settings.seed, "wanted": settings.num_concepts}
    row |= {"concepts": len(selection.kept), "seconds": seconds}
    for column, values in (
        ("purity", purity(labels, selection.thresholds, held.subdomains)),
        ("coherence", coherence(detector, counts)),
        ("prediction", prediction(detector, encoded.rarity, encoded.space.vectors, halves)),
    ):
        row[column], row[f"{column}_low"], row[f"{column}_high"] = with_interval(values, settings.seed)
    row["purity_chance"] = float(np.mean(purity(labels, selection.thresholds, dealt)))
    row["lift"] = row["purity"] / row["purity_chance"]
    return row


def main() -> None:
    """One row for each encoder and seed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("corpus", type=Path)
    parser.add_argument("--concepts", type=int, default=512)
    parser.add_argument("--chunks", type=int, default=40_000)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--encoders", nargs="+", default=list(get_args(VectorKind)), choices=get_args(VectorKind))
    parser.add_argument("--cache", type=Path, help="folder that keeps vectors of tags between runs")
    parser.add_argument("--out", type=Path, default=Path("docs/results/tag_encoders.csv"))
    options = parser.parse_args()
    faiss.omp_set_num_threads(1)
    with threadpool_limits(1):
        settings = AtlasSettings(num_concepts=options.concepts, max_chunks=options.chunks)
        corpus = Corpus.open(options.corpus)
        chunks = gather_chunks(corpus.documents(), settings)
        held = held_out(corpus, settings)
        tagging = tag_chunks(chunks.texts, settings.max_tags)
        for name in options.encoders:
            for seed in options.seeds:
                row = measure(name, chunks, tagging, held, settings.model_copy(update={"seed": seed}), options.cache)
                add_row(options.out, COLUMNS, row)
                print({column: row[column] for column in COLUMNS}, flush=True)


if __name__ == "__main__":
    main()
