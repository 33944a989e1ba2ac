"""The tables of a release as streams of record batches whose columns have our names."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path, PurePath
from typing import NoReturn

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from vitrail.errors import CorpusError, nearest
from vitrail.settings import Settings

BATCH_ROWS = 8_192


class ReleaseTable:
    """One table of a release: files with the same columns."""

    def __init__(self, folder: Path, group: str, columns: Settings) -> None:
        """Find the files and look at their columns.

        Args:
            folder: the release.
            group: name of the table in the column map.
            columns: its group of the column map: `files` and our name → column.

        Raises:
            CorpusError: no file, one outside the folder, a damaged one, or a column that is missing (the nearest
                name is suggested) or holds something else.
        """
        wanted = columns.model_dump()
        self.group, self._pattern = group, wanted.pop("files")
        self._columns: dict[str, str] = {name: column for name, column in wanted.items() if column is not None}
        if self._pattern and (PurePath(self._pattern).is_absolute() or ".." in PurePath(self._pattern).parts):
            raise CorpusError(
                f"{self._pattern}: lies outside {folder} ({group}.files in the column map); name files in it"
            )
        self.files: Sequence[Path] = sorted(folder.glob(self._pattern)) if self._pattern else []
        if self._pattern and not self.files:
            there = sorted(path.name for path in folder.iterdir())
            raise CorpusError(
                f"{folder}: no file '{self._pattern}' ({group}.files in the column map)"
                + (nearest(self._pattern, there) or f"; there are {', '.join(there[:8]) or 'no files'}")
            )
        for path in self.files:
            self._check(path)

    def batches(self) -> Iterator[pa.Table]:
        """The rows, file by file.

        Yields:
            tables of at most `BATCH_ROWS` rows, columns by our names.

        Raises:
            CorpusError: a file turns out damaged.
        """
        tops = sorted({column.partition(".")[0] for column in self._columns.values()})
        for path in self.files:
            try:
                with pq.ParquetFile(path) as file:
                    for batch in file.iter_batches(BATCH_ROWS, columns=tops):
                        yield pa.table({name: _nested(batch, column) for name, column in self._columns.items()})
            except (OSError, pa.ArrowException) as error:
                raise _damaged(path, error) from error

    def _check(self, path: Path) -> None:
        try:
            schema = pq.read_schema(path)
        except (OSError, pa.ArrowException) as error:
            raise _damaged(path, error) from error
        known = _paths(schema)
        for name, column in self._columns.items():
            if column not in known:
                hint = nearest(column, known) or f"; there are {', '.join(list(known)[:12])}"
                self._refuse(path, name, f"no column '{column}'", hint)
            words, is_right = _TYPES.get(name, ("", None))
            if is_right and not (is_right(known[column]) or pa.types.is_null(known[column])):
                self._refuse(path, name, f"column '{column}' holds {known[column]} instead of {words}")

    def _refuse(self, path: Path, name: str, fault: str, hint: str = "") -> NoReturn:
        raise CorpusError(
            f"{path}: {fault} ({self.group}.{name} in the column map){hint}; "
            "write the right one, or null where there is none, into a file for --columns"
        )


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


_TYPES: Mapping[str, tuple[str, Callable[[pa.DataType], bool] | None]] = {
    "start": ("whole numbers", pa.types.is_integer),
    "stop": ("whole numbers", pa.types.is_integer),
    "num_chunks": ("whole numbers", pa.types.is_integer),
    "text": ("text", _is_text),
}
"""What a column must hold to be counted or cut with, by our names."""


def _paths(schema: pa.Schema) -> dict[str, pa.DataType]:
    """Names of columns, and of fields inside lists of structs, with their types."""
    found = {}
    for field in schema:
        found[field.name] = field.type
        kind = (
            field.type.value_type if pa.types.is_list(field.type) or pa.types.is_large_list(field.type) else field.type
        )
        if pa.types.is_struct(kind):
            found |= {f"{field.name}.{kind.field(i).name}": kind.field(i).type for i in range(kind.num_fields)}
    return found


def _nested(batch: pa.RecordBatch, column: str) -> pa.Array:
    top, _, inner = column.partition(".")
    array = batch.column(top)
    if not inner:
        return array
    if pa.types.is_struct(array.type):
        return pc.struct_field(array, inner)
    offsets = pa.concat_arrays(
        [pa.array([0], pa.int64()), pc.cumulative_sum(pc.fill_null(pc.list_value_length(array), 0).cast(pa.int64()))]
    )
    return pa.LargeListArray.from_arrays(offsets, pc.struct_field(pc.list_flatten(array), inner))


def _damaged(path: Path, error: Exception) -> CorpusError:
    problem = " ".join(str(error).split())
    return CorpusError(f"{path}: not a readable Parquet file ({problem}); copy the file again")
