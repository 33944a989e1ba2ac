"""Shards of a corpus: stretches of whole row groups, about as much text each, that follow from the corpus alone.

How many machines work, and on which shard, never enters the plan; so the annotated corpus has the same parts and
the same id however it was made.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from vitrail.corpus import Corpus, Document
from vitrail.corpus.store import damaged_part, read_part

MIN_SHARD_BYTES, MAX_SHARD_BYTES = 8 * 2**20, 256 * 2**20
MANY_SHARDS = 4_096
READ_DOCUMENTS = 64
"""Documents held as Python objects at a time."""


@dataclass(frozen=True)
class Shard:
    """A stretch of one Parquet file of the corpus.

    Attributes:
        number: 0, 1, 2, …
        path: the file.
        sha256: of the file, as it was imported.
        first_group: its first row group.
        stop_group: the row group after its last.
    """

    number: int
    path: Path
    sha256: str
    first_group: int
    stop_group: int

    def documents(self) -> Iterator[Document]:
        """The documents of the shard, ordered by id; memory stays flat.

        Yields:
            documents.

        Raises:
            ArtifactError: the file is missing or damaged.
        """
        groups = list(range(self.first_group, self.stop_group))
        yield from read_part(self.path, self.sha256, groups, READ_DOCUMENTS)


def fitting_bytes(corpus: Corpus) -> int:
    """How much text a shard should hold: 8 MB in a small corpus, more where there would be thousands of shards.

    Args:
        corpus: the corpus.

    Returns:
        bytes, at most 256 MB.
    """
    return min(MAX_SHARD_BYTES, max(MIN_SHARD_BYTES, corpus.num_bytes // MANY_SHARDS))


def plan_shards(corpus: Corpus, target_bytes: int) -> list[Shard]:
    """Cut a corpus into shards; a shard ends with the row group that fills it, or with its file.

    Args:
        corpus: the corpus.
        target_bytes: text that a shard should hold; a row group (a thousand documents) is never cut.

    Returns:
        the shards, in the order of the documents.

    Raises:
        ArtifactError: a file of the corpus is missing or damaged.

    Cost: the footer of each file is read, about 5 ms a file.
    """
    shards: list[Shard] = []
    for name, digest in sorted(corpus.manifest.files.items()):
        if not name.endswith(".parquet"):
            continue
        path = (corpus.path / name).resolve()
        first, filled = 0, 0
        sizes = _text_bytes(path)
        for group, size in enumerate(sizes, 1):
            filled += size
            if filled >= target_bytes or group == len(sizes):
                shards.append(Shard(len(shards), path, digest, first, group))
                first, filled = group, 0
    return shards


def _text_bytes(path: Path) -> list[int]:
    """Uncompressed bytes of the texts in each row group."""
    try:
        with pq.ParquetFile(path) as file:
            column = file.schema_arrow.names.index("text")
            groups = range(file.metadata.num_row_groups)
            return [file.metadata.row_group(group).column(column).total_uncompressed_size for group in groups]
    except (OSError, ValueError, pa.ArrowException) as error:
        raise damaged_part(path, error) from error
