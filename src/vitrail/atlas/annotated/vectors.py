"""Vectors of all chunks, in as many files as the corpus has parts, read as if they were one array."""

from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float16, Int64
from numpy.typing import DTypeLike, NDArray

from vitrail.errors import ArtifactError

OPEN_FILES = 64


class StoredVectors:
    """[R E] fp16, memory-mapped part by part; indexing gives plain arrays."""

    ndim = 2
    dtype = np.dtype(np.float16)

    def __init__(self, files: Sequence[Path], first_rows: Int64[np.ndarray, " parts_and_end"]) -> None:
        """Look at nothing yet but the width.

        Args:
            files: one `.npy` a part, in order.
            first_rows: row of each part's first vector, then R.

        Raises:
            ArtifactError: the first file is missing or damaged.
        """
        self._files, self._first_rows = tuple(files), first_rows
        self._part = lru_cache(OPEN_FILES)(self._open)
        self.shape = (int(first_rows[-1]), self._part(0).shape[1] if files else 0)

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, rows: int | slice | Sequence[int] | NDArray[Any]) -> NDArray[np.float16]:
        """Vectors of one row, of a slice, of row numbers in any order, or of a mask over all rows.

        Args:
            rows: as of a numpy array's first axis; negative ones count from the end.

        Returns:
            [E] for one row, else [n E], read into memory.

        Raises:
            IndexError: no such row.
            ArtifactError: a part is missing or damaged.
        """
        if isinstance(rows, int | np.integer):
            vector: NDArray[np.float16] = self._gather(np.array([rows], np.int64))[0]
            return vector
        if isinstance(rows, slice):
            return self._gather(np.arange(*rows.indices(len(self))))
        picked = np.asarray(rows)
        return self._gather(np.flatnonzero(picked) if picked.dtype == bool else picked.astype(np.int64))

    def __array__(self, dtype: DTypeLike | None = None, copy: bool | None = None) -> NDArray[Any]:
        return np.asarray(self[:], dtype=dtype)

    def _gather(self, rows: Int64[np.ndarray, " n"]) -> Float16[np.ndarray, "n E"]:
        rows = np.where(rows < 0, rows + len(self), rows)
        if len(rows) and not 0 <= rows.min() <= rows.max() < len(self):
            raise IndexError(f"row {rows.min()} or {rows.max()}: there are {len(self)} vectors")
        found = np.empty((len(rows), self.shape[1]), np.float16)
        parts = np.searchsorted(self._first_rows, rows, side="right") - 1
        for part in np.unique(parts).tolist():
            is_here = parts == part
            found[is_here] = self._part(part)[rows[is_here] - self._first_rows[part]]
        return found

    def _open(self, part: int) -> NDArray[np.float16]:
        path = self._files[part]
        try:
            with path.open("rb") as file:
                np.lib.format.read_magic(file)
                shape, is_fortran, dtype = np.lib.format.read_array_header_1_0(file)
            if is_fortran or dtype != self.dtype or len(shape) != self.ndim or shape[0] != self._num_rows(part):
                raise ValueError(f"{dtype} of shape {shape} instead of {self._num_rows(part):,} vectors")
            if 0 in shape:  # nothing that could be mapped
                return np.zeros(shape, np.float16)
            return np.asarray(np.load(path, mmap_mode="r", allow_pickle=False))
        except (OSError, ValueError) as error:
            raise ArtifactError(f"{path}: damaged or missing ({error}); make the annotated corpus again") from error

    def _num_rows(self, part: int) -> int:
        return int(self._first_rows[part + 1] - self._first_rows[part])
