"""The tables of a release as streams of record batches whose columns have our names."""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
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
                name is suggested), holds something else, or holds another thing in each file.
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
        self._schema = pa.schema([])
        for path in self.files:
            self._schema = self._joined(path, self._check(path))

    def batches(self) -> Iterator[pa.Table]:
        """The rows, file by file.

        Yields:
            tables of at most `BATCH_ROWS` rows, columns by our names and of the same types in all files.

        Raises:
            CorpusError: a file turns out damaged.
        """
        for path in self.files:
            try:
                with pq.ParquetFile(path) as file:
                    names = set(file.schema_arrow.names)
                    tops = sorted({_top(column, names) for column in self._columns.values()})
                    for batch in file.iter_batches(BATCH_ROWS, columns=tops):
                        table = pa.table({name: _nested(batch, column) for name, column in self._columns.items()})
                        table.validate(full=True)  # text that is not UTF-8
                        yield table.cast(self._schema)
            except (OSError, pa.ArrowException) as error:
                raise _damaged(path, error) from error

    def _check(self, path: Path) -> pa.Schema:
        """What the columns of a file hold, by our names."""
        try:
            schema = pq.read_schema(path)
        except (OSError, pa.ArrowException) as error:
            raise _damaged(path, error) from error
        known = _paths(schema)
        for name, column in self._columns.items():
            if column not in known:
                hint = nearest(column, known) or f"; there are {', '.join(list(known)[:12])}"
                self._refuse(path, name, f"no column '{column}'", hint)
            words, is_right = _TYPES.get(name, _SINGLE)
            if not (is_right(known[column]) or pa.types.is_null(known[column])):
                self._refuse(path, name, f"column '{column}' holds {known[column]} instead of {words}")
        return pa.schema([(name, _widest(known[column])) for name, column in self._columns.items()])

    def _joined(self, path: Path, found: pa.Schema) -> pa.Schema:
        try:
            return pa.unify_schemas([self._schema, found], promote_options="permissive")
        except pa.ArrowException as error:
            problem = " ".join(str(error).split())
            raise CorpusError(
                f"{path}: other types than in {self.files[0].name} ({self.group} in the column map; {problem}); "
                "write both files with the same types"
            ) from error

    def _refuse(self, path: Path, name: str, fault: str, hint: str = "") -> NoReturn:
        raise CorpusError(
            f"{path}: {fault} ({self.group}.{name} in the column map){hint}; "
            "write the right one, or null where there is none, into a file for --columns"
        )


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def _is_single(kind: pa.DataType) -> bool:
    return not pa.types.is_nested(kind)


def _is_number(kind: pa.DataType) -> bool:
    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind))


def _is_list(kind: pa.DataType) -> bool:
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind))


def _is_list_of(is_right: Callable[[pa.DataType], bool]) -> Callable[[pa.DataType], bool]:
    return lambda kind: _is_list(kind) and (is_right(kind.value_type) or pa.types.is_null(kind.value_type))


_SINGLE = ("single values", _is_single)
_TYPES: Mapping[str, tuple[str, Callable[[pa.DataType], bool]]] = {
    "start": ("whole numbers", pa.types.is_integer),
    "stop": ("whole numbers", pa.types.is_integer),
    "num_chunks": ("whole numbers", pa.types.is_integer),
    "text": ("text", _is_text),
    "words": ("lists of words", _is_list_of(_is_single)),
    "path": ("lists of names", _is_list_of(_is_single)),
    "concepts": ("lists of concept ids", _is_list_of(_is_single)),
    "scores": ("lists of numbers", _is_list_of(_is_number)),
    "embedding": ("lists of numbers", _is_list_of(_is_number)),
    "chunk_ids": ("chunk ids, or lists of them", lambda kind: _is_single(kind) or _is_list_of(_is_single)(kind)),
}
"""What a column must hold, by our names; those that are not here hold `_SINGLE`."""


def _widest(kind: pa.DataType) -> pa.DataType:
    """One type for all the ways in which Arrow writes lists and text, so that files by several writers agree."""
    if _is_list(kind):
        return pa.large_list(_widest(kind.value_type))
    if pa.types.is_dictionary(kind):
        return _widest(kind.value_type)
    return pa.large_string() if _is_text(kind) else kind


def _paths(schema: pa.Schema) -> dict[str, pa.DataType]:
    """Names of columns, and of fields inside structs or lists of structs, with their types."""
    found: dict[str, pa.DataType] = {}
    for field in schema:
        kind = field.type.value_type if _is_list(field.type) else field.type
        if pa.types.is_struct(kind):
            inner = {f"{field.name}.{kind.field(i).name}": kind.field(i).type for i in range(kind.num_fields)}
            found |= {name: pa.large_list(own) if _is_list(field.type) else own for name, own in inner.items()}
    return found | {field.name: field.type for field in schema}  # a column may itself have a dot in its name


def _top(column: str, names: Collection[str]) -> str:
    return column if column in names else column.partition(".")[0]


def _nested(batch: pa.RecordBatch, column: str) -> pa.Array:
    top = _top(column, batch.schema.names)
    array, inner = batch.column(top), column[len(top) + 1 :]
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
