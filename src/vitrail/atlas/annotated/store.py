"""The annotated corpus: every chunk with labels, spans, source, licence and its vector (design §8).

`chunks/part-*.parquet` holds the chunks in row groups of a thousand, `embeddings/chunks.npy` their vectors in
half precision, in the same order; both are read piecewise, so memory stays flat. `field_guide.parquet` shows
each concept by its best chunks, `cooccurrence.parquet` counts pairs of concepts on one chunk.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from jaxtyping import Float16
from numpy.typing import NDArray

from vitrail.artifacts import Manifest, read_whole
from vitrail.atlas.library import ConceptLibrary, Label
from vitrail.corpus import Split
from vitrail.errors import ArtifactError

KIND = "annotated"
ROW_GROUP = 1_000
PART_ROWS = 100_000
EMBEDDINGS_NAME = "embeddings/chunks.npy"

_SPAN = pa.struct([("start", pa.int32()), ("stop", pa.int32())])
_LABEL = pa.struct([("concept_id", pa.int32()), ("score", pa.float32()), ("spans", pa.list_(_SPAN))])
SCHEMA = pa.schema(
    [
        ("chunk_id", pa.string()),
        ("document_id", pa.string()),
        ("start", pa.int64()),
        ("stop", pa.int64()),
        ("text", pa.string()),
        ("labels", pa.list_(_LABEL)),
        ("source", pa.string()),
        ("license", pa.string()),
        ("title", pa.string()),
        ("domain", pa.string()),
        ("split", pa.string()),
    ]
)


@dataclass(frozen=True)
class Chunk:
    """A chunk with its labels.

    Attributes:
        row: place in the annotated corpus, and row of its embedding.
        chunk_id: document id and start, `ID:START`.
        document_id: of its document.
        start: first character in the document.
        stop: character after the last.
        text: the characters in between.
        labels: most certain first.
        source: of the document.
        license: of the document.
        title: of the document.
        domain: of the document.
        split: train, heldout or judge.
    """

    row: int
    chunk_id: str
    document_id: str
    start: int
    stop: int
    text: str
    labels: tuple[Label, ...]
    source: str
    license: str
    title: str
    domain: str
    split: Split


class AnnotatedCorpus:
    """An annotated corpus on disk."""

    def __init__(self, path: Path, manifest: Manifest):
        """Use `AnnotatedCorpus.open`.

        Args:
            path: the artifact directory.
            manifest: its manifest.
        """
        self.path = path
        self.manifest = manifest
        self._parts = sorted(path / name for name in manifest.files if name.startswith("chunks/"))
        self._read_group = lru_cache(maxsize=8)(self._group)

    @classmethod
    def open(cls, path: Path) -> "AnnotatedCorpus":
        """Open an annotated corpus.

        Args:
            path: the artifact directory.

        Returns:
            the corpus.

        Raises:
            ArtifactError: not an annotated corpus, or damaged.
        """
        return cls(path, read_whole(path, KIND))

    @property
    def num_chunks(self) -> int:
        """R, how many chunks there are."""
        return self.manifest.counts["chunks"]

    def library(self) -> ConceptLibrary:
        """The concepts that labels refer to."""
        return ConceptLibrary.load(self.path)

    def chunks(self, start: int = 0, stop: int | None = None) -> Iterator[Chunk]:
        """Chunks in row order; memory stays flat, and what lies before the first is not read.

        Args:
            start: first row.
            stop: row after the last; None for all that follow.

        Yields:
            chunks, those of one document together and in reading order.

        Raises:
            ArtifactError: a part is missing or damaged.
        """
        stop = self.num_chunks if stop is None else min(stop, self.num_chunks)
        for first in range(start - start % ROW_GROUP, stop, ROW_GROUP):
            part, inside = divmod(first, PART_ROWS)
            for row, record in enumerate(self._group(part, inside // ROW_GROUP), first):
                if start <= row < stop:
                    yield _chunk(row, record)

    def chunk(self, row: int) -> Chunk:
        """One chunk.

        Args:
            row: 0..R-1.

        Returns:
            the chunk.

        Raises:
            IndexError: no such row.
            ArtifactError: its part is missing or damaged.
        """
        if not 0 <= row < self.num_chunks:
            raise IndexError(f"chunk {row}: the annotated corpus has {self.num_chunks} chunks")
        part, inside = divmod(row, PART_ROWS)
        group, place = divmod(inside, ROW_GROUP)
        return _chunk(row, self._read_group(part, group)[place])

    def embeddings(self) -> Float16[np.ndarray, "R E"]:
        """Unit vectors of all chunks, memory-mapped.

        Returns:
            [R E] fp16.

        Raises:
            ArtifactError: missing or damaged.
        """
        path = self.path / EMBEDDINGS_NAME
        try:
            return np.asarray(np.load(path, mmap_mode="r", allow_pickle=False))
        except (OSError, ValueError) as error:
            raise ArtifactError(f"{path}: damaged or missing ({error}); annotate the corpus again") from error

    def _group(self, part: int, group: int) -> list[dict[str, Any]]:
        try:
            with self._file(part) as file:
                return list(file.read_row_group(group).to_pylist())
        except (OSError, pa.ArrowException) as error:
            raise ArtifactError(f"{self._parts[part]}: damaged ({error}); annotate the corpus again") from error

    def _file(self, part: int) -> pq.ParquetFile:
        try:
            return pq.ParquetFile(self._parts[part])
        except (OSError, pa.ArrowException) as error:
            raise ArtifactError(
                f"{self._parts[part]}: damaged or missing ({error}); annotate the corpus again"
            ) from error


def _chunk(row: int, record: dict[str, Any]) -> Chunk:
    labels = tuple(
        Label(
            label["concept_id"],
            label["score"],
            tuple((span["start"], span["stop"]) for span in label["spans"]),
        )
        for label in record["labels"]
    )
    return Chunk(row=row, **{**record, "labels": labels})


class ChunkWriter:
    """Writes chunks and vectors side by side; closes to a whole corpus."""

    def __init__(self, folder: Path, width: int):
        """Open the files.

        Args:
            folder: directory of the artifact.
            width: E, width of the vectors.
        """
        (folder / "chunks").mkdir()
        (folder / "embeddings").mkdir()
        self._folder = folder
        self._shape = (0, width)
        self._vectors = (folder / EMBEDDINGS_NAME).open("w+b")
        self._write_header()
        self._writer: pq.ParquetWriter | None = None
        self._rows: list[dict[str, Any]] = []

    @property
    def num_chunks(self) -> int:
        """Chunks added so far."""
        return self._shape[0]

    def add(self, chunks: Sequence[Chunk], vectors: NDArray[np.float32]) -> None:
        """Append chunks.

        Args:
            chunks: in row order.
            vectors: [n E] their unit vectors.
        """
        self._vectors.write(vectors.astype("<f2").tobytes())
        for chunk in chunks:
            self._rows.append(_record(chunk))
            self._shape = (self._shape[0] + 1, self._shape[1])
            if len(self._rows) == ROW_GROUP:
                self._flush()

    def close(self) -> None:
        """Write what is left, and the number of vectors."""
        self._flush()
        self._close_part()
        self._vectors.seek(0)
        self._write_header()
        self._vectors.close()

    def _write_header(self) -> None:
        # numpy pads the header so that the number of rows can grow in place.
        header = {"descr": "<f2", "fortran_order": False, "shape": self._shape}
        np.lib.format.write_array_header_1_0(self._vectors, header)

    def _flush(self) -> None:
        if not self._rows:
            return
        if self._writer is None:
            part = (self._shape[0] - 1) // PART_ROWS
            path = self._folder / "chunks" / f"part-{part:05d}.parquet"
            self._writer = pq.ParquetWriter(path, SCHEMA, compression="zstd")
        self._writer.write_table(pa.Table.from_pylist(self._rows, schema=SCHEMA))
        self._rows.clear()
        if self._shape[0] % PART_ROWS == 0:
            self._close_part()

    def _close_part(self) -> None:
        if self._writer is not None:
            self._writer.close()
        self._writer = None


def _record(chunk: Chunk) -> dict[str, Any]:
    labels = [
        {
            "concept_id": label.concept_id,
            "score": label.score,
            "spans": [{"start": start, "stop": stop} for start, stop in label.spans],
        }
        for label in chunk.labels
    ]
    return {**{name: getattr(chunk, name) for name in SCHEMA.names if name != "labels"}, "labels": labels}
