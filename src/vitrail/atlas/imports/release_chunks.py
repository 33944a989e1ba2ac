"""Chunks of a release as chunks of ours: text, place in the document, labels."""

from bisect import bisect_right
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from jaxtyping import Float32

from vitrail.atlas.annotated import Chunk
from vitrail.atlas.imports.scattering import ReleaseDocument
from vitrail.atlas.library import Label
from vitrail.corpus import split_of
from vitrail.errors import CorpusError

LARGEST_SCORE = float(np.finfo(np.float32).max)
"""Scores are stored in fp32."""


class ChunkReader:
    """Turns rows into chunks, numbers them, and counts what it leaves out."""

    def __init__(self, place: Mapping[Any, int], encode: bool) -> None:
        """Begin to count.

        Args:
            place: release id of a concept → ours.
            encode: vectors are made later, so those of the release are not asked for.
        """
        self.counts: Counter[str] = Counter(chunks=0, labels=0, unlabelled_chunks=0)
        self._place, self._encode = place, encode
        self._width: int | None = None

    def chunks(self, documents: Iterator[ReleaseDocument]) -> Iterator[tuple[Chunk, Float32[np.ndarray, " E"]]]:
        """The chunks of documents with their vectors.

        Args:
            documents: with their rows.

        Yields:
            (chunk, vector of the release or nothing); rows without text, and those whose id was there before in
            the same document, are counted and left out (to know the ids of all documents would take memory that
            grows with the release).

        Raises:
            CorpusError: a row whose labels, scores, vector or place in the text cannot be meant, or without a text and
                a place to cut it from.
        """
        for document in documents:
            if not document.chunks:
                self.counts["documents_without_chunks"] += 1
            elif document.record is None:
                self.counts["documents_without_record"] += 1
            seen: set[str] = set()
            for chunk, vector in self._of_document(document):
                if chunk.chunk_id in seen:
                    self.counts["dropped_duplicate_chunks"] += 1
                    continue
                seen.add(chunk.chunk_id)
                self._count(chunk)
                yield chunk, vector

    def _of_document(self, document: ReleaseDocument) -> Iterator[tuple[Chunk, Float32[np.ndarray, " E"]]]:
        record = document.record or {}
        whole, pos = record.get("text") or "", 0
        starts = sorted({row["start"] for row in document.chunks if row.get("start") is not None})
        for row in sorted(document.chunks, key=_reading_order):
            start = pos if row.get("start") is None else row["start"]
            stop = row["stop"] if row.get("stop") is not None else _next_start(starts, start)
            if len(document.chunks) > 1 and all(value is None for value in (row.get("text"), row.get("start"), stop)):
                raise CorpusError(
                    f"chunk {row['chunk_id']!r} has no text, start or stop, so it cannot be cut from its document; "
                    "name the columns of text or of start and stop in a column map"
                )
            if start < 0 or (stop is not None and stop < start):
                raise CorpusError(
                    f"chunk {row['chunk_id']!r} begins at {start} and ends at {stop}, which is no place in a text; "
                    "set chunks.start and chunks.stop to null in a column map, or copy the release again"
                )
            text = row["text"] if row.get("text") is not None else whole[start:stop]
            pos = start + len(text)
            if not text.strip():
                self.counts["dropped_empty_chunks"] += 1
                continue
            yield (
                Chunk(
                    row=self.counts["chunks"],
                    chunk_id=str(row["chunk_id"]),
                    document_id=document.document_id,
                    start=start,
                    stop=row["stop"] if row.get("stop") is not None else pos,
                    text=text,
                    labels=self._labels(row),
                    **{name: str(record.get(name) or "") for name in ("source", "license", "title", "domain")},
                    split=split_of(document.document_id),
                ),
                self._vector(row),
            )

    def _labels(self, row: Mapping[str, Any]) -> tuple[Label, ...]:
        concepts, scores = row["concepts"] or [], row.get("scores")
        if scores is None:
            scores = [1.0] * len(concepts)
        if len(scores) != len(concepts):
            raise CorpusError(
                f"chunk {row['chunk_id']!r} has {len(concepts)} concepts and {len(scores)} scores; "
                "set chunks.scores to null in a column map, or copy the release again"
            )
        best: dict[int, float] = {}
        for concept, score in zip(concepts, scores, strict=True):
            place = self._place.get(concept)
            if place is None:
                self.counts["dropped_labels_of_unknown_concepts"] += 1
            else:
                best[place] = max(_finite(score, row), best.get(place, float("-inf")))
        order = sorted(best, key=lambda place: (-best[place], place))
        return tuple(Label(place, best[place], ()) for place in order)

    def _vector(self, row: Mapping[str, Any]) -> Float32[np.ndarray, " E"]:
        vector: Sequence[float | None] | None = row.get("embedding")
        if self._encode or "embedding" not in row:
            return np.zeros(0, np.float32)
        if vector is None:
            raise CorpusError(
                f"chunk {row['chunk_id']!r} has no vector; "
                "set chunks.embedding to null in a column map, or add --encode"
            )
        with np.errstate(over="ignore"):  # what fp32 cannot hold is infinite, and refused below
            array = np.array(vector, np.float32)
        self._width = len(array) if self._width is None else self._width
        num_finite = int(np.isfinite(array).sum())
        if not len(array) == num_finite == self._width:
            raise CorpusError(
                f"chunk {row['chunk_id']!r} has a vector of {len(array)} values, {num_finite} of them finite numbers; "
                f"the vectors are {self._width} wide; set chunks.embedding to null in a column map, or add --encode"
            )
        return array

    def _count(self, chunk: Chunk) -> None:
        self.counts.update({"chunks": 1, "labels": len(chunk.labels), f"{chunk.split}_chunks": 1})
        self.counts["unlabelled_chunks"] += not chunk.labels


def _finite(score: Any, row: Mapping[str, Any]) -> float:
    if score is None or not abs(score) <= LARGEST_SCORE:  # NaN is not
        raise CorpusError(f"chunk {row['chunk_id']!r} has the score {score}; set chunks.scores to null in a column map")
    return float(score)


def _next_start(starts: Sequence[int], start: int) -> int | None:
    """Where the next chunk begins; None for the last one, which goes to the end of the document."""
    place = bisect_right(starts, start)
    return starts[place] if place < len(starts) else None


def _reading_order(row: Mapping[str, Any]) -> tuple[int, int]:
    return (row["number"] if row.get("start") is None else row["start"], row["number"])
