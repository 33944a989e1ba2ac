"""The stored corpus: documents in Parquet, ordered by id, read as a stream.

Documents are first scattered over buckets by id, then each bucket is sorted and written: memory holds one
bucket, never the corpus, and the result does not depend on the order in which documents arrived.
"""

import contextlib
import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import IO

import pyarrow as pa
import pyarrow.parquet as pq

from vitrail.artifacts import Manifest, Writing, file_sha256, read_whole
from vitrail.corpus.document import Document
from vitrail.errors import ArtifactError

KIND = "corpus"
_PART_BYTES = 256 * 2**20
_ROW_GROUP = 1_000
_SCHEMA = pa.schema(
    [
        *((name, pa.string()) for name in ("id", "text", "source", "domain", "license", "title")),
        ("metadata", pa.map_(pa.string(), pa.string())),
    ]
)


class Corpus:
    """A stored corpus (kind `corpus`), opened for reading."""

    def __init__(self, path: Path, manifest: Manifest) -> None:
        """Use `Corpus.open`.

        Args:
            path: the artifact directory.
            manifest: its manifest.
        """
        self.path = path
        self.manifest = manifest

    @classmethod
    def open(cls, path: Path) -> "Corpus":
        """Open a corpus directory.

        Args:
            path: the artifact directory.

        Returns:
            the corpus.

        Raises:
            ArtifactError: not a corpus, or damaged.
        """
        return cls(path, read_whole(path, KIND))

    @property
    def num_documents(self) -> int:
        """How many documents it holds."""
        return self.manifest.counts["documents"]

    @property
    def num_bytes(self) -> int:
        """UTF-8 bytes of all texts."""
        return self.manifest.counts["text_bytes"]

    def documents(self) -> Iterator[Document]:
        """All documents, ordered by id; memory stays flat.

        Yields:
            documents.

        Raises:
            ArtifactError: a part is missing or damaged.
        """
        for name, sha256 in sorted(self.manifest.files.items()):
            if name.endswith(".parquet"):
                yield from read_part(self.path / name, sha256)


def write_documents(documents: Iterable[Document], num_buckets: int, writing: Writing) -> None:
    """Store documents ordered by id; a document that is there already is counted and left out.

    Args:
        documents: in any order.
        num_buckets: into how many parts to scatter them for sorting; does not change the result.
        writing: where the parts go (`documents/part-*.parquet`) and where they are counted.
    """
    scattered = writing.dir / "scattered"
    scattered.mkdir()
    buckets = [scattered / f"bucket-{number:04d}.jsonl" for number in range(num_buckets)]
    with contextlib.ExitStack() as stack:
        files = [stack.enter_context(path.open("w", encoding="utf-8")) for path in buckets]
        for document in documents:
            _spill(document, files)
    counts = dict.fromkeys(("documents", "text_bytes", "duplicate_documents"), 0)
    folder = writing.dir / "documents"
    folder.mkdir()
    with _Parts(folder) as parts:
        for path in buckets:
            _sort_bucket(path, parts, counts)
            path.unlink()
    scattered.rmdir()
    writing.counts.update(counts)


def _spill(document: Document, files: Sequence[IO[str]]) -> None:
    bucket = int(document.id[:8], 16) * len(files) >> 32
    files[bucket].write(json.dumps(asdict(document), ensure_ascii=False) + "\n")


def _sort_bucket(path: Path, parts: "_Parts", counts: dict[str, int]) -> None:
    with path.open(encoding="utf-8", newline="\n") as file:
        found = sorted((Document(**json.loads(line)) for line in file), key=_order)
    previous = ""
    for document in found:
        if document.id == previous:
            counts["duplicate_documents"] += 1
            continue
        previous = document.id
        counts["documents"] += 1
        counts["text_bytes"] += len(document.text.encode())
        parts.add(document)


def _order(document: Document) -> tuple[str, str]:
    """By id; of two records of one text and source, the one with the smaller description comes first."""
    return document.id, json.dumps(asdict(document), sort_keys=True)


class _Parts:
    """Parquet files of at most 256 MiB of text each, in row groups of 1,000 documents."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._rows: list[Document] = []
        self._num_parts = 0
        self._part_bytes = 0
        self._writer: pq.ParquetWriter | None = None

    def __enter__(self) -> "_Parts":
        return self

    def __exit__(self, *failure: object) -> None:
        if failure[0] is None:
            self._flush()
        self._close()

    def add(self, document: Document) -> None:
        self._rows.append(document)
        self._part_bytes += len(document.text)
        if len(self._rows) == _ROW_GROUP or self._part_bytes >= _PART_BYTES:
            self._flush()
        if self._part_bytes >= _PART_BYTES:
            self._close()

    def _flush(self) -> None:
        if not self._rows:
            return
        if self._writer is None:
            path = self._folder / f"part-{self._num_parts:05d}.parquet"
            self._writer = pq.ParquetWriter(path, _SCHEMA, compression="zstd")
            self._num_parts += 1
        columns = {name: [getattr(row, name) for row in self._rows] for name in _SCHEMA.names[:-1]}
        columns["metadata"] = [sorted(row.metadata.items()) for row in self._rows]
        self._writer.write_table(pa.table(columns, schema=_SCHEMA))
        self._rows.clear()

    def _close(self) -> None:
        if self._writer is not None:
            self._writer.close()
        self._writer = None
        self._part_bytes = 0


def read_part(
    path: Path, sha256: str, groups: Sequence[int] | None = None, batch_size: int = _ROW_GROUP
) -> Iterator[Document]:
    """The documents of one Parquet file of a corpus, ordered by id.

    Args:
        path: the file.
        sha256: of its bytes, as it was imported.
        groups: row groups to read; None reads all.
        batch_size: documents held as Python objects at a time.

    Yields:
        documents.

    Raises:
        ArtifactError: the file is missing or damaged.

    Cost: the file is hashed first, 0.2 s at most: Parquet alone does not notice every damage, and a text that changed
        would be taken for the corpus'.
    """
    try:
        if file_sha256(path) != sha256:
            raise ValueError("not the bytes that were imported")
        with pq.ParquetFile(path) as file:
            for batch in file.iter_batches(batch_size, row_groups=groups):
                for row in batch.to_pylist():
                    yield Document(**{**row, "metadata": dict(row["metadata"])})
    except (OSError, ValueError, pa.ArrowException) as error:
        raise damaged_part(path, error) from error


def damaged_part(path: Path, error: Exception) -> ArtifactError:
    """What to say of a file of a corpus that cannot be read.

    Args:
        path: the file.
        error: what came of reading it.

    Returns:
        the error to raise.
    """
    problem = " ".join(str(error).split())
    return ArtifactError(f"{path}: damaged or missing ({problem}); import the corpus again")
