"""The annotated corpus: chunks with labels, and how they come about (§4.5.1)."""

from vitrail.atlas.annotated.annotate import annotate_corpus
from vitrail.atlas.annotated.store import AnnotatedCorpus, Chunk, ChunkWriter

__all__ = ["AnnotatedCorpus", "Chunk", "ChunkWriter", "annotate_corpus"]
