"""Rows of a table of labels, whatever it is written in: CSV, TSV, JSONL (plain, .gz, .zst) or Parquet."""

import csv
import json
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from vitrail.corpus import jsonl_lines
from vitrail.corpus.readers import unreadable
from vitrail.errors import CorpusError

MAX_FIELD_CHARS = 2**31 - 1
"""The csv module's own limit is 131,072: a book in one cell is no mistake."""
_DELIMITERS = {".csv": ",", ".tsv": "\t"}
_JSONL = (".jsonl", ".jsonl.gz", ".jsonl.zst")


def read_rows(path: Path, columns: Collection[str]) -> Iterator[tuple[int, Mapping[str, Any]]]:
    """The rows of a table.

    Args:
        path: the file; its ending says what it is written in.
        columns: those that are wanted; of Parquet no others are read, and their values are None.

    Yields:
        (line or row number from 1, column → value).

    Raises:
        CorpusError: missing, of another kind, damaged, or a line that is no row.
    """
    if not path.is_file():
        raise CorpusError(f"{path}: no such file; name a table of labels (.csv, .tsv, .jsonl or .parquet)")
    if path.suffix.lower() in _DELIMITERS:
        yield from _csv_rows(path, _DELIMITERS[path.suffix.lower()])
    elif path.name.lower().endswith(_JSONL):
        yield from _jsonl_rows(path)
    elif path.suffix.lower() == ".parquet":
        yield from _parquet_rows(path, columns)
    else:
        raise CorpusError(f"{path}: cannot tell what it is written in; name it .csv, .tsv, .jsonl or .parquet")


def _csv_rows(path: Path, delimiter: str) -> Iterator[tuple[int, Mapping[str, Any]]]:
    csv.field_size_limit(MAX_FIELD_CHARS)
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            reader = csv.reader(file, delimiter=delimiter, strict=True)
            head = [name.strip() for name in next(reader, [])]
            _require_distinct(path, head)
            for fields in reader:
                if fields:
                    yield reader.line_num, _record(path, reader.line_num, head, fields)
    except (csv.Error, UnicodeDecodeError) as error:
        raise CorpusError(f"{path}: not valid {path.suffix[1:].upper()} in UTF-8 ({error}); save it as such") from error
    except OSError as error:
        raise unreadable(path, error) from error


def _require_distinct(path: Path, head: Sequence[str]) -> None:
    twice = [name for name, count in Counter(head).items() if name and count > 1]
    if twice:
        raise CorpusError(f"{path}: the first line names '{twice[0]}' twice; give every column a name of its own")


def _record(path: Path, number: int, head: Sequence[str], fields: Sequence[str]) -> Mapping[str, Any]:
    if len(head) == 1 and len(fields) > 1:
        raise CorpusError(
            f"{path}: the first line has one column, line {number} has {len(fields)} fields; part columns by commas "
            "(.csv) or tabs (.tsv)"
        )
    if len(fields) != len(head):
        raise CorpusError(
            f"{path}: line {number} has {len(fields)} fields, the first line has {len(head)}; "
            'put texts that hold commas, quotes or line breaks between "…"'
        )
    return dict(zip(head, fields, strict=True))


def _jsonl_rows(path: Path) -> Iterator[tuple[int, Mapping[str, Any]]]:
    for number, line in enumerate(jsonl_lines(path), 1):
        if not line.strip():
            continue
        try:
            record = json.loads(line)
            if b"\\u" in line:  # half of a pair of surrogates is no text, and only an escape can hold one
                json.dumps(record, ensure_ascii=False).encode()
        except (ValueError, RecursionError) as error:
            raise CorpusError(f"{path}: line {number} is not JSON ({error}); mend or remove it") from error
        if not isinstance(record, dict):
            raise CorpusError(f"{path}: line {number} is no JSON object; write one object a line")
        yield number, record


def _parquet_rows(path: Path, columns: Collection[str]) -> Iterator[tuple[int, Mapping[str, Any]]]:
    number = 0
    try:
        with pq.ParquetFile(path) as file:
            names = file.schema_arrow.names
            for batch in file.iter_batches(1_024, columns=[name for name in names if name in columns]):
                for record in batch.to_pylist():
                    number += 1
                    yield number, dict.fromkeys(names) | record
    # ValueError and OverflowError: text that is not UTF-8, and times that Python's own cannot hold
    except (OSError, pa.ArrowException, ValueError, OverflowError) as error:
        problem = " ".join(str(error).split())
        raise CorpusError(f"{path}: not a readable Parquet file ({problem}); write it again") from error
