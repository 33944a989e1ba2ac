"""A shard of one split: sequences of whole units, with labels in compressed rows.

Columns: `tokens` [S T]; `sequence_chunks` [S+1], the first chunk of each sequence; per chunk `row`, `start` and `size`
(tokens, without control tokens), `num_bytes`; as compressed rows `labels` [chunks+1] → `label_concept`, and `spans`
[chunks+1] → `span_pos` (place in the sequence), `span_concept`. A shard of conversations holds `answers` [S+1] →
`answer_start`, `answer_stop`, `answer_bytes` instead of what belongs to chunks.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np

from vitrail.packed.columns import write_columns
from vitrail.packed.filling import fill_sequences
from vitrail.packed.settings import PackSettings
from vitrail.packed.units import PackedDocument, Unit

_DTYPES = {
    **dict.fromkeys(("sequence_chunks", "labels", "spans", "answers", "row"), "<i8"),
    **dict.fromkeys(("start", "size", "num_bytes", "label_concept", "span_pos", "span_concept"), "<i4"),
    **dict.fromkeys(("answer_start", "answer_stop", "answer_bytes"), "<i4"),
}
_OFFSETS = ("sequence_chunks", "labels", "spans", "answers")
_OF_ANSWERS = frozenset({"answers", "answer_start", "answer_stop", "answer_bytes"})
_COUNTED = ("sequences", "chunks", "tokens", "padding_tokens", "text_bytes", "labels", "dropped_chunks")


class ShardWriter:
    """Gathers the sequences of one split of a shard in memory, group after group."""

    def __init__(self, settings: PackSettings, pad_id: int, vocab_size: int, *, has_answers: bool) -> None:
        """Begin an empty shard.

        Args:
            settings: length, and how sequences are filled.
            pad_id: fills what is left of a sequence.
            vocab_size: decides how wide an id is stored.
            has_answers: of conversations.
        """
        self._settings, self._pad_id, self._has_answers = settings, pad_id, has_answers
        self._token_dtype = "<u2" if vocab_size <= 2**16 else "<u4"
        names = [name for name in _DTYPES if (name in _OF_ANSWERS) == has_answers]
        self._columns: dict[str, list[int]] = {name: [0] if name in _OFFSETS else [] for name in names}
        self._sequences: list[np.ndarray] = []
        self.groups: dict[str, int] = {}
        self.counts = dict.fromkeys(_COUNTED, 0)

    def fill(self, documents: Iterable[PackedDocument]) -> None:
        """Put documents into sequences, those of each group by themselves.

        Args:
            documents: of this split, in order.
        """
        groups: dict[str, list[list[Unit]]] = {}
        for document in documents:
            self.counts["dropped_chunks"] += len(document.dropped)
            if document.units:
                groups.setdefault(document.group, []).append(document.units)
        for group in sorted(groups):
            before = self.counts["sequences"]
            parcels = [groups[group]] if self._settings.documents == "mixed" else [[units] for units in groups[group]]
            for parcel in parcels:
                self._fill(parcel)
            self.groups[group] = self.counts["sequences"] - before

    def save(self, path: Path) -> None:
        """Write the columns.

        Args:
            path: the file; not made where the shard is empty.
        """
        if self._sequences:
            columns = {name: np.array(values, _DTYPES[name]) for name, values in self._columns.items()}
            write_columns(path, {"tokens": np.stack(self._sequences), **columns})

    def _fill(self, documents: Sequence[Sequence[Unit]]) -> None:
        for runs in fill_sequences(
            [[len(unit.tokens) for unit in units] for units in documents], self._settings.length
        ):
            self._add([unit for run in runs for unit in documents[run.document][run.first : run.stop]])

    def _add(self, units: Sequence[Unit]) -> None:
        tokens = np.full(self._settings.length, self._pad_id, self._token_dtype)
        begin = 0
        for unit in units:
            tokens[begin : begin + len(unit.tokens)] = unit.tokens
            self._add_answers(unit, begin) if self._has_answers else self._add_chunk(unit, begin)
            begin += len(unit.tokens)
        self._sequences.append(tokens)
        rows, name = ("answer_start", "answers") if self._has_answers else ("row", "sequence_chunks")
        self._columns[name].append(len(self._columns[rows]))
        self.counts["sequences"] += 1
        self.counts["padding_tokens"] += self._settings.length - begin

    def _add_chunk(self, unit: Unit, begin: int) -> None:
        chunk, columns = unit.chunk, self._columns
        assert chunk is not None, "a document's unit holds a chunk"
        columns["row"].append(chunk.row)
        columns["start"].append(begin + chunk.start)
        columns["size"].append(chunk.size)
        columns["num_bytes"].append(chunk.num_bytes)
        columns["label_concept"] += chunk.label_concept
        columns["labels"].append(len(columns["label_concept"]))
        columns["span_pos"] += [begin + pos for pos in chunk.span_pos]
        columns["span_concept"] += chunk.span_concept
        columns["spans"].append(len(columns["span_pos"]))
        self._count(chunk.size, chunk.num_bytes, len(chunk.label_concept))

    def _add_answers(self, unit: Unit, begin: int) -> None:
        columns = self._columns
        columns["answer_start"] += [begin + answer.start for answer in unit.answers]
        columns["answer_stop"] += [begin + answer.stop for answer in unit.answers]
        columns["answer_bytes"] += [answer.num_bytes for answer in unit.answers]
        self._count(len(unit.tokens), sum(answer.num_bytes for answer in unit.answers), 0)

    def _count(self, tokens: int, text_bytes: int, labels: int) -> None:
        self.counts["chunks"] += 1
        self.counts["tokens"] += tokens
        self.counts["text_bytes"] += text_bytes
        self.counts["labels"] += labels


def total(counts: Iterable[dict[str, int]]) -> Counter[str]:
    """Counts of several shards together.

    Args:
        counts: of each.

    Returns:
        their sums; a unit that is zero everywhere stays.
    """
    summed: Counter[str] = Counter()
    for one in counts:
        summed.update(one)
    return summed
