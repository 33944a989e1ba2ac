"""Reading a packed corpus: any sequences, in any order, as one batch.

Shards are mapped when they are first read, and the latest stay mapped, so memory does not grow with the corpus.
"""

from collections.abc import Mapping, Sequence
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from jaxtyping import Bool, Int64
from numpy.typing import NDArray

from vitrail.artifacts import Manifest, read_manifest, read_whole
from vitrail.errors import ArtifactError
from vitrail.packed.batch import PackedBatch
from vitrail.packed.columns import open_columns
from vitrail.packed.index import read_index
from vitrail.packed.pack import KIND, LAYOUT, SHARDS_FOLDER
from vitrail.text import ControlIds, Tokenizer, load_tokenizer

PackedSplit = Literal["train", "heldout"]
_MAPPED_SHARDS = 64
"""Shards that stay mapped; each holds an open file, and what was read of it counts as this process's memory."""

_COMPRESSED: Mapping[str, tuple[str, ...]] = {"labels": ("label_concept",), "spans": ("span_pos", "span_concept")}
_Part = Mapping[str, NDArray[Any]]


class PackedCorpus:
    """A packed corpus on disk, memory-mapped."""

    def __init__(self, path: Path, manifest: Manifest) -> None:
        """Use `PackedCorpus.open`.

        Args:
            path: the artifact directory.
            manifest: its manifest.
        """
        self.path = path
        self.manifest = manifest
        self.length: int = manifest.settings["length"]
        self.num_concepts = manifest.counts["concepts"]
        self.group_by: str = manifest.settings["group_by"]
        self._controls = ControlIds(**manifest.settings["controls"])
        self._index = read_index(path)
        self._columns = lru_cache(maxsize=_MAPPED_SHARDS)(self._open_shard)

    @classmethod
    def open(cls, path: Path) -> "PackedCorpus":
        """Open a packed corpus.

        Args:
            path: the artifact directory.

        Returns:
            the corpus.

        Raises:
            ArtifactError: not a packed corpus, damaged, or in the layout of another version.
        """
        layout = read_manifest(path, KIND).settings.get("layout", 1)
        if layout != LAYOUT:
            raise ArtifactError(
                f"{path}: packed in layout {layout}, this vitrail reads {LAYOUT}; pack the corpus again (vitrail pack)"
            )
        return cls(path, read_whole(path, KIND))

    @property
    def has_conversations(self) -> bool:
        """Whether it holds conversations, whose answers alone are predicted, instead of annotated text."""
        return "conversations" in self.manifest.settings

    def num_sequences(self, split: PackedSplit) -> int:
        """Number of sequences of a split.

        Args:
            split: train or heldout.

        Returns:
            S.
        """
        return self.manifest.counts[f"{split}_sequences"]

    def groups(self, split: PackedSplit) -> dict[str, int]:
        """Groups of a split.

        Args:
            split: train or heldout.

        Returns:
            name → number of sequences; one without a name where the corpus was packed without groups.
        """
        return self._index[split].groups

    def groups_of(self, split: PackedSplit, rows: Sequence[int]) -> list[str]:
        """Groups that sequences belong to.

        Args:
            split: train or heldout.
            rows: which sequences.

        Returns:
            a name for each.

        Raises:
            IndexError: a row outside the split.
        """
        return self._index[split].groups_of(self._checked(split, rows))

    def rows_of(self, split: PackedSplit, group: str, places: Int64[np.ndarray, " n"]) -> Int64[np.ndarray, " n"]:
        """Sequences of a group.

        Args:
            split: train or heldout.
            group: a name of `groups`.
            places: 0, 1, … within the group.

        Returns:
            rows of the split.
        """
        return self._index[split].rows_of(group, places)

    def tokenizer(self) -> Tokenizer:
        """The tokenizer that it was packed with."""
        return self._tokenizer

    @cached_property
    def _tokenizer(self) -> Tokenizer:
        tokenizer = load_tokenizer(self.path, self._controls, self.manifest.settings["vocab_size"])
        if tokenizer is None:
            raise ArtifactError(f"{self.path}: its tokenizer is missing; pack the corpus again")
        return tokenizer

    def batch(self, split: PackedSplit, rows: Sequence[int]) -> PackedBatch:
        """Some sequences with their labels.

        Args:
            split: train or heldout.
            rows: which sequences, 0..S-1, in the order of the batch.

        Returns:
            the batch.

        Raises:
            IndexError: a row outside the split.
            ArtifactError: a shard is missing or damaged.

        Cost: O(tokens of the batch); about 5 M tokens per core-second.
        """
        shards, places = self._index[split].locate(self._checked(split, rows))
        parts = [
            self._sequence(split, shard, place) for shard, place in zip(shards.tolist(), places.tolist(), strict=True)
        ]
        tokens = _joined(parts, "tokens").reshape(len(parts), self.length)
        has_answers = self.has_conversations
        loss_mask = _covered(parts, self.length) if has_answers else tokens != self._controls.pad
        return _batch(parts, tokens, loss_mask, "answer_bytes" if has_answers else "num_bytes")

    def _sequence(self, split: PackedSplit, shard: int, place: int) -> _Part:
        try:
            part = _sequence(self._columns(split, shard), place)
            fault = _fault(part, self.length, self.manifest.settings["vocab_size"], self.num_concepts)
        except (KeyError, IndexError, ValueError) as error:
            fault = f"{type(error).__name__}: {error}"
        if fault:
            raise ArtifactError(f"{self._shard(split, shard)}: damaged ({fault}); pack the corpus again")
        return part

    def _shard(self, split: PackedSplit, shard: int) -> Path:
        return self.path / SHARDS_FOLDER / f"{shard:05d}.{split}.safetensors"

    def _open_shard(self, split: PackedSplit, shard: int) -> dict[str, NDArray[Any]]:
        return open_columns(self._shard(split, shard))

    def _checked(self, split: PackedSplit, rows: Sequence[int]) -> NDArray[np.int64]:
        index = np.asarray(rows, dtype=np.int64)
        if len(index) and not 0 <= index.min() <= index.max() < self.num_sequences(split):
            raise IndexError(f"sequence {index.min()}..{index.max()}: the split has {self.num_sequences(split)}")
        return index


