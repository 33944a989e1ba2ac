"""Bringing the chunks of a document together, whatever order a release has them in, with flat memory.

Rows of chunks and documents are scattered by the hash of their document's id over files, those that are still too
large once more, until each is small enough to be sorted in memory. Read in the order of the hashes they give
documents in an order that depends on neither the order of the release nor the number of files.
"""

import hashlib
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from jaxtyping import UInt64

from vitrail.atlas.imports.release_tables import ReleaseTable
from vitrail.errors import CorpusError

BUCKET_BYTES = 24 * 2**20
"""Rows that are sorted in memory, as they lie in Arrow; about ten times as much as Python values."""
FAN = 64
"""Files that one scattering fills at most."""
_KEY_BITS = 64


@dataclass(frozen=True)
class ReleaseDocument:
    """A document of a release with its chunks.

    Attributes:
        document_id: as text.
        record: its row in the table of documents, by our names; None where it has none.
        chunks: rows of its chunks, by our names, with `number`: place in the release.
    """

    document_id: str
    record: dict[str, Any] | None
    chunks: list[dict[str, Any]]


@dataclass(frozen=True)
class _Bucket:
    """Rows of documents whose keys share their first `depth` groups of six bits."""

    folder: Path
    depth: int

    @property
    def size(self) -> int:
        return sum(path.stat().st_size for path in self.folder.glob("*.arrow"))

    def inner(self) -> Iterator["_Bucket"]:
        """The buckets inside, in the order of their keys; this one's rows go into them."""
        for name in ("documents", "chunks"):
            path = self.folder / f"{name}.arrow"
            if path.exists():
                _scatter(_stored(path), self.folder, name, self.depth)
                path.unlink()
        for number in range(FAN):
            if (self.folder / f"{number:02d}").is_dir():
                yield _Bucket(self.folder / f"{number:02d}", self.depth + 1)

    def rows(self, name: str) -> list[dict[str, Any]]:
        path = self.folder / f"{name}.arrow"
        found = [row for table in _stored(path) for row in table.to_pylist()] if path.exists() else []
        path.unlink(missing_ok=True)
        return found


def documents_of(chunks: ReleaseTable, documents: ReleaseTable, scratch: Path) -> Iterator[ReleaseDocument]:
    """Documents with their chunks, in the order of the hash of their ids.

    Args:
        chunks: table of chunks.
        documents: table of documents.
        scratch: an empty folder for the buckets; empty again at the end.

    Yields:
        documents; those without chunks too.

    Raises:
        CorpusError: a file is damaged, or a row has no id.
    """
    for name, table in (("documents", documents), ("chunks", chunks)):
        _scatter(_keyed(table), scratch, name, 0)
    for inner in _Bucket(scratch, 0).inner():
        yield from _documents(inner)
        inner.folder.rmdir()


def _documents(bucket: _Bucket) -> Iterator[ReleaseDocument]:
    if bucket.size <= BUCKET_BYTES or 6 * (bucket.depth + 1) > _KEY_BITS:  # or one document that is itself too large
        yield from _joined(bucket.rows("documents"), bucket.rows("chunks"))
        return
    for inner in bucket.inner():
        yield from _documents(inner)
        inner.folder.rmdir()


def _keyed(table: ReleaseTable) -> Iterator[pa.Table]:
    """The rows with document ids as text, their hash, and their place in the release."""
    first = 0
    for batch in table.batches():
        for name in {"document_id", "chunk_id"} & set(batch.column_names):
            if batch[name].null_count:
                raise CorpusError(
                    f"{table.files[0]}: a row of {table.group} has no {name} (of {first:,} to {first + len(batch):,}); "
                    "name the right column in a column map, or leave such rows out"
                )
        ids = [str(value) for value in batch["document_id"].to_pylist()]
        batch = batch.set_column(batch.column_names.index("document_id"), "document_id", pa.array(ids, pa.string()))
        batch = batch.append_column("key", pa.array(np.array([_hash(name) for name in ids], np.uint64)))
        batch = batch.append_column("number", pa.array(np.arange(first, first + len(batch))))
        first += len(batch)
        yield batch


def _hash(document_id: str) -> int:
    return int.from_bytes(hashlib.sha256(document_id.encode()).digest()[:8])


def _scatter(tables: Iterator[pa.Table], folder: Path, name: str, depth: int) -> None:
    with ExitStack() as stack:
        writers: dict[int, pa.RecordBatchStreamWriter] = {}
        for table in tables:
            buckets = _digit(table["key"].to_numpy(), depth)
            for bucket in np.unique(buckets).tolist():
                if bucket not in writers:
                    path = folder / f"{bucket:02d}" / f"{name}.arrow"
                    path.parent.mkdir(exist_ok=True)
                    sink = stack.enter_context(pa.OSFile(str(path), "wb"))
                    writers[bucket] = stack.enter_context(pa.ipc.new_stream(sink, table.schema))
                writers[bucket].write_table(table.take(np.flatnonzero(buckets == bucket)))


def _digit(keys: UInt64[np.ndarray, " n"], depth: int) -> UInt64[np.ndarray, " n"]:
    """Six bits of each key, the first ones at depth 0."""
    return (keys >> np.uint64(_KEY_BITS - 6 * (depth + 1))) & np.uint64(FAN - 1)


def _stored(path: Path) -> Iterator[pa.Table]:
    with pa.OSFile(str(path)) as source, pa.ipc.open_stream(source) as reader:
        for batch in reader:
            yield pa.Table.from_batches([batch])


def _joined(records: list[dict[str, Any]], rows: list[dict[str, Any]]) -> Iterator[ReleaseDocument]:
    known = {record["document_id"]: record for record in reversed(records)}  # of two, the first
    chunks: dict[str, list[dict[str, Any]]] = {document_id: [] for document_id in known}
    for row in rows:
        chunks.setdefault(row["document_id"], []).append(row)
    for document_id in sorted(chunks, key=lambda name: (_hash(name), name)):
        yield ReleaseDocument(document_id, known.get(document_id), chunks[document_id])
