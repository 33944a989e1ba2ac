"""Readers of raw text: plain files, JSONL (plain, `.gz`, `.zst`) and Parquet, as streams of documents.

A file that cannot be text (binary, not UTF-8, of a foreign type) and a record without text are *skipped*,
counted and named; a file that starts out right and turns out torn is an error, since what is missing
cannot be known.
"""

import gzip
import io
import json
import os
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import zstandard

from vitrail.corpus.document import Document, document_id
from vitrail.errors import CorpusError

_TEXT_SUFFIXES = frozenset({".txt", ".md", ".rst", ".text"})
_JSONL_SUFFIXES = (".jsonl", ".jsonl.gz", ".jsonl.zst")
_NAMED_FIELDS = frozenset({"source", "domain", "license", "title", "metadata"})


@dataclass(frozen=True)
class RawFile:
    """A file to read, and its name relative to what the user gave (the same on any machine)."""

    path: Path
    name: str
    is_named: bool
    """Given by name, so that it is read as text whatever its ending is."""


@dataclass
class Skipped:
    """What was passed over: (file, reason) → how often."""

    counts: dict[tuple[str, str], int] = field(default_factory=dict)

    def add(self, name: str, reason: str) -> None:
        """Count one more.

        Args:
            name: file.
            reason: why, in a few words.
        """
        self.counts[name, reason] = self.counts.get((name, reason), 0) + 1

    def rows(self) -> list[dict[str, Any]]:
        """One row per file and reason, ordered; for `skipped.json`."""
        return [{"file": name, "reason": reason, "count": n} for (name, reason), n in sorted(self.counts.items())]


def find_files(sources: Sequence[Path], skipped: Skipped) -> list[RawFile]:
    """All files below the given files and folders, in an order that does not depend on theirs.

    Args:
        sources: files or folders; hidden entries of folders are left out, links to folders not followed.
        skipped: where to count entries of folders that are no readable files.

    Returns:
        files, ordered by name; a file that is met twice is there once.

    Raises:
        CorpusError: a source does not exist.
    """
    found: dict[Path, RawFile] = {}
    for place in sorted({_place(source) for source in sources}):  # a folder comes before what lies in it
        if place.is_dir():
            for file in _files_below(place, skipped):
                found.setdefault(file.path.resolve(), file)
        elif place.is_file():
            found[place.resolve()] = RawFile(place, _valid(place.name), is_named=True)
        else:
            raise CorpusError(f"{place}: no such file or folder; name text, JSONL or Parquet files")
    return sorted(found.values(), key=lambda file: (file.name, file.path))


def _place(source: Path) -> Path:
    """Absolute, but a link keeps its own name: its ending tells the format (caches link to nameless blobs)."""
    return source.resolve() if source.name in ("", "..") else source.parent.resolve() / source.name


def _files_below(folder: Path, skipped: Skipped) -> Iterator[RawFile]:
    for path in sorted(folder.rglob("*")):
        parts = path.relative_to(folder).parts
        if any(part.startswith(".") for part in parts):
            continue
        name = _valid("/".join((folder.name, *parts)))
        if not os.access(path, os.R_OK):
            skipped.add(name, "no permission to read it, or a broken link")
        elif path.is_file():
            yield RawFile(path, name, is_named=False)
        elif not path.is_dir():
            skipped.add(name, "not a regular file")
        elif path.is_symlink():
            skipped.add(name, "link to a folder; name the folder itself")


def read_file(file: RawFile, text_field: str, skipped: Skipped) -> Iterator[Document]:
    """The documents in one file.

    Args:
        file: what to read.
        text_field: name of the field or column that holds the text.
        skipped: where to count what is passed over.

    Yields:
        documents.

    Raises:
        CorpusError: a torn or damaged `.gz`, `.zst` or Parquet file, a Parquet file without the column, or a
            fault of the disk.
    """
    name = file.path.name.lower()
    if name.endswith(_JSONL_SUFFIXES):
        records = _jsonl_records(file, skipped)
    elif name.endswith(".parquet"):
        records = _parquet_records(file, text_field)
    elif file.is_named or file.path.suffix.lower() in _TEXT_SUFFIXES:
        records = _text_record(file, text_field, skipped)
    else:
        skipped.add(file.name, "not a text, JSONL or Parquet file")
        return
    try:
        for record in records:
            document = _document(record, file, text_field)
            if document is None:
                skipped.add(file.name, f"record without text in '{text_field}'")
            else:
                yield document
    except OSError as error:
        raise unreadable(file.path, error) from error


def unreadable(path: Path, error: OSError) -> CorpusError:
    """What to say where the system refuses to read a file.

    Args:
        path: the file.
        error: what the system said.

    Returns:
        the error to raise.
    """
    return CorpusError(f"{path}: cannot be read ({error.strerror}); mend that or leave it out")


def _text_record(file: RawFile, text_field: str, skipped: Skipped) -> Iterator[dict[str, Any]]:
    data = file.path.read_bytes()
    if b"\0" in data:
        skipped.add(file.name, "binary")
        return
    try:
        yield {text_field: data.decode("utf-8-sig"), "source": file.name, "title": file.path.stem}
    except UnicodeDecodeError as error:
        skipped.add(file.name, f"not UTF-8 (byte {error.start})")


