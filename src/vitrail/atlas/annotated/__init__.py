"""The annotated corpus: chunks with labels, and how they come about on one machine or many (§4.5.1)."""

from vitrail.atlas.annotated.annotate import annotate_corpus
from vitrail.atlas.annotated.chunk import Chunk
from vitrail.atlas.annotated.engines import Engine, LocalEngine, RayEngine, SlurmEngine
from vitrail.atlas.annotated.labelling import BatchAnnotator
from vitrail.atlas.annotated.store import AnnotatedCorpus
from vitrail.atlas.annotated.vectors import StoredVectors
from vitrail.atlas.annotated.writer import ChunkWriter

__all__ = [
    "AnnotatedCorpus",
    "BatchAnnotator",
    "Chunk",
    "ChunkWriter",
    "Engine",
    "LocalEngine",
    "RayEngine",
    "SlurmEngine",
    "StoredVectors",
    "annotate_corpus",
]
