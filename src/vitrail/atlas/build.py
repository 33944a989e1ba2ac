"""Building an atlas: training chunks → tags → clusters → concepts → cards and annotator (§4.2).

Only documents of split "train" are read, so that held-out labels are predictions about text the atlas never
saw. Everything runs on sorted inputs and one thread where a sum could change with the order: the same
documents give the same bytes.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import faiss
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from jaxtyping import Float, Float32
from numpy.typing import NDArray
from scipy.sparse import csc_array, csr_array
from threadpoolctl import threadpool_limits

from vitrail.artifacts import Manifest, Stage, read_manifest
from vitrail.atlas.annotator import TAGS_NAME, Annotator, Detector
from vitrail.atlas.cards import TagUse, WordTable, describe, name_concepts
from vitrail.atlas.clusters import Cluster, TagSpace, cluster_tags, merge_duplicates
from vitrail.atlas.encoder import MiniLM
from vitrail.atlas.geometry import (
    chunk_vectors,
    company,
    count_matrix,
    specificity,
    tag_rarity,
    tag_vectors,
    tf_idf,
    unit,
)
from vitrail.atlas.library import LIBRARY_NAME, Card, ConceptLibrary
from vitrail.atlas.phrases import Tagger, TagTable, select_tags
from vitrail.atlas.selection import Selection, select_concepts
from vitrail.atlas.settings import AtlasSettings
from vitrail.corpus import Corpus, Document, chunk_text, split_of
from vitrail.errors import CorpusError

KIND = "atlas"
MIN_CONCEPTS = 4
MIN_CHUNKS = 50
NUM_TOPICS = 24
"""Coarse topics that stand in for domains where the corpus names none."""


@dataclass(frozen=True)
class Chunks:
    """What an atlas is built from: R chunk texts with the number of their document and domain."""

    texts: list[str]
    documents: NDArray[np.int64]
    domains: NDArray[np.int64]
    domain_names: list[str]


@dataclass(frozen=True)
class Atlas:
    """A fitted atlas in memory."""

    library: ConceptLibrary
    annotator: Annotator
    tag_table: pa.Table
    cluster_table: pa.Table


def build_atlas(corpus_dir: Path, out: Path, settings: AtlasSettings) -> Manifest:
    """Build the atlas of a corpus (kind `atlas`).

    Args:
        corpus_dir: corpus directory; documents of split "train" are used.
        out: directory to be made.
        settings: sizes and seed.

    Returns:
        the manifest; counts `chunks`, `tags`, `clusters`, `concepts`.

    Raises:
        CorpusError: too little text for four concepts.
        ArtifactError: `corpus_dir` is not a corpus, or `out` is something else.
    """
    stage = Stage(out, KIND, settings.model_dump(), {"corpus": corpus_dir})
    if stage.is_done:
        return read_manifest(out, KIND)
    corpus = Corpus.open(corpus_dir)
    with stage.write() as writing:  # from here on, so that a place that cannot be written to is known at once
        chunks = gather_chunks(corpus.documents(), settings)
        atlas = fit_atlas(chunks, settings)
        atlas.library.save(writing.dir / LIBRARY_NAME)
        pq.write_table(atlas.tag_table, writing.dir / TAGS_NAME, compression="zstd")
        pq.write_table(atlas.cluster_table, writing.dir / "clusters.parquet", compression="zstd")
        atlas.annotator.save(writing.dir)
        writing.counts.update(
            chunks=len(chunks.texts),
            tags=len(atlas.annotator.tags),
            clusters=atlas.cluster_table.num_rows,
            concepts=atlas.library.num_known,
        )
    return read_manifest(out, KIND)


def gather_chunks(documents: Iterable[Document], settings: AtlasSettings) -> Chunks:
    """The chunks of the training documents, by document id, up to the wanted number.

    Ids are hashes, so the first documents are a fair sample of all.

    Args:
        documents: in any order; they are sorted by id.
        settings: chunk sizes and how many.

    Returns:
        the chunks.

    Raises:
        CorpusError: fewer than fifty chunks.
    """
    texts: list[str] = []
    owner: list[int] = []
    domain: list[str] = []
    for number, document in enumerate(sorted(documents, key=lambda document: document.id)):
        if split_of(document.id) != "train":
            continue
        spans = chunk_text(document.text, settings.chunk_tokens, settings.chunk_chars)
        if len(texts) + len(spans) > settings.max_chunks:
            break
        texts += [document.text[start:stop] for start, stop in spans]
        owner += [number] * len(spans)
        domain += [document.domain] * len(spans)
    if len(texts) < MIN_CHUNKS:
        raise CorpusError(_too_small(len(texts), 0))
    names = sorted(set(domain))
    place = {name: i for i, name in enumerate(names)}
    _, owner_ids = np.unique(np.array(owner, np.int64), return_inverse=True)
    return Chunks(texts, owner_ids, np.array([place[name] for name in domain], np.int64), names)


def fit_atlas(chunks: Chunks, settings: AtlasSettings) -> Atlas:
    """Fit an atlas to chunks.

    Args:
        chunks: in a fixed order.
        settings: sizes and seed.

    Returns:
        the atlas.

    Raises:
        CorpusError: fewer than four concepts can be found.
    """
    num_threads = faiss.omp_get_max_threads()
    faiss.omp_set_num_threads(1)
    try:
        with threadpool_limits(1):
            return _fit(chunks, settings)
    finally:
        faiss.omp_set_num_threads(num_threads)


def _fit(chunks: Chunks, settings: AtlasSettings) -> Atlas:
    min_chunks = 4 if len(chunks.texts) >= 2_000 else 3
    table = select_tags(chunks.texts, min_chunks, settings.max_tags)
    if len(table.tags) < 4 * MIN_CONCEPTS:
        raise CorpusError(_too_small(len(chunks.texts), 0))
    tagger = Tagger(table.tags)
    counts = count_matrix([[o.tag for o in tagger.tag(text)] for text in chunks.texts], len(table.tags))
    rarity = tag_rarity(counts)
    weighted = tf_idf(counts, rarity)
    vectors = tag_vectors(MiniLM().encode(table.tags), company(weighted, settings.seed))
    rows = chunk_vectors(weighted, vectors)
    space = TagSpace(
        vectors,
        MiniLM.width,
        _spread(counts),
        _specificity(counts, rows, chunks, np.array(table.is_name), settings.seed),
    )

    found = cluster_tags(space, settings.num_concepts, settings.seed)
    sound = [cluster for cluster in found if not cluster.fault]
    merged = merge_duplicates(space, sound, settings.seed)
    if len(merged) < MIN_CONCEPTS:
        raise CorpusError(_too_small(len(chunks.texts), len(merged)))
    centroids = unit(np.stack([space.mean(cluster.members) for cluster in merged]))
    detector = Detector.fit(vectors, centroids, [cluster.members for cluster in merged], counts, rows)
    members = [[table.tags[tag] for tag in detector.member_ids(i)] for i in range(len(merged))]
    selection = select_concepts(merged, members, detector.scores(weighted, rows), chunks.documents, settings)
    if len(selection.kept) < MIN_CONCEPTS:
        raise CorpusError(_too_small(len(chunks.texts), len(selection.kept)))

    detector = detector.only(selection.kept)
    annotator = Annotator(table.tags, rarity, vectors, detector, selection.thresholds, settings.max_labels)
    library = _library(detector, selection, space, table, counts, chunks)
    dropped = [(cluster, cluster.fault) for cluster in found if cluster.fault]
    return Atlas(
        library,
        annotator,
        _tag_table(table, space, detector),
        _cluster_table(merged, selection, dropped, table),
    )


def _spread(counts: csr_array) -> NDArray[np.int64]:
    return np.bincount(counts.indices, minlength=counts.shape[1]).astype(np.int64)


def _specificity(
    counts: csr_array, rows: Float32[np.ndarray, "R E"], chunks: Chunks, is_name: NDArray[np.bool_], seed: int
) -> Float[np.ndarray, " n"]:
    """A tag is specific if it keeps to few documents or to few domains; a piece of a name never is."""
    groups = chunks.domains if len(chunks.domain_names) > 1 else _topics(rows, seed)
    found = np.maximum(specificity(counts, chunks.documents), specificity(counts, groups))
    return np.where(is_name, 0.0, found)


def _topics(rows: Float32[np.ndarray, "R E"], seed: int) -> NDArray[np.int64]:
    kmeans = faiss.Kmeans(
        rows.shape[1],
        min(NUM_TOPICS, len(rows) // 4),
        niter=15,
        spherical=True,
        seed=seed + 1,
        min_points_per_centroid=1,
    )
    kmeans.train(rows)
    return np.asarray((rows @ unit(np.asarray(kmeans.centroids)).T).argmax(1), np.int64)


def _library(
    detector: Detector,
    selection: Selection,
    space: TagSpace,
    table: TagTable,
    counts: csr_array,
    chunks: Chunks,
) -> ConceptLibrary:
    presence = counts.tocsc()
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


def _tag_table(table: TagTable, space: TagSpace, detector: Detector) -> pa.Table:
    concept = np.full(len(table.tags), -1, np.int32)
    for concept_id in range(len(detector.mean)):
        concept[detector.member_ids(concept_id)] = concept_id
    return pa.table(
        {
            "tag": list(table.tags),
            "display": list(table.display),
            "num_chunks": space.num_chunks,
            "specificity": space.specificity.astype(np.float32),
            "concept_id": pa.array(concept, mask=concept < 0),
        }
    )


def _cluster_table(
    merged: Sequence[Cluster], selection: Selection, dropped: Sequence[tuple[Cluster, str]], table: TagTable
) -> pa.Table:
    place = {cluster: concept_id for concept_id, cluster in enumerate(selection.kept)}
    rows: list[tuple[Cluster, str, int | None, int | None]] = [
        (cluster, selection.reasons[i], place.get(i), int(selection.num_chunks[i])) for i, cluster in enumerate(merged)
    ]
    rows += [(cluster, reason, None, None) for cluster, reason in dropped]
    return pa.table(
        {
            "tags": pa.array([[table.tags[t] for t in c.members] for c, *_ in rows], pa.list_(pa.string())),
            "meaning_coherence": pa.array([c.meaning for c, *_ in rows], pa.float32()),
            "company_coherence": pa.array([c.company for c, *_ in rows], pa.float32()),
            "specificity": pa.array([c.specificity for c, *_ in rows], pa.float32()),
            "num_chunks": pa.array([n for *_, n in rows], pa.int64()),
            "concept_id": pa.array([concept for _, _, concept, _ in rows], pa.int32()),
            "dropped": pa.array([reason for _, reason, _, _ in rows], pa.string()),
        }
    )


def _too_small(num_chunks: int, num_concepts: int) -> str:
    return (
        f"the corpus is too small for an atlas: {num_chunks} training chunks give {num_concepts} "
        f"concepts, at least {MIN_CONCEPTS} are needed; add text (hundreds of paragraphs of English prose in "
        "several documents)"
    )