def _jsonl_records(file: RawFile, skipped: Skipped) -> Iterator[dict[str, Any]]:
    for line in jsonl_lines(file.path):
        if not line.strip():
            continue
        try:
            record = json.loads(line)
        except (ValueError, RecursionError):  # the latter: a thousand brackets one inside the other
            skipped.add(file.name, "line that is not JSON in UTF-8")
            continue
        if isinstance(record, dict):
            yield record
        else:
            skipped.add(file.name, "line that is not a JSON object")


def jsonl_lines(path: Path) -> Iterator[bytes]:
    """The lines of a plain or compressed file.

    Args:
        path: the file; its ending (`.gz`, `.zst`) says whether it is compressed.

    Yields:
        lines.

    Raises:
        CorpusError: it cannot be read, or it is compressed and torn or damaged.
    """
    try:
        with path.open("rb") as raw:
            if path.suffix.lower() == ".gz":
                yield from gzip.GzipFile(fileobj=raw)
            elif path.suffix.lower() == ".zst":
                yield from _zstd_lines(raw)
            else:
                yield from raw
    except (EOFError, zlib.error, gzip.BadGzipFile, zstandard.ZstdError) as error:
        raise CorpusError(f"{path}: corrupt compressed file ({error}); fetch it again or leave it out") from error
    except OSError as error:
        raise unreadable(path, error) from error


def _zstd_lines(raw: io.BufferedReader) -> Iterator[bytes]:
    """Lines of a zstd stream; unlike the plain reader it notices a stream that stops inside a frame."""
    rest = b""
    inside = False
    decoder = zstandard.ZstdDecompressor().decompressobj()
    while data := raw.read(2**20):
        while data:
            inside = True
            rest += decoder.decompress(data)
            data = decoder.unused_data
            if decoder.eof:
                decoder, inside = zstandard.ZstdDecompressor().decompressobj(), False
            *lines, rest = rest.split(b"\n")
            yield from lines
    if inside:
        raise EOFError("the last frame is cut off")
    yield rest


def _parquet_records(file: RawFile, text_field: str) -> Iterator[dict[str, Any]]:
    try:
        with pq.ParquetFile(file.path) as table:
            names = table.schema_arrow.names
            if text_field not in names:
                raise CorpusError(f"{file.path}: no column '{text_field}', found {', '.join(names)}; set text_field")
            for batch in table.iter_batches(batch_size=1_000):
                yield from _times_as_text(batch).to_pylist()
    except (OSError, pa.ArrowException, ValueError, OverflowError) as error:  # ValueError: text that is not UTF-8
        problem = str(error).split("\n")[0]
        raise CorpusError(f"{file.path}: corrupt Parquet file ({problem}); fetch it again or leave it out") from error


def _times_as_text(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Dates and times as text, for Python's own have no nanoseconds and few centuries."""
    columns = [column.cast(pa.string()) if _is_time(column.type) else column for column in batch.columns]
    return pa.RecordBatch.from_arrays(columns, names=batch.schema.names)


def _is_time(kind: pa.DataType) -> bool:
    return bool(pa.types.is_timestamp(kind) or pa.types.is_date(kind) or pa.types.is_time(kind))


def _document(record: dict[str, Any], file: RawFile, text_field: str) -> Document | None:
    text = record.get(text_field)
    if not isinstance(text, str) or not text.strip():
        return None
    text = _valid(text.replace("\r\n", "\n").replace("\r", "\n").removeprefix("\ufeff"))
    source = _plain(record.get("source")) or file.name
    return Document(
        id=document_id(text, source),
        text=text,
        source=source,
        domain=_plain(record.get("domain")) or _domain(file),
        license=_plain(record.get("license")),
        title=_plain(record.get("title")),
        metadata=_metadata(record, text_field),
    )


def _domain(file: RawFile) -> str:
    """The folder of a plain file (topics are usually kept apart that way), the name of a collection."""
    folders = file.name.split("/")[:-1]
    is_plain = file.path.suffix.lower() in _TEXT_SUFFIXES
    return folders[-1] if is_plain and folders else file.path.name.split(".")[0]


def _metadata(record: dict[str, Any], text_field: str) -> dict[str, str]:
    """Further fields of the record as text; its own `metadata` mapping is spread among them."""
    own = record.get("metadata")
    own = own if isinstance(own, dict) else {}
    fields = {
        **{key: value for key, value in record.items() if key not in _NAMED_FIELDS | {text_field}},
        **own,
    }
    return {_valid(str(key)): _plain(value) for key, value in sorted(fields.items()) if value is not None}


def _plain(value: Any) -> str:
    if value is None:
        return ""
    return _valid(
        value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, sort_keys=True, default=str)
    )


def _valid(text: str) -> str:
    """Text that UTF-8 can carry: lone surrogates, which JSON lets through, become question marks."""
    return text.encode("utf-8", "replace").decode()
