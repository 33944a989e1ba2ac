"""Vectors of tags kept on disk, so that a rebuild encodes only what is new (§4.2.2).

A cache is a folder of *segments*, one Parquet file each with tags and their vectors. A segment is written under
another name, flushed and renamed: it is there whole or not at all, so a killed process loses the tags of one
segment at most, and two processes that fill the same folder never touch each other's files (both may encode the
same tag: the vectors are equal). Nothing is ever changed in place. A segment that fails its checksums is named in
the log and its tags are encoded again.

The folder's name carries the fingerprint of the encoder. What a cache gives must be what the encoder would give,
bit for bit, or a rebuild would have another id: hence encoders whose vector of a text depends on that text alone
(`tag_encoder`).

Letters: n tags, E width of a vector.
"""

import hashlib
import logging
import uuid
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Protocol, runtime_checkable

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from jaxtyping import Float32

from vitrail.artifacts import make_folder, sync_dir, sync_file, write_faults_are_clear

SEGMENT_TAGS = 16_384
SUFFIX = ".parquet"

_log = logging.getLogger(__name__)


@runtime_checkable
class Encoder(Protocol):
    """Whatever gives a text a vector that depends on nothing but the text."""

    @property
    def width(self) -> int:
        """E."""

    @property
    def fingerprint(self) -> str:
        """Changes whenever a vector might: weights, precision, software."""

    def encode(self, texts: Sequence[str]) -> Float32[np.ndarray, "n E"]:
        """[n E] vectors of n texts."""


class VectorCache:
    """An encoder that remembers."""

    def __init__(self, encoder: Encoder, folder: Path):
        """Put a folder behind an encoder.

        Args:
            encoder: gives what is not there yet.
            folder: of all caches; this encoder's is made inside it.
        """
        self.encoder = encoder
        self.folder = folder / "tag_vectors" / encoder.fingerprint

    @property
    def width(self) -> int:
        """E."""
        return self.encoder.width

    @property
    def fingerprint(self) -> str:
        """The encoder's own."""
        return self.encoder.fingerprint

    def encode(self, texts: Sequence[str]) -> Float32[np.ndarray, "n E"]:
        """Vectors of texts: read, or computed and kept.

        Args:
            texts: n texts, in any order.

        Returns:
            [n E], the encoder's own vectors bit for bit.

        Raises:
            ArtifactError: the folder cannot be written.
        """
        unique = sorted(set(texts))
        place = {text: i for i, text in enumerate(unique)}
        vectors = np.zeros((len(unique), self.width), np.float32)
        is_known = np.zeros(len(unique), bool)
        for tags, stored in self._segments():
            found = [(place[tag], row) for row, tag in enumerate(tags) if tag in place]
            if found:
                rows, sources = np.array(found).T
                vectors[rows], is_known[rows] = stored[sources], True
        missing = np.flatnonzero(~is_known)
        for start in range(0, len(missing), SEGMENT_TAGS):
            rows = missing[start : start + SEGMENT_TAGS]
            tags = [unique[row] for row in rows]
            vectors[rows] = self.encoder.encode(tags)
            self._append(tags, vectors[rows])
        return vectors[[place[text] for text in texts]]

    def _segments(self) -> Iterator[tuple[list[str], Float32[np.ndarray, "n E"]]]:
        for path in sorted(self.folder.glob(f"*{SUFFIX}")):
            try:
                table = pq.read_table(path, page_checksum_verification=True)
                flat = table["vector"].combine_chunks().flatten().to_numpy()
                yield table["tag"].to_pylist(), flat.reshape(-1, self.width)
            except (pa.ArrowException, OSError, KeyError, ValueError) as error:
                _log.warning("%s: damaged, its tags are encoded again (%s)", path, " ".join(str(error).split())[:120])

    def _append(self, tags: list[str], vectors: Float32[np.ndarray, "n E"]) -> None:
        flat = pa.array(vectors.ravel())
        table = pa.table({"tag": tags, "vector": pa.FixedSizeListArray.from_arrays(flat, self.width)})
        name = hashlib.sha256("\n".join(tags).encode()).hexdigest()[:16]
        partial = self.folder / f".{name}-{uuid.uuid4().hex}"
        with write_faults_are_clear(self.folder):
            make_folder(self.folder)
            try:
                pq.write_table(table, partial, compression="none", use_dictionary=False, write_page_checksum=True)
                sync_file(partial)
                partial.replace(self.folder / f"{name}{SUFFIX}")
                sync_dir(self.folder)
            finally:
                partial.unlink(missing_ok=True)
