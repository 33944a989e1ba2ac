"""Fast reading of an annotated corpus for counting: the columns that count, whole documents at a time.

Only `document_id`, the labels' concept ids and, where asked for, a column to group by leave the disk. A slab
holds about `num_rows` chunks and never cuts a document, so memory stays flat and counts by document can be
summed slab by slab.

Letters: R chunks of a slab, D documents, P labels.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from jaxtyping import Int64

from vitrail.atlas.annotated import AnnotatedCorpus

SLAB_ROWS = 65_536
By = Literal["corpus", "source", "domain"]
"""What chunks are counted by: all together, or by the source or the domain of their document."""


@dataclass(frozen=True)
class Slab:
    """Labels of consecutive chunks of whole documents.

    Attributes:
        first_row: row of its first chunk in the corpus.
        document_ids: of its D documents.
        groups: what each document is counted under; empty strings without a column to group by.
        sizes: chunks of each document.
        label_rows: chunk of each label, counted from the slab's first.
        label_documents: document of each label, counted from the slab's first.
        label_concepts: concept of each label.
    """

    first_row: int
    document_ids: list[str]
    groups: list[str]
    sizes: Int64[np.ndarray, " D"]
    label_rows: Int64[np.ndarray, " P"]
    label_documents: Int64[np.ndarray, " P"]
    label_concepts: Int64[np.ndarray, " P"]


def slabs(corpus: AnnotatedCorpus, by: By = "corpus", num_rows: int = SLAB_ROWS) -> Iterator[Slab]:
    """The labels of a corpus, in row order.

    Args:
        corpus: the annotated corpus.
        by: column to group documents by.
        num_rows: chunks read at once.

    Yields:
        slabs; together they hold every chunk once.

    Raises:
        ArtifactError: a part is damaged.
    """
    row = 0
    for table in _whole_documents(_batches(corpus, by, num_rows)):
        yield _slab(table, row, by)
        row += table.num_rows


def _batches(corpus: AnnotatedCorpus, by: By, num_rows: int) -> Iterator[pa.Table]:
    for number in range(corpus.num_parts):
        with corpus.part(number) as file:
            for batch in file.iter_batches(num_rows, columns=_leaves(file, by)):
                yield pa.Table.from_batches([batch])


def _leaves(file: pq.ParquetFile, by: By) -> list[str]:
    """Paths of the stored columns that are wanted; spans and scores stay on the disk."""
    paths = [file.schema.column(i).path for i in range(len(file.schema))]
    concept_ids = [path for path in paths if path.startswith("labels.") and path.endswith(".concept_id")]
    return ["document_id", *concept_ids, *([] if by == "corpus" else [by])]


def _whole_documents(tables: Iterator[pa.Table]) -> Iterator[pa.Table]:
    rest: pa.Table | None = None
    for table in tables:
        joined = table if rest is None else pa.concat_tables([rest, table])
        starts = _starts(joined)
        cut = int(starts[-1]) if len(starts) else 0
        rest = joined.slice(cut)
        if cut:
            yield joined.slice(0, cut)
    if rest is not None and rest.num_rows:
        yield rest


def _starts(table: pa.Table) -> Int64[np.ndarray, " D"]:
    """Rows at which a document begins."""
    if not table.num_rows:
        return np.zeros(0, np.int64)
    codes = table["document_id"].combine_chunks().dictionary_encode().indices.to_numpy()
    return np.flatnonzero(np.concatenate([[True], codes[1:] != codes[:-1]])).astype(np.int64)


def _slab(table: pa.Table, first_row: int, by: By) -> Slab:
    starts = _starts(table)
    sizes = np.diff(np.append(starts, table.num_rows)).astype(np.int64)
    labels = _one_array(table["labels"])
    counts = np.diff(labels.offsets.to_numpy())
    rows = np.repeat(np.arange(table.num_rows), counts)
    concepts = labels.flatten().field("concept_id").to_numpy(zero_copy_only=False)
    firsts = table.select([name for name in table.column_names if name != "labels"]).take(starts)
    return Slab(
        first_row=first_row,
        document_ids=firsts["document_id"].to_pylist(),
        groups=[""] * len(starts) if by == "corpus" else [value or "" for value in firsts[by].to_pylist()],
        sizes=sizes,
        label_rows=rows.astype(np.int64),
        label_documents=np.repeat(np.arange(len(starts)), sizes)[rows].astype(np.int64),
        label_concepts=concepts.astype(np.int64),
    )


def _one_array(column: pa.ChunkedArray) -> Any:
    """The column as one array that begins at offset 0 (a slice keeps the offsets of the whole)."""
    return pa.concat_arrays(column.chunks)
