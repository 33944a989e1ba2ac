"""Columns on disk: `.npy` files that grow while they are written and are memory-mapped when read."""

from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, DTypeLike, NDArray

from vitrail.errors import ArtifactError


class ColumnWriter:
    """One growing array; its file is a plain `.npy` once the writer is closed."""

    def __init__(self, path: Path, dtype: DTypeLike, width: int | None = None) -> None:
        """Create the file.

        Args:
            path: where, ending in `.npy`.
            dtype: of the values.
            width: values per row, or None for one-dimensional.
        """
        self._dtype = np.dtype(dtype).newbyteorder("<")
        self._width = width
        self._file = path.open("w+b")
        self.num_rows = 0
        self._write_header()

    def __enter__(self) -> "ColumnWriter":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, failure: BaseException | None, trace: TracebackType | None
    ) -> None:
        if failure is None:
            self._file.seek(0)
            self._write_header()
        self._file.close()

    def append(self, values: ArrayLike) -> None:
        """Add rows.

        Args:
            values: [n] or [n width].
        """
        array = np.asarray(values, dtype=self._dtype)
        self._file.write(array.tobytes())
        self.num_rows += len(array)

    def _write_header(self) -> None:
        # numpy pads the header, so that the number of rows can grow in place.
        shape = (self.num_rows,) if self._width is None else (self.num_rows, self._width)
        header = {"descr": self._dtype.str, "fortran_order": False, "shape": shape}
        np.lib.format.write_array_header_1_0(self._file, header)


def open_column(path: Path) -> NDArray[Any]:
    """A stored column, memory-mapped.

    Args:
        path: the `.npy` file.

    Returns:
        the array; read-only.

    Raises:
        ArtifactError: missing, damaged or truncated.
    """
    try:
        column: NDArray[Any] = np.load(path, mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        raise ArtifactError(f"{path}: damaged or missing ({error}); pack the corpus again") from error
    return column.view(np.ndarray)
