"""Writing annotated chunks: one part (`PartWriter`), or a whole corpus in parts of equal size (`ChunkWriter`)."""

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from vitrail.atlas.annotated.chunk import SCHEMA, Chunk, table_of
from vitrail.atlas.annotated.store import ROW_GROUP, chunks_name, vectors_name, write_parts

PART_ROWS = 100_000


class PartWriter:
    """Writes chunks and vectors side by side, in two files.

    As a context it closes them to a whole part, or, where the block fails, just lets go of them.
    """

    def __init__(self, chunks: Path, vectors: Path, width: int) -> None:
        """Open the files.

        Args:
            chunks: Parquet file of the chunks.
            vectors: numpy file of their vectors.
            width: E, width of the vectors.
        """
        self._shape = (0, width)
        self._vectors = vectors.open("w+b")
        self._write_header()
        self._chunks = pq.ParquetWriter(chunks, SCHEMA, compression="zstd")
        self._waiting = SCHEMA.empty_table()

    def __enter__(self) -> "PartWriter":
        return self

    def __exit__(self, *failure: object) -> None:
        if failure[0] is None:
            self.close()
            return
        with suppress(OSError):  # the footer may find no room either; what failed is on its way up
            self._chunks.close()
        with suppress(OSError):
            self._vectors.close()

    @property
    def num_chunks(self) -> int:
        """Chunks added so far."""
        return self._shape[0]

    def add(self, table: pa.Table, vectors: NDArray[np.floating]) -> None:
        """Append chunks.

        Args:
            table: of `SCHEMA`, in row order.
            vectors: [n E] their unit vectors.
        """
        assert vectors.shape == (len(table), self._shape[1]), "one vector a chunk, of the width of the part"
        self._vectors.write(vectors.astype("<f2").tobytes())
        self._shape = (self._shape[0] + len(table), self._shape[1])
        self._waiting = pa.concat_tables([self._waiting, table])
        whole = len(self._waiting) - len(self._waiting) % ROW_GROUP
        self._flush(whole)

    def close(self) -> None:
        """Write what is left, and the number of vectors."""
        self._flush(len(self._waiting))
        self._chunks.close()
        self._vectors.seek(0)
        self._write_header()
        self._vectors.close()

    def _write_header(self) -> None:
        # numpy pads the header so that the number of rows can grow in place.
        header = {"descr": "<f2", "fortran_order": False, "shape": self._shape}
        np.lib.format.write_array_header_1_0(self._vectors, header)

    def _flush(self, num_rows: int) -> None:
        if num_rows:
            self._chunks.write_table(self._waiting.slice(0, num_rows), row_group_size=ROW_GROUP)
            self._waiting = self._waiting.slice(num_rows)


class ChunkWriter:
    """Writes chunks and vectors of a whole corpus, in parts of a hundred thousand; closes to a whole corpus."""

    def __init__(self, folder: Path, width: int) -> None:
        """Make the folders.

        Args:
            folder: directory of the artifact.
            width: E, width of the vectors; 0 where there are none.
        """
        (folder / "chunks").mkdir()
        (folder / "embeddings").mkdir()
        self._folder, self._width = folder, width
        self._sizes: list[int] = []
        self._part: PartWriter | None = None

    @property
    def num_chunks(self) -> int:
        """Chunks added so far."""
        return sum(self._sizes) + (self._part.num_chunks if self._part else 0)

    def add(self, chunks: Sequence[Chunk], vectors: NDArray[np.float32]) -> None:
        """Append chunks.

        Args:
            chunks: in row order.
            vectors: [n E] their unit vectors.
        """
        while chunks:
            part = self._part = self._part or self._begin()
            room = PART_ROWS - part.num_chunks
            part.add(table_of(chunks[:room]), vectors[:room])
            chunks, vectors = chunks[room:], vectors[room:]
            if part.num_chunks == PART_ROWS:
                self._end(part)

    def close(self) -> None:
        """Write what is left, and the table of parts."""
        if self._part:
            self._end(self._part)
        write_parts(self._folder, self._sizes)

    def _begin(self) -> PartWriter:
        number = len(self._sizes)
        return PartWriter(self._folder / chunks_name(number), self._folder / vectors_name(number), self._width)

    def _end(self, part: PartWriter) -> None:
        part.close()
        self._sizes.append(part.num_chunks)
        self._part = None
