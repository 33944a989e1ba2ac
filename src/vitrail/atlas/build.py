"""Building an atlas: training chunks → tags → clusters → concepts → cards and annotator (§4.2).

Only documents of split "train" are read, so that held-out labels are predictions about text the atlas never
saw. Everything runs on sorted inputs and one thread where a sum could change with the order: the same
documents give the same bytes.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import faiss
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from threadpoolctl import threadpool_limits

from vitrail.artifacts import Manifest, Stage, read_manifest
from vitrail.atlas.annotator import TAGS_NAME, Annotator, Detector
from vitrail.atlas.concepts.clusters import Cluster, cluster_tags, merge_duplicates
from vitrail.atlas.concepts.describing import make_library
from vitrail.atlas.concepts.geometry import unit
from vitrail.atlas.concepts.selection import Selection, select_concepts
from vitrail.atlas.concepts.space import TagSpace, encode
from vitrail.atlas.library import LIBRARY_NAME, ConceptLibrary
from vitrail.atlas.sample import MIN_CONCEPTS, Chunks, gather_chunks, too_small
from vitrail.atlas.settings import AtlasSettings
from vitrail.atlas.tags.phrases import TagTable
from vitrail.atlas.tags.tagging import tag_chunks
from vitrail.corpus import Corpus
from vitrail.errors import CorpusError

KIND = "atlas"


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
    tagging = tag_chunks(chunks.texts, settings.max_tags)
    table = tagging.table
    if len(table.tags) < 4 * MIN_CONCEPTS:
        raise CorpusError(too_small(len(chunks.texts), 0))
    encoded = encode(tagging, chunks, settings.seed)
    space = encoded.space

    found = cluster_tags(space, settings.num_concepts, settings.seed)
    merged = merge_duplicates(space, [cluster for cluster in found if not cluster.fault], settings.seed)
    if len(merged) < MIN_CONCEPTS:
        raise CorpusError(too_small(len(chunks.texts), len(merged)))
    centroids = unit(np.stack([space.mean(cluster.members) for cluster in merged]))
    members = [cluster.members for cluster in merged]
    detector = Detector.fit(space.vectors, centroids, members, tagging.given, encoded.rows)
    names = [[table.tags[tag] for tag in detector.member_ids(i)] for i in range(len(merged))]
    scores = detector.scores(encoded.weighted, encoded.rows)
    selection = select_concepts(merged, names, scores, chunks.documents, settings)
    if len(selection.kept) < MIN_CONCEPTS:
        raise CorpusError(too_small(len(chunks.texts), len(selection.kept)))

    detector = detector.only(selection.kept)
    library = make_library(detector, selection, space, tagging, chunks)
    dropped = [(cluster, cluster.fault) for cluster in found if cluster.fault]
    return Atlas(
        library,
        Annotator(table.tags, encoded.rarity, space.vectors, detector, selection.thresholds, settings.max_labels),
        _tag_table(table, space, detector),
        _cluster_table(merged, selection, dropped, table),
    )


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