def _sequence(columns: _Part, place: int) -> _Part:
    """The columns of one sequence; compressed rows keep their offsets, counted from the sequence's first entry."""
    part = {"tokens": columns["tokens"][place]}
    if "answers" in columns:
        first, stop = _range(columns["answers"], place, place + 1, len(columns["answer_start"]))
        return part | {name: columns[name][first:stop] for name in ("answer_start", "answer_stop", "answer_bytes")}
    first, stop = _range(columns["sequence_chunks"], place, place + 1, len(columns["row"]))
    part |= {name: columns[name][first:stop] for name in ("row", "start", "size", "num_bytes")}
    for offsets, names in _COMPRESSED.items():
        bounds = columns[offsets][first : stop + 1]
        part[offsets] = bounds[1:] - bounds[:-1]
        begin, end = _range(columns[offsets], first, stop, len(columns[names[0]]))
        part |= {name: columns[name][begin:end] for name in names}
    return part


def _range(offsets: NDArray[Any], first: int, stop: int, count: int) -> tuple[int, int]:
    """What offsets say of entries first..stop-1; refused where they point outside the column."""
    begin, end = int(offsets[first]), int(offsets[stop])
    if not 0 <= begin <= end <= count:
        raise ValueError(f"offsets {begin} to {end} of a column of {count}")
    return begin, end


def _fault(part: _Part, length: int, vocab_size: int, num_concepts: int) -> str:
    """What cannot be in a sequence; a changed byte whose value could be there is not seen."""
    if part["tokens"].shape != (length,):
        return f"a sequence of {len(part['tokens'])} tokens, not {length}"
    starts, stops = ("answer_start", "answer_stop") if "answer_start" in part else ("start", "size")
    ends = part[stops] if stops == "answer_stop" else part["start"].astype(np.int64) + part["size"]
    limits = {
        "tokens": (part["tokens"], vocab_size),
        starts: (part[starts], length),
        stops: (ends - part[starts], length + 1),
        f"end of {starts}": (ends, length + 1),
        **{name: (part[name], num_concepts) for name in ("label_concept", "span_concept") if name in part},
        **{name: (part[name], length) for name in ("span_pos",) if name in part},
        **{name: (part[name], len(part[names[0]]) + 1) for name, names in _COMPRESSED.items() if name in part},
    }
    for name, (values, limit) in limits.items():
        if len(values) and not (values.min() >= 0 and values.max() < limit):
            return f"{name} {values.min()} to {values.max()}, wanted 0 to {limit - 1}"
    return ""


def _batch(
    parts: Sequence[_Part], tokens: NDArray[Any], loss_mask: Bool[np.ndarray, "B T"], bytes_column: str
) -> PackedBatch:
    """Sequences side by side, their chunks numbered through."""
    length = tokens.shape[1]
    starts, sizes, label_counts = (_joined(parts, name) for name in ("start", "size", "labels"))
    chunk = np.full(tokens.size, -1, dtype=np.int64)
    positions, owner = _ranges(starts + length * _owner(parts, "start"), sizes)
    chunk[positions] = owner
    return PackedBatch(
        tokens=_tensor(tokens),
        loss_mask=torch.from_numpy(loss_mask),
        chunk=_tensor(chunk).view(tokens.shape),
        num_chunks=len(starts),
        label_chunk=_tensor(np.repeat(np.arange(len(starts)), label_counts)),
        label_concept=_tensor(_joined(parts, "label_concept")),
        span_pos=_tensor(_joined(parts, "span_pos") + length * _owner(parts, "span_pos")),
        span_concept=_tensor(_joined(parts, "span_concept")),
        rows=_tensor(_joined(parts, "row")),
        num_bytes=int(_joined(parts, bytes_column).sum()),
    )


def _covered(parts: Sequence[_Part], length: int) -> Bool[np.ndarray, "B T"]:
    """True at the answers."""
    starts, stops = _joined(parts, "answer_start"), _joined(parts, "answer_stop")
    positions, _ = _ranges(starts + length * _owner(parts, "answer_start"), stops - starts)
    covered = np.zeros(len(parts) * length, dtype=bool)
    covered[positions] = True
    return covered.reshape(len(parts), length)


def _joined(parts: Sequence[_Part], name: str) -> NDArray[np.int64]:
    """A column of all sequences; empty where they have none of that name."""
    columns = [part[name] for part in parts if name in part]
    return np.concatenate(columns).astype(np.int64) if columns else np.zeros(0, dtype=np.int64)


def _owner(parts: Sequence[_Part], name: str) -> NDArray[np.int64]:
    """Which sequence of the batch each entry of a column belongs to."""
    return np.repeat(np.arange(len(parts)), [len(part.get(name, ())) for part in parts])


def _ranges(starts: NDArray[Any], sizes: NDArray[Any]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Concatenated ranges start..start+size, and the number of the range that each entry is from."""
    owner = np.repeat(np.arange(len(sizes), dtype=np.int64), sizes)
    before = np.cumsum(sizes) - sizes
    return np.arange(len(owner), dtype=np.int64) + (starts - before)[owner], owner


def _tensor(values: NDArray[Any]) -> torch.Tensor:
    return torch.from_numpy(np.ascontiguousarray(values, dtype=np.int64))
