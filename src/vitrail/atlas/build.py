"""Building an atlas: training chunks → tags → clusters → concepts → annotator → cards (§4.2).

Only documents of split "train" and, for calibration, "heldout" are read. Everything runs on sorted inputs and one
thread where a sum could change with the order: the same documents give the same bytes.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import faiss
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from threadpoolctl import threadpool_limits

from vitrail.artifacts import Manifest, Stage, content_id, read_manifest
from vitrail.atlas.annotator import TAGS_NAME, Annotator
from vitrail.atlas.annotator.fit import Evidence, FitInputs, fit_annotator
from vitrail.atlas.annotator.storing import make_encoder
from vitrail.atlas.concepts.deciding import Concepts, decide
from vitrail.atlas.concepts.describing import Sayings, make_library, say_from_tags
from vitrail.atlas.concepts.encoder import minilm
from vitrail.atlas.concepts.finding import CLUSTERS, Found, find_concepts
from vitrail.atlas.concepts.llm_naming import say_by_llm
from vitrail.atlas.concepts.own import OwnConcept
from vitrail.atlas.concepts.placing import place
from vitrail.atlas.concepts.space import Encoded, encode
from vitrail.atlas.concepts.starter import in_text, starter_concepts
from vitrail.atlas.library import CLUSTERS_NAME, LIBRARY_NAME, ConceptLibrary
from vitrail.atlas.llm import ANSWERS_NAME, Asker, Journal
from vitrail.atlas.resources import Resources
from vitrail.atlas.sample import MIN_CONCEPTS, Chunks, gather_chunks, too_small
from vitrail.atlas.settings import AtlasSettings
from vitrail.atlas.tags.endpoint import EndpointTagger, tag_with_endpoint
from vitrail.atlas.tags.tagging import Tagging, min_chunks_of, tag_chunks
from vitrail.corpus import Corpus
from vitrail.errors import ConfigError, CorpusError

KIND = "atlas"


@dataclass(frozen=True)
class Atlas:
    """A fitted atlas in memory."""

    library: ConceptLibrary
    annotator: Annotator
    tag_table: pa.Table
    cluster_table: pa.Table

    def write(self, folder: Path) -> None:
        """Write its files.

        Args:
            folder: the artifact directory.
        """
        self.library.save(folder / LIBRARY_NAME)
        pq.write_table(self.tag_table, folder / TAGS_NAME, compression="zstd")
        pq.write_table(self.cluster_table, folder / CLUSTERS_NAME, compression="zstd")
        self.annotator.save(folder)


def build_atlas(corpus_dir: Path, out: Path, settings: AtlasSettings, resources: Resources | None = None) -> Manifest:
    """Build the atlas of a corpus (kind `atlas`).

    Args:
        corpus_dir: corpus directory; documents of splits "train" and "heldout" are used.
        out: directory to be made.
        settings: sizes, methods and seed.
        resources: processes, cache, server of a language model.

    Returns:
        the manifest; counts `chunks`, `tags`, `clusters`, `concepts`, and what became of questions to a language model.

    Raises:
        CorpusError: too little text for four concepts.
        ConfigError: a decision about a concept that is gone, no server for the language model, or the setting `given`.
        RunFailed: the server is gone or too many of its answers are of no use; answers are kept.
        ArtifactError: `corpus_dir` is not a corpus, or `out` is something else.
    """
    resources = resources or Resources()
    if settings.given:
        raise ConfigError("setting 'given' is for atlases that `vitrail atlas import` makes; leave it out")
    stage = Stage(out, KIND, settings.model_dump(mode="json"), {"corpus": corpus_dir})
    if stage.is_done:
        return read_manifest(out, KIND)
    corpus = Corpus.open(corpus_dir)
    with stage.write() as writing:  # from here on, so that a place that cannot be written to is known at once
        kept = replace(resources, cache=resources.cache or writing.work)
        chunks = gather_chunks(corpus.documents(), settings)
        heldout = gather_chunks(corpus.documents(), settings, "heldout")
        with _asker(settings, kept) as asker:
            atlas = fit_atlas(chunks, heldout.texts, settings, kept, asker)
            writing.counts.update(asker.tally.counts() if asker else {})
        atlas.write(writing.dir)
        writing.counts.update(
            chunks=len(chunks.texts),
            tags=atlas.tag_table.num_rows,
            clusters=atlas.cluster_table.num_rows,
            concepts=atlas.library.num_known,
        )
    return read_manifest(out, KIND)


@contextmanager
def _asker(settings: AtlasSettings, resources: Resources) -> Iterator[Asker | None]:
    """Who puts questions to the language model; none where the settings ask for none."""
    if settings.llm is None or "endpoint" not in (settings.tagger, settings.namer):
        yield None
        return
    if resources.endpoint is None or resources.cache is None:
        raise ConfigError("tagger or namer is 'endpoint', but no server is named; give --endpoint.url http://HOST/v1")
    with Journal(resources.cache / ANSWERS_NAME) as journal:
        yield Asker(settings.llm, resources.endpoint, journal, resources.say)


def fit_atlas(
    chunks: Chunks,
    heldout: Sequence[str],
    settings: AtlasSettings,
    resources: Resources,
    asker: Asker | None,
) -> Atlas:
    """Fit an atlas to chunks.

    Args:
        chunks: in a fixed order.
        heldout: chunks of other documents, for calibration.
        settings: sizes, methods and seed.
        resources: processes, cache, server.
        asker: of the language model, where the settings ask for one.

    Returns:
        the atlas.

    Raises:
        CorpusError: fewer than four concepts can be found.
        ConfigError: a decision about a concept that is gone.
    """
    with _one_thread():
        tagging = _tags(chunks, settings, asker)
        if len(tagging.table.tags) < 4 * MIN_CONCEPTS:
            raise CorpusError(too_small(len(chunks.texts), 0, settings))
        encoded = encode(tagging, chunks, settings.seed, settings.tag_encoder, resources.cache)
        found = find_concepts(encoded, tagging, chunks, settings)
        concepts = _concepts(found, encoded, tagging, chunks, settings, resources, asker)
        clusters = found.table(tagging.table.tags, concepts.evidence.detector)
        return _finished(concepts, heldout, encoded, tagging, chunks, settings, resources, clusters)


@contextmanager
def _one_thread() -> Iterator[None]:
    """No sum is split over threads, so that their number cannot change a bit.

    PyTorch keeps its threads: all that it computes here are vectors of MiniLM, which gives each thread whole batches.
    """
    num_threads, num_torch_threads = faiss.omp_get_max_threads(), torch.get_num_threads()
    faiss.omp_set_num_threads(1)
    try:
        with threadpool_limits(1):
            torch.set_num_threads(num_torch_threads)
            yield
    finally:
        faiss.omp_set_num_threads(num_threads)


def _tags(chunks: Chunks, settings: AtlasSettings, asker: Asker | None) -> Tagging:
    tagging = tag_chunks(chunks.texts, settings.max_tags)
    if settings.tagger == "embedded" or asker is None or settings.llm is None:
        return tagging
    return tag_with_endpoint(
        chunks.texts,
        tagging,
        EndpointTagger(asker, settings.llm.tags, settings.llm.chunks_per_request),
        min_chunks=min_chunks_of(len(chunks.texts)),
        max_tags=settings.max_tags,
    )


def _concepts(
    found: Found,
    encoded: Encoded,
    tagging: Tagging,
    chunks: Chunks,
    settings: AtlasSettings,
    resources: Resources,
    asker: Asker | None,
) -> Concepts:
    """What the annotator is fitted to: found concepts with names, the starter set, and what people decided."""
    selection = found.selection
    own = in_text(starter_concepts(), chunks.texts) if settings.starter else []
    taken = [concept.name for concept in own]
    said = say_from_tags(found.detector, selection.labelled, encoded.space, tagging, chunks, taken=taken)
    if settings.namer == "endpoint" and asker is not None and settings.llm is not None:
        said = say_by_llm(said, found, encoded, tagging, chunks, asker, settings.llm.concept, taken)
    evidence = Evidence(found.detector, selection.thresholds, selection.labelled, said.kinds)
    concepts = Concepts(evidence, said, own)
    decided = decide(concepts, settings.decisions, encoded, tagging, chunks, settings, resources.say)
    if not decided.said.names and not decided.own:
        raise ConfigError("the decisions leave no concept in the atlas; keep at least one")
    return decided


def _finished(
    concepts: Concepts,
    heldout: Sequence[str],
    encoded: Encoded,
    tagging: Tagging,
    chunks: Chunks,
    settings: AtlasSettings,
    resources: Resources,
    clusters: pa.Table,
) -> Atlas:
    """Annotator, cards and their places in the taxonomy."""
    encoder = make_encoder(settings.encoder, encoded.space.vectors, resources.endpoint)
    inputs = FitInputs(chunks.texts, heldout, tagging.table.tags, encoded, concepts.evidence, concepts.own)
    fitted = fit_annotator(inputs, encoder, settings)
    for concept, rows in zip(concepts.own, fitted.labelled[len(concepts.said.names) :], strict=True):
        if not len(rows):
            resources.say(
                f"'{concept.name}' is on none of the {len(chunks.texts):,} chunks that the atlas is built from"
            )
    thresholds = fitted.annotator.scoring.thresholds
    library = make_library(concepts.said, concepts.own, fitted.labelled, thresholds, chunks)
    paths = place(library.cards, minilm().encode)
    library = ConceptLibrary([replace(card, path=path) for card, path in zip(library.cards, paths, strict=True)])
    return Atlas(library, fitted.annotator, _tag_table(encoded, tagging, fitted.annotator), clusters)


def _tag_table(encoded: Encoded, tagging: Tagging, annotator: Annotator) -> pa.Table:
    table = tagging.table
    concept = np.full(len(table.tags), -1, np.int32)
    for concept_id in range(annotator.num_concepts):
        concept[annotator.detector.member_ids(concept_id)] = concept_id
    return pa.table(
        {
            "tag": list(table.tags),
            "display": list(table.display),
            "num_chunks": encoded.space.num_chunks,
            "specificity": encoded.space.specificity.astype(np.float32),
            "concept_id": pa.array(concept, mask=concept < 0),
        }
    )


def atlas_of_own(
    own: Sequence[OwnConcept],
    texts: Sequence[str],
    settings: AtlasSettings,
    out: Path,
    resources: Resources | None = None,
) -> Manifest:
    """An atlas (kind `atlas`) of concepts that people gave, with nothing found.

    Args:
        own: the concepts, with examples or phrases.
        texts: among which they are learnt: the examples, and others if there are.
        settings: sizes, methods and seed.
        out: directory to be made.
        resources: the server of embeddings, where an encoder asks one.

    Returns:
        the manifest.

    Raises:
        CorpusError: the texts hold no tags, or a concept of which nothing is known.
        ArtifactError: `out` is something else.
    """
    unique = sorted(set(texts))
    given = content_id({"own": [concept.model_dump(mode="json") for concept in own], "texts": unique})
    settings = settings.model_copy(update={"given": given})
    stage = Stage(out, KIND, settings.model_dump(mode="json"), {})
    if stage.is_done:
        return read_manifest(out, KIND)
    with stage.write() as writing, _one_thread():
        chunks = Chunks(unique, np.arange(len(unique)), np.zeros(len(unique), np.int64), [""])
        tagging = tag_chunks(unique, settings.max_tags)
        if len(tagging.table.tags) < 2:
            raise CorpusError(f"{out}: the {len(unique)} texts share no phrases; give more, or longer, texts")
        encoded = encode(tagging, chunks, settings.seed, settings.tag_encoder, writing.work)
        evidence = Evidence.none(len(tagging.table.tags), encoded.space.vectors.shape[1])
        concepts = Concepts(evidence, Sayings([], [], [], []), list(own))
        atlas = _finished(
            concepts,
            [],
            encoded,
            tagging,
            chunks,
            settings,
            resources or Resources(),
            CLUSTERS.empty_table(),
        )
        atlas.write(writing.dir)
        writing.counts.update(chunks=len(unique), tags=atlas.tag_table.num_rows, clusters=0, concepts=len(own))
    return read_manifest(out, KIND)
