"""Reading a packed corpus: any sequences, in any order, as one batch."""

from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray

from vitrail.artifacts import Manifest, read_whole
from vitrail.packed.batch import PackedBatch
from vitrail.packed.columns import open_column
from vitrail.packed.pack import (
    CHUNK_COLUMNS,
    KIND,
    LABEL_COLUMNS,
    OFFSET_COLUMNS,
    PACKED_SPLITS,
    TOKENIZER_FOLDER,
)
from vitrail.text import Tokenizer

PackedSplit = Literal["train", "heldout"]


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
        names = ("tokens", *CHUNK_COLUMNS, *LABEL_COLUMNS, *OFFSET_COLUMNS)
        self._columns: dict[str, dict[str, NDArray[Any]]] = {
            split: {name: open_column(path / split / f"{name}.npy") for name in names} for split in PACKED_SPLITS
        }

    @classmethod
    def open(cls, path: Path) -> "PackedCorpus":
        """Open a packed corpus.

        Args:
            path: the artifact directory.

        Returns:
            the corpus.

        Raises:
            ArtifactError: not a packed corpus, or damaged.
        """
        return cls(path, read_whole(path, KIND))

    def num_sequences(self, split: PackedSplit) -> int:
        """Number of sequences of a split.

        Args:
            split: train or heldout.

        Returns:
            S.
        """
        return self.manifest.counts[f"{split}_sequences"]

    def tokenizer(self) -> Tokenizer:
        """The tokenizer that it was packed with."""
        return self._tokenizer

    @cached_property
    def _tokenizer(self) -> Tokenizer:
        return Tokenizer.load(self.path / TOKENIZER_FOLDER)

    def batch(self, split: PackedSplit, rows: Sequence[int]) -> PackedBatch:
        """Some sequences with their labels.

        Args:
            split: train or heldout.
            rows: which sequences, 0..S-1, in the order of the batch.

        Returns:
            the batch.

        Raises:
            IndexError: a row outside the split.

        Cost: O(tokens of the batch); over 5 M tokens per core-second.
        """
        columns = self._columns[split]
        index = np.asarray(rows, dtype=np.int64)
        if len(index) and not 0 <= index.min() <= index.max() < self.num_sequences(split):
            raise IndexError(f"sequence {index.min()}..{index.max()}: the split has {self.num_sequences(split)}")
        chunks, place = _gather(columns["sequence_chunks"], index)
        offset = place * self.length
        chunk = np.full(len(index) * self.length, -1, dtype=np.int64)
        positions, owner = _ranges(columns["start"][chunks] + offset, columns["size"][chunks].astype(np.int64))
        chunk[positions] = owner
        labels, label_chunk = _gather(columns["labels"], chunks)
        spans, span_chunk = _gather(columns["spans"], chunks)
        return PackedBatch(
            tokens=_tensor(columns["tokens"][index]),
            chunk=_tensor(chunk).view(len(index), self.length),
            num_chunks=len(chunks),
            label_chunk=_tensor(label_chunk),
            label_concept=_tensor(columns["label_concept"][labels]),
            span_pos=_tensor(columns["span_pos"][spans] + offset[span_chunk]),
            span_concept=_tensor(columns["span_concept"][spans]),
            rows=_tensor(columns["row"][chunks]),
            num_bytes=int(columns["num_bytes"][chunks].sum()),
        )


def _gather(offsets: NDArray[Any], rows: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Entries of the chosen compressed rows, and which of the chosen rows each belongs to."""
    starts = offsets[rows]
    return _ranges(starts, offsets[rows + 1] - starts)


def _ranges(starts: NDArray[Any], sizes: NDArray[Any]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Concatenated ranges start..start+size, and the number of the range that each entry is from."""
    owner = np.repeat(np.arange(len(sizes), dtype=np.int64), sizes)
    before = np.cumsum(sizes) - sizes
    return np.arange(len(owner), dtype=np.int64) + (starts - before)[owner], owner


def _tensor(values: NDArray[Any]) -> torch.Tensor:
    return torch.from_numpy(np.ascontiguousarray(values, dtype=np.int64))
