"""The import stage: raw text in, a stored corpus out."""

import hashlib
from collections.abc import Iterator, Sequence
from pathlib import Path

from pydantic import Field

from vitrail.artifacts import Manifest, Stage, file_sha256, read_manifest, write_json
from vitrail.corpus.document import Document
from vitrail.corpus.embedded import embedded_documents, embedded_version
from vitrail.corpus.readers import RawFile, Skipped, find_files, read_file, unreadable
from vitrail.corpus.store import KIND, write_documents
from vitrail.errors import CorpusError
from vitrail.settings import Settings

_BUCKET_BYTES = 64 * 2**20
_MAX_BUCKETS = 512


class CorpusSettings(Settings):
    """How raw text is read.

    Attributes:
        text_field: field (JSONL) or column (Parquet) that holds the text.
        min_chars: documents with fewer visible characters are skipped and counted.
    """

    text_field: str = "text"
    min_chars: int = Field(default=1, ge=1)


def import_corpus(sources: Sequence[Path] | None, out: Path, settings: CorpusSettings) -> Manifest:
    """Read raw text and store it as a corpus artifact.

    The result depends on what the files contain and how they are called, not on their order or place. What
    is passed over is listed in `skipped.json`, with reason and count.

    Args:
        sources: files (text, `.jsonl[.gz|.zst]`, `.parquet`) and folders; None for the embedded corpus.
        out: directory of the artifact; if it is already there and made of the same, nothing is done.
        settings: how to read.

    Returns:
        the manifest; counts: documents, text_bytes, duplicate_documents, files, skipped_files,
        skipped_records.

    Raises:
        CorpusError: a source is missing or torn, or holds `out`, or nothing readable was found.
        ArtifactError: `out` holds something else.
        RunFailed: the disk is full.
    """
    _refuse_own_output(sources or (), out)
    skipped = Skipped()
    files = [] if sources is None else find_files(sources, skipped)
    origin = embedded_version() if sources is None else _content_of(files)
    stage = Stage(out, KIND, {**settings.model_dump(), "origin": origin}, {})
    if stage.is_done:
        return read_manifest(out, KIND)
    documents = embedded_documents() if sources is None else _read_all(files, settings, skipped)
    with stage.write() as writing:
        write_documents(_long_enough(documents, settings, skipped), _num_buckets(files), writing)
        if not writing.counts["documents"]:
            raise CorpusError(_nothing_found(sources, skipped))
        rows = skipped.rows()
        whole = {row["file"] for row in rows} - _files_used(rows)
        writing.counts.update(files=len(files), skipped_files=len(whole))
        writing.counts["skipped_records"] = sum(row["count"] for row in rows if row["file"] not in whole)
        write_json(writing.dir / "skipped.json", rows)
    return read_manifest(out, KIND)


def _refuse_own_output(sources: Sequence[Path], out: Path) -> None:
    for source in sources:
        if source.is_dir() and out.resolve().is_relative_to(source.resolve()):
            raise CorpusError(
                f"{out}: lies inside the source {source}, so a second run would read it as text; name another place"
            )


def _read_all(files: Sequence[RawFile], settings: CorpusSettings, skipped: Skipped) -> Iterator[Document]:
    for file in files:
        yield from read_file(file, settings.text_field, skipped)


def _long_enough(documents: Iterator[Document], settings: CorpusSettings, skipped: Skipped) -> Iterator[Document]:
    for document in documents:
        if len(document.text.strip()) >= settings.min_chars:
            yield document
        else:
            skipped.add(document.source, f"record shorter than {settings.min_chars} characters")


def _files_used(rows: Sequence[dict[str, object]]) -> set[object]:
    return {row["file"] for row in rows if str(row["reason"]).startswith(("record", "line"))}


def _content_of(files: Sequence[RawFile]) -> str:
    """Hash of names and bytes: equal input is recognised wherever it lies and in whatever order it comes."""
    digest = hashlib.sha256()
    for name, content in sorted((file.name, _hash_of(file)) for file in files):
        digest.update(f"{name}\0{content}\n".encode())
    return "files sha256 " + digest.hexdigest()


def _hash_of(file: RawFile) -> str:
    try:
        return file_sha256(file.path)
    except OSError as error:
        raise unreadable(file.path, error) from error


def _num_buckets(files: Sequence[RawFile]) -> int:
    expected_bytes = 4 * sum(file.path.stat().st_size for file in files)
    return min(_MAX_BUCKETS, 1 + expected_bytes // _BUCKET_BYTES)


def _nothing_found(sources: Sequence[Path] | None, skipped: Skipped) -> str:
    where = ", ".join(str(source) for source in sources or []) or "embedded corpus"
    rows = skipped.rows()
    why = f"; {rows[0]['file']}: {rows[0]['reason']}" if rows else ""
    more = f" (and {len(rows) - 1} more)" if len(rows) > 1 else ""
    return f"{where}: no readable text{why}{more}; name UTF-8 text, JSONL or Parquet files"
