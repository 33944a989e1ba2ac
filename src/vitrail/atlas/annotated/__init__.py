"""The annotated corpus: chunks with labels, and how they come about on one machine or many (§4.5.1).

Here is what reads and writes it; what makes it is loaded from `annotate`, `engines` and `labelling` where it is used.
"""

from vitrail.atlas.annotated.chunk import Chunk
from vitrail.atlas.annotated.store import AnnotatedCorpus
from vitrail.atlas.annotated.vectors import StoredVectors
from vitrail.atlas.annotated.writer import ChunkWriter

__all__ = ["AnnotatedCorpus", "Chunk", "ChunkWriter", "StoredVectors"]
