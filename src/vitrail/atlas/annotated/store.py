"""The annotated corpus: every chunk with labels, spans, source, licence and its vector (design §8).

It lies in parts: `chunks/part-*.parquet` holds chunks in row groups of a thousand, `embeddings/part-*.npy` their
vectors in half precision, in the same order; `parts.parquet` says how many chunks each part has. Parts may have any
size, so that what many machines wrote becomes one corpus without a copy. All is read piecewise, memory stays flat.
`field_guide.parquet` shows each concept by its best chunks, `cooccurrence.parquet` counts pairs of concepts.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from vitrail.artifacts import Manifest, file_sha256, read_whole
from vitrail.atlas.annotated.chunk import SCHEMA, Chunk, chunk_of
from vitrail.atlas.annotated.vectors import StoredVectors
from vitrail.atlas.library import ConceptLibrary
from vitrail.errors import ArtifactError

KIND = "annotated"
ROW_GROUP = 1_000
PARTS_NAME = "parts.parquet"


def chunks_name(part: int) -> str:
    """Where the chunks of a part lie.

    Args:
        part: its number.

    Returns:
        path inside the artifact.
    """
    return f"chunks/part-{part:05d}.parquet"


def vectors_name(part: int) -> str:
    """Where the vectors of a part lie.

    Args:
        part: its number.

    Returns:
        path inside the artifact.
    """
    return f"embeddings/part-{part:05d}.npy"


class AnnotatedCorpus:
    """An annotated corpus on disk."""

    def __init__(self, path: Path, manifest: Manifest):
        """Use `AnnotatedCorpus.open`.

        Args:
            path: the artifact directory.
            manifest: its manifest.

        Raises:
            ArtifactError: the table of parts is missing or damaged.
        """
        self.path = path
        self.manifest = manifest
        sizes = _part_sizes(path / PARTS_NAME)
        self._first_rows = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
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

        Cost: the tables beside the chunks are hashed, since their numbers point into them; about 0.1 s for 100 MB.
        """
        manifest = read_whole(path, KIND)
        for name, sha256 in manifest.files.items():
            if "/" not in name and file_sha256(path / name) != sha256:
                raise ArtifactError(
                    f"{path / name}: damaged (not the bytes it was made with); make the annotated corpus again"
                )
        return cls(path, manifest)

    @property
    def num_chunks(self) -> int:
        """R, how many chunks there are."""
        return int(self._first_rows[-1])

    def library(self) -> ConceptLibrary:
        """The concepts that labels refer to."""
        return ConceptLibrary.load(self.path)

    @property
    def num_parts(self) -> int:
        """How many files the chunks lie in."""
        return len(self._first_rows) - 1

    @contextmanager
    def part(self, number: int) -> Iterator[pq.ParquetFile]:
        """One file of chunks, opened; for those who read whole columns.

        Args:
            number: 0, 1, 2, … in the order of the rows.

        Yields:
            a table of `SCHEMA`, of as many rows as the part has.

        Raises:
            ArtifactError: missing or damaged, be it only in what is read of it.
        """
        path = self.path / chunks_name(number)
        try:
            with pq.ParquetFile(path) as file:
                if not file.schema_arrow.equals(SCHEMA):
                    raise ValueError("other columns than chunks have")
                size = int(self._first_rows[number + 1] - self._first_rows[number])
                if file.metadata.num_rows != size:
                    raise ValueError(f"{file.metadata.num_rows:,} chunks instead of {size:,}")
                yield file
        except (OSError, ValueError, pa.ArrowException) as error:
            problem = " ".join(str(error).split())
            raise ArtifactError(f"{path}: damaged or missing ({problem}); make the annotated corpus again") from error

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
        row = start
        while row < stop:
            part, group, place = self._place(row)
            for record in self._group(part, group).slice(place, stop - row).to_pylist():
                yield chunk_of(row, record)
                row += 1

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
        part, group, place = self._place(row)
        return chunk_of(row, self._read_group(part, group).slice(place, 1).to_pylist()[0])

    def embeddings(self) -> StoredVectors:
        """Unit vectors of all chunks, memory-mapped.

        Returns:
            [R E] fp16; index it by rows, or make one array of all with `np.asarray`.

        Raises:
            ArtifactError: missing or damaged.
        """
        files = [self.path / vectors_name(part) for part in range(self.num_parts)]
        return StoredVectors(files, self._first_rows)

    def _place(self, row: int) -> tuple[int, int, int]:
        """Part, row group and place within it of a row."""
        part = int(np.searchsorted(self._first_rows, row, side="right")) - 1
        return part, *divmod(row - int(self._first_rows[part]), ROW_GROUP)

    def _group(self, part: int, group: int) -> pa.Table:
        with self.part(part) as file:
            return file.read_row_group(group, SCHEMA.names)


def write_parts(folder: Path, sizes: list[int]) -> None:
    """Write the table of parts.

    Args:
        folder: directory of the artifact.
        sizes: chunks of each part.
    """
    pq.write_table(pa.table({"num_chunks": pa.array(sizes, pa.int64())}), folder / PARTS_NAME, compression="zstd")


def _part_sizes(path: Path) -> list[int]:
    if not path.is_file():
        raise ArtifactError(f"{path}: missing, as where an older vitrail annotated; annotate the corpus again")
    try:
        sizes = pq.read_table(path)["num_chunks"].cast(pa.int64())
        if sizes.null_count or min(sizes.to_pylist(), default=1) < 1:
            raise ValueError("a part without chunks")
        return list(sizes.to_pylist())
    except (OSError, KeyError, ValueError, pa.ArrowException) as error:
        problem = " ".join(str(error).split())
        raise ArtifactError(f"{path}: damaged ({problem}); make the annotated corpus again") from error
