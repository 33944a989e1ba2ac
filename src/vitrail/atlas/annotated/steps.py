"""The three steps of the datatrove pipeline: cut a shard into chunks, annotate them, write them (§4.5.1).

A task of the pipeline is one shard (its rank). Between the steps go Arrow tables of up to four thousand chunks, not
single documents: the annotator works on batches, and a shard's batches are the same wherever it is made.
"""

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice

import pyarrow as pa
import pyarrow.compute as pc

from vitrail.atlas.annotated.chunk import SCHEMA
from vitrail.atlas.annotated.finished import Shelf
from vitrail.atlas.annotated.guide import FieldGuide
from vitrail.atlas.annotated.labelling import BatchAnnotator, vectors_of
from vitrail.atlas.annotated.shards import Shard
from vitrail.atlas.annotated.store import ROW_GROUP
from vitrail.atlas.annotated.writer import PartWriter
from vitrail.atlas.settings import AtlasSettings
from vitrail.corpus import Document, chunk_text, split_of

SLAB_CHUNKS = 4 * ROW_GROUP
CHUNKS_NAME, VECTORS_NAME = "chunks.parquet", "vectors.npy"

_CUT = pa.schema([field for field in SCHEMA if field.name != "labels"])


@dataclass(frozen=True)
class CutShard:
    """Reads the documents of a shard and cuts them into chunks.

    Attributes:
        shards: all of the corpus.
        settings: how long a chunk is.
    """

    shards: tuple[Shard, ...]
    settings: AtlasSettings

    def __call__(self, data: object, rank: int, world_size: int) -> Iterator[pa.Table]:
        """Cut one shard.

        Args:
            data: nothing; this is the first step.
            rank: number of the shard.
            world_size: how many there are.

        Yields:
            tables of chunks without labels.
        """
        records = (record for document in self.shards[rank].documents() for record in self._records(document))
        while slab := list(islice(records, SLAB_CHUNKS)):
            yield pa.table(dict(zip(_CUT.names, zip(*slab, strict=True), strict=True)), schema=_CUT)

    def _records(self, document: Document) -> Iterator[tuple[object, ...]]:
        split = split_of(document.id)
        for start, stop in chunk_text(document.text, self.settings.chunk_tokens, self.settings.chunk_chars):
            yield (
                f"{document.id}:{start}",
                document.id,
                start,
                stop,
                document.text[start:stop],
                document.source,
                document.license,
                document.title,
                document.domain,
                split,
            )


@dataclass(frozen=True)
class AnnotateChunks:
    """Adds labels and vectors.

    Attributes:
        annotate: table to table.
    """

    annotate: BatchAnnotator

    def __call__(self, data: Iterable[pa.Table], rank: int, world_size: int) -> Iterator[pa.Table]:
        """Annotate the tables of one shard.

        Args:
            data: tables of chunks.
            rank: number of the shard.
            world_size: how many there are.

        Yields:
            the tables, with labels and vectors.
        """
        yield from map(self.annotate, data)


@dataclass(frozen=True)
class WriteShard:
    """Writes a shard: chunks, vectors, its part of the field guide, and the marker.

    Attributes:
        shelf: where shards go, seen by every machine.
        annotate: knows the width of the vectors.
    """

    shelf: Shelf
    annotate: BatchAnnotator

    def __call__(self, data: Iterable[pa.Table], rank: int, world_size: int) -> None:
        """Write one shard; what goes wrong in any step goes wrong here, and is recorded.

        Args:
            data: annotated tables.
            rank: number of the shard.
            world_size: how many there are.
        """
        guide, counts = FieldGuide(), Counter[str]()
        with self.shelf.writing(rank) as writing:
            chunks, vectors = writing.folder / CHUNKS_NAME, writing.folder / VECTORS_NAME
            with PartWriter(chunks, vectors, self.annotate.width) as part:
                for table in data:
                    guide.add(table, part.num_chunks)
                    counts.update(_counts(table))
                    part.add(table.select(SCHEMA.names), vectors_of(table))
            guide.save(writing.folder)
            writing.counts.update(counts)


def _counts(table: pa.Table) -> dict[str, int]:
    sizes = pc.list_value_length(table["labels"])
    splits = table["split"].value_counts().to_pylist()
    return {
        "chunks": len(table),
        "labels": pc.sum(sizes).as_py(),
        "unlabelled_chunks": pc.sum(pc.equal(sizes, 0)).as_py(),
        **{f"{split['values']}_chunks": split["counts"] for split in splits},
    }
