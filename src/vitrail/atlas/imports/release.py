"""Importing an atlas release: tables of chunks, concepts and documents become an annotated corpus (C).

Documents come in the order of the hash of their ids, and go through one after the other, so memory is flat in the
size of the release. The reverse index and the co-occurrence are counted anew from the labels, and the release's own
are compared with them; `import.json` in the artifact holds the result.
"""

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from itertools import islice
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from jaxtyping import Float32

from vitrail.artifacts import Manifest, Stage, Writing, file_sha256, read_manifest, write_json
from vitrail.atlas.annotated import Chunk, ChunkWriter
from vitrail.atlas.annotated.chunk import label_column
from vitrail.atlas.annotated.guide import PAIRS_NAME, FieldGuide
from vitrail.atlas.concepts.encoder import minilm
from vitrail.atlas.concepts.geometry import unit
from vitrail.atlas.imports.checks import Check, PairSets, check_cooccurrence, check_reverse, check_stated, chunk_hash
from vitrail.atlas.imports.column_map import ColumnMap
from vitrail.atlas.imports.release_chunks import ChunkReader
from vitrail.atlas.imports.release_concepts import ReleaseConcepts, read_concepts
from vitrail.atlas.imports.release_tables import ReleaseTable
from vitrail.atlas.imports.scattering import documents_of
from vitrail.atlas.library import LIBRARY_NAME
from vitrail.errors import CorpusError

KIND = "annotated"
REPORT_NAME = "import.json"
CONCEPT_IDS_NAME = "release_ids.json"
SLAB_CHUNKS = 2_048


def import_release(folder: Path, out: Path, columns: ColumnMap, *, encode: bool = False) -> Manifest:
    """Make an annotated corpus of a release (kind `annotated`).

    Args:
        folder: the release.
        out: directory to be made.
        columns: where the release keeps what.
        encode: give every chunk a MiniLM vector; otherwise the release's own where the map names them, or none
            (vectors of width 0: such a corpus can be packed, shown and compared, but not indexed by meaning).

    Returns:
        the manifest; counts as of `annotate_corpus`, and `dropped_*` for what could not be used.

    Raises:
        CorpusError: a table or column is missing or damaged; the nearest name is suggested.
        ArtifactError: `out` is something else.
        RunFailed: the disk is full.
    """
    if not folder.is_dir():
        raise CorpusError(f"{folder}: no such folder; name the folder with the tables of the release")
    tables = {group: ReleaseTable(folder, group, getattr(columns, group)) for group in ColumnMap.model_fields}
    settings = {"columns": columns.model_dump(), "encode": encode, "origin": _origin(folder, list(tables.values()))}
    stage = Stage(out, KIND, settings, {})
    if stage.is_done:
        return read_manifest(out, KIND)
    with stage.write() as writing:
        checks = _Import(tables, writing, encode).run()
        write_json(writing.dir / REPORT_NAME, [asdict(check) for check in checks])
    return read_manifest(out, KIND)


class _Import:
    """One run: what is open while chunks go through."""

    def __init__(self, tables: dict[str, ReleaseTable], writing: Writing, encode: bool) -> None:
        self._tables, self._writing = tables, writing
        self._concepts = read_concepts(tables["concepts"])
        self._reader = ChunkReader(self._concepts.place, encode)
        self._guide, self._labels = FieldGuide(), PairSets(len(self._concepts.cards))
        self._thresholds = np.full(len(self._concepts.cards), np.inf, np.float32)
        self._encoder = minilm() if encode else None
        self._writer: ChunkWriter | None = None

    def run(self) -> list[Check]:
        scratch = self._writing.dir / "scattered"
        scratch.mkdir()
        documents = documents_of(self._tables["chunks"], self._tables["documents"], scratch)
        for slab in _slabs(self._reader.chunks(documents)):
            self._add([chunk for chunk, _ in slab], [vector for _, vector in slab])
        scratch.rmdir()
        if self._writer is None:
            raise CorpusError(
                f"{self._tables['chunks'].files[0]}: the release has no chunk with text; look at its tables"
            )
        self._writer.close()
        unknown = self._reader.counts["dropped_labels_of_unknown_concepts"]
        if unknown and not self._reader.counts["labels"]:
            raise CorpusError(
                f"{self._tables['chunks'].files[0]}: none of {unknown:,} labels is a concept of the table of concepts; "
                "name the columns of ids that belong together in a column map"
            )
        return self._finish()

    def _add(self, chunks: list[Chunk], vectors: list[Float32[np.ndarray, " E"]]) -> None:
        if self._encoder is not None:
            array = self._encoder.encode([chunk.text for chunk in chunks])
        else:
            array = unit(np.stack(vectors))
        if self._writer is None:
            self._writer = ChunkWriter(self._writing.dir, array.shape[1])
        labelled = {
            "chunk_id": [chunk.chunk_id for chunk in chunks],
            "labels": label_column([chunk.labels for chunk in chunks]),
        }
        self._guide.add(pa.table(labelled), self._writer.num_chunks)
        self._writer.add(chunks, array)
        concepts = np.array([label.concept_id for chunk in chunks for label in chunk.labels], np.int64)
        scores = np.array([label.score for chunk in chunks for label in chunk.labels], np.float32)
        hashes = np.array([chunk_hash(chunk.chunk_id) for chunk in chunks for _ in chunk.labels], np.uint64)
        self._labels.add(concepts, hashes)
        np.minimum.at(self._thresholds, concepts, scores)

    def _finish(self) -> list[Check]:
        folder, concepts = self._writing.dir, self._concepts
        thresholds = np.where(np.isfinite(self._thresholds), self._thresholds, 0).astype(np.float32)
        library = concepts.library(self._labels.counts, thresholds)
        library.save(folder / LIBRARY_NAME)
        self._guide.write(folder, library)
        write_json(folder / CONCEPT_IDS_NAME, [str(value) for value in concepts.ids])
        self._writing.counts.update(concepts=len(concepts.cards), **self._reader.counts)
        return self._checks(concepts)

    def _checks(self, concepts: ReleaseConcepts) -> list[Check]:
        return [
            check_stated(concepts, self._labels),
            check_reverse(self._tables["reverse_index"], concepts, self._labels),
            check_cooccurrence(self._tables["cooccurrence"], concepts, pq.read_table(self._writing.dir / PAIRS_NAME)),
        ]


def _slabs(
    chunks: Iterator[tuple[Chunk, Float32[np.ndarray, " E"]]],
) -> Iterator[list[tuple[Chunk, Float32[np.ndarray, " E"]]]]:
    while slab := list(islice(chunks, SLAB_CHUNKS)):
        yield slab


def _origin(folder: Path, tables: Sequence[ReleaseTable]) -> str:
    """Hash of names and bytes of all files that are read."""
    digest = hashlib.sha256()
    for path in sorted({path for table in tables for path in table.files}):
        digest.update(f"{path.relative_to(folder).as_posix()}\0{file_sha256(path)}\n".encode())
    return "files sha256 " + digest.hexdigest()
