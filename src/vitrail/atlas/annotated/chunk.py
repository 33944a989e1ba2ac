"""A chunk with its labels, and the table it is stored in (design §8)."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, chain
from typing import Any

import numpy as np
import pyarrow as pa

from vitrail.atlas.library import Label
from vitrail.corpus import Split

_SPAN = pa.struct([("start", pa.int32()), ("stop", pa.int32())])
_LABEL = pa.struct([("concept_id", pa.int32()), ("score", pa.float32()), ("spans", pa.list_(_SPAN))])
SCHEMA = pa.schema(
    [
        ("chunk_id", pa.string()),
        ("document_id", pa.string()),
        ("start", pa.int64()),
        ("stop", pa.int64()),
        ("text", pa.string()),
        ("labels", pa.list_(_LABEL)),
        ("source", pa.string()),
        ("license", pa.string()),
        ("title", pa.string()),
        ("domain", pa.string()),
        ("split", pa.string()),
    ]
)


@dataclass(frozen=True)
class Chunk:
    """A chunk with its labels.

    Attributes:
        row: place in the annotated corpus, and row of its embedding.
        chunk_id: document id and start, `ID:START`.
        document_id: of its document.
        start: first character in the document.
        stop: character after the last.
        text: the characters in between.
        labels: most certain first.
        source: of the document.
        license: of the document.
        title: of the document.
        domain: of the document.
        split: train, heldout or judge.
    """

    row: int
    chunk_id: str
    document_id: str
    start: int
    stop: int
    text: str
    labels: tuple[Label, ...]
    source: str
    license: str
    title: str
    domain: str
    split: Split


def chunk_of(row: int, record: Mapping[str, Any]) -> Chunk:
    """A chunk from a record of its table.

    Args:
        row: its place in the annotated corpus.
        record: column → plain value.

    Returns:
        the chunk.
    """
    labels = tuple(
        Label(
            label["concept_id"],
            label["score"],
            tuple((span["start"], span["stop"]) for span in label["spans"]),
        )
        for label in record["labels"]
    )
    return Chunk(row=row, **{**record, "labels": labels})


def table_of(chunks: Sequence[Chunk]) -> pa.Table:
    """The table of some chunks; their rows are not stored, they follow from the order.

    Args:
        chunks: in row order.

    Returns:
        a table of `SCHEMA`.
    """
    columns = {name: [getattr(chunk, name) for chunk in chunks] for name in SCHEMA.names if name != "labels"}
    columns["labels"] = label_column([chunk.labels for chunk in chunks])
    return pa.table({name: columns[name] for name in SCHEMA.names}, schema=SCHEMA)


def label_column(labels: Sequence[Sequence[Label]]) -> pa.ListArray:
    """Labels of some chunks as one nested column, made from flat lists: ten times faster than from records.

    Args:
        labels: of each chunk.

    Returns:
        the column `labels`.
    """
    flat = list(chain.from_iterable(labels))
    spans = list(chain.from_iterable(label.spans for label in flat))
    ends = np.array(spans, np.int32).reshape(-1, 2)
    span_array = pa.StructArray.from_arrays([pa.array(ends[:, 0]), pa.array(ends[:, 1])], fields=list(_SPAN))
    label_array = pa.StructArray.from_arrays(
        [
            pa.array([label.concept_id for label in flat], pa.int32()),
            pa.array([label.score for label in flat], pa.float32()),
            pa.ListArray.from_arrays(_offsets([len(label.spans) for label in flat]), span_array),
        ],
        fields=list(_LABEL),
    )
    return pa.ListArray.from_arrays(_offsets([len(own) for own in labels]), label_array)


def _offsets(sizes: Sequence[int]) -> pa.Array:
    return pa.array(accumulate(sizes, initial=0), pa.int32())
