"""Example chunks of concepts, from an annotated corpus's field guide, and a sample of whole documents."""

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from heapq import heappush, heappushpop
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from vitrail.atlas.annotated import AnnotatedCorpus, Chunk
from vitrail.atlas.annotated.guide import GUIDE_NAME
from vitrail.atlas.view.columns import slabs
from vitrail.errors import ArtifactError


def example_rows(folder: Path, limit: int) -> dict[int, list[int]]:
    """Rows of the chunks that show each concept best.

    Args:
        folder: an annotated corpus.
        limit: rows a concept at most.

    Returns:
        concept id → rows, best first.

    Raises:
        ArtifactError: missing or damaged.
    """
    path = folder / GUIDE_NAME
    try:
        table = pq.read_table(path, columns=["concept_id", "rows"]).to_pylist()
    except (OSError, pa.ArrowException) as error:
        problem = " ".join(str(error).split())
        raise ArtifactError(f"{path}: damaged or missing ({problem}); make the annotated corpus again") from error
    return {row["concept_id"]: row["rows"][:limit] for row in table}


def chunks_at(corpus: AnnotatedCorpus, rows: Iterable[int]) -> dict[int, Chunk]:
    """Chunks by row, read in row order, so that no stretch of the corpus is read twice.

    Args:
        corpus: the annotated corpus.
        rows: which; in any order.

    Returns:
        row → chunk.

    Raises:
        ArtifactError: damaged.
    """
    return {row: corpus.chunk(row) for row in sorted(set(rows))}


@dataclass(frozen=True)
class Example:
    """A chunk that carries a concept.

    Attributes:
        text: its text.
        spans: characters where the concept's tags stand.
        score: of the label.
        chunk_id: `DOCUMENT:START`.
        title: of the document.
        source: of the document.
        license: of the document.
    """

    text: str
    spans: tuple[tuple[int, int], ...]
    score: float
    chunk_id: str
    title: str
    source: str
    license: str


def example_of(chunk: Chunk, concept_id: int, decimals: int) -> Example:
    """A chunk as an example of a concept.

    Args:
        chunk: one that carries it.
        concept_id: the concept.
        decimals: places that the score is rounded to.

    Returns:
        the example.
    """
    label = next(label for label in chunk.labels if label.concept_id == concept_id)
    score = round(label.score, decimals)
    return Example(chunk.text, label.spans, score, chunk.chunk_id, chunk.title, chunk.source, chunk.license)


@dataclass(frozen=True)
class Place:
    """A document of the corpus: where its chunks begin, and how many there are."""

    document_id: str
    first_row: int
    num_chunks: int


def sample_documents(corpus: AnnotatedCorpus, count: int, seed: int) -> list[Place]:
    """A random sample of documents that carry at least one label, the same whatever lies beside them.

    Args:
        corpus: the annotated corpus.
        count: how many at most.
        seed: which sample.

    Returns:
        documents in row order.

    Raises:
        ArtifactError: damaged.
    """
    kept: list[tuple[int, str, int, int]] = []
    for slab in slabs(corpus):
        labelled = set(slab.label_documents.tolist())
        row = slab.first_row
        for number, (document_id, size) in enumerate(zip(slab.document_ids, slab.sizes.tolist(), strict=True)):
            if number in labelled:
                entry = (-_rank(document_id, seed), document_id, row, size)
                if len(kept) < count:
                    heappush(kept, entry)
                else:
                    heappushpop(kept, entry)
            row += size
    return sorted((Place(name, row, size) for _, name, row, size in kept), key=lambda place: place.first_row)


def _rank(document_id: str, seed: int) -> int:
    return int.from_bytes(hashlib.sha256(f"{seed}:{document_id}".encode()).digest()[:8])
