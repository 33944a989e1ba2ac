"""A user's own labels: every format gives the same, in any order, and bad tables say what is wrong."""

import csv
import gzip
import json
import random
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NoReturn

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vitrail.atlas.imports import LabelColumns, read_labels
from vitrail.atlas.imports.labels import MAX_EXAMPLES
from vitrail.errors import ConfigError, CorpusError

ROWS: list[dict[str, Any]] = [
    {"concept": "Rivers", "text": 'The "Rhine", wide,\nflows north.', "source": "atlas"},
    {"concept": "rivers; Stone", "text": "A pebble in the brook.", "source": "walk"},
    {"concept": "  RIVERS ", "text": "The Danube.", "source": "atlas"},
    {"concept": "stone", "text": "Granite.", "source": "walk"},
    {"concept": "Stone", "text": "Granite.", "source": "atlas"},
    {"concept": "", "text": "Nothing of either.", "source": "walk"},
    {"concept": "Stone", "text": "  ", "source": "walk"},
    {"concept": "Rivers", "text": "The Rhone.", "source": "walk"},
]


def _write(folder: Path, name: str, rows: list[dict[str, Any]]) -> Path:
    path = folder / name
    if name.endswith((".csv", ".tsv")):
        with path.open("w", encoding="utf-8", newline="") as file:
            writer = csv.DictWriter(file, list(rows[0]), delimiter="," if name.endswith("csv") else "\t")
            writer.writeheader()
            writer.writerows(rows)
    elif name.endswith(".parquet"):
        pq.write_table(pa.Table.from_pylist(rows), path)
    else:
        data = "".join(json.dumps(row) + "\n" for row in rows).encode()
        path.write_bytes(gzip.compress(data) if name.endswith(".gz") else data)
    return path


@pytest.mark.parametrize("name", ["a.csv", "a.tsv", "a.jsonl", "a.jsonl.gz", "a.parquet"])
def test_every_format_gives_the_same(tmp_path: Path, name: str) -> None:
    labels = read_labels(_write(tmp_path, name, ROWS), LabelColumns())
    assert [concept.name for concept in labels.concepts] == ["Rivers", "Stone"]
    carried = [sorted(concept.examples) for concept in labels.concepts]
    rivers = ["A pebble in the brook.", 'The "Rhine", wide,\nflows north.', "The Danube.", "The Rhone."]
    assert carried == [rivers, ["A pebble in the brook.", "Granite."]], "a text of two sources is one text"
    assert sorted(labels.texts) == sorted({*rivers, "Granite.", "Nothing of either."})
    assert labels == read_labels(_write(tmp_path, "other.csv", ROWS), LabelColumns())


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 10_000))
def test_order_of_rows_changes_nothing(seed: int) -> None:
    rows = [
        row | {"kind": kind, "description": text}
        for row, kind, text in zip(ROWS, ["content", "tone"] * 4, "abacabab", strict=True)
    ]
    with TemporaryDirectory() as folder:
        expected = read_labels(_write(Path(folder), "a.jsonl", rows), LabelColumns())
        random.Random(seed).shuffle(rows)
        assert read_labels(_write(Path(folder), "a.jsonl", rows), LabelColumns()) == expected


def test_lists_and_other_columns(tmp_path: Path) -> None:
    rows: list[dict[str, Any]] = [
        {"tags": ["a; b", "c"], "body": "one"},
        {"tags": None, "body": "two"},
        {"tags": [], "body": "three"},
    ]
    columns = LabelColumns(concept="tags", text="body")
    for name in ("a.jsonl", "a.parquet"):
        labels = read_labels(_write(tmp_path, name, rows), columns)
        assert [concept.name for concept in labels.concepts] == ["a; b", "c"], "a list is not cut at the separator"
    pipes = _write(tmp_path, "b.csv", [{"tags": "a|b", "body": "x"}])
    labels = read_labels(pipes, LabelColumns(concept="tags", text="body", separator="|"))
    assert [concept.name for concept in labels.concepts] == ["a", "b"]


def test_a_line_without_the_key_of_the_concept_is_a_text_without_one(tmp_path: Path) -> None:
    """JSON leaves out what is empty; only a table in which no line has the key is a wrong table."""
    (tmp_path / "a.jsonl").write_text('{"text": "one"}\n{"concept": "a", "text": "two"}\n')
    labels = read_labels(tmp_path / "a.jsonl", LabelColumns())
    assert (sorted(labels.texts), [c.examples for c in labels.concepts]) == (["one", "two"], [("two",)])
    (tmp_path / "b.jsonl").write_text('{"text": "one"}\n{"concepts": "a", "text": "two"}\n')
    with pytest.raises(CorpusError, match="no column 'concept' in line 1"):
        read_labels(tmp_path / "b.jsonl", LabelColumns())


def test_values_of_parquet_that_python_cannot_hold(tmp_path: Path) -> None:
    """A time in nanoseconds used to end in a traceback, even in a column that nobody asked for."""
    times = pa.array([1, 2], pa.timestamp("ns"))
    rows = {"concept": ["a", "b"], "text": ["one", "two"]}
    pq.write_table(pa.table({**rows, "when": times}), tmp_path / "a.parquet")
    assert len(read_labels(tmp_path / "a.parquet", LabelColumns()).texts) == 2
    no_text = pa.StringArray.from_buffers(2, pa.array([0, 1, 2], pa.int32()).buffers()[1], pa.py_buffer(b"\xff\xff"))
    years = pa.array([10**15] * 2, pa.timestamp("ms"))  # after the year 30000
    for name, values in (("time", times), ("year", years), ("bytes", no_text)):
        pq.write_table(pa.table({**rows, "description": values}), tmp_path / f"{name}.parquet")
        with pytest.raises(CorpusError, match=rf"{name}.parquet: not a readable Parquet file"):
            read_labels(tmp_path / f"{name}.parquet", LabelColumns())


def test_a_table_that_may_not_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Patched, since root, as whom tests often run, may read every file."""

    def refused(*_: object, **__: object) -> NoReturn:
        raise PermissionError(13, "Permission denied")

    path = _write(tmp_path, "a.csv", ROWS)
    monkeypatch.setattr(Path, "open", refused)
    with pytest.raises(CorpusError, match=r"a.csv: cannot be read \(Permission denied\)"):
        read_labels(path, LabelColumns())


def test_examples_are_bounded_and_a_fair_sample(tmp_path: Path) -> None:
    rows = [{"concept": "a", "text": f"text {number}"} for number in range(3 * MAX_EXAMPLES)]
    labels = read_labels(_write(tmp_path, "a.jsonl", rows), LabelColumns())
    numbers = [int(text.split()[1]) for text in labels.concepts[0].examples]
    assert len(numbers) == MAX_EXAMPLES
    assert 0.3 < sum(numbers) / len(numbers) / (3 * MAX_EXAMPLES) < 0.7, "not the first ones of the file"


def test_a_cell_of_a_megabyte_is_read(tmp_path: Path) -> None:
    text = "river " * 200_000
    labels = read_labels(_write(tmp_path, "a.csv", [{"concept": "a", "text": text}]), LabelColumns())
    assert labels.texts == (text,)


BAD: Mapping[str, tuple[str, bytes, str]] = {
    "nearest column": ("a.csv", b"concepts,text\na,b\n", r"no column 'concept'; did you mean 'concepts'\?"),
    "other column": ("a.csv", b"x,y\na,b\n", r"no column 'text'; there are x, y.*--concept and --text"),
    "fields": ("a.csv", b"concept,text\na,b,c\n", r"line 2 has 3 fields, the first line has 2"),
    "columns": ("a.csv", b"concept,text,text\na,b,c\n", r"the first line names 'text' twice; give every column"),
    "quote": ("a.csv", b'concept,text\na,"b"c"\n', r"not valid CSV in UTF-8"),
    "encoding": ("a.tsv", b"concept\ttext\na\t\xff\xfe\n", r"not valid TSV in UTF-8"),
    "no json": ("a.jsonl", b'{"concept": "a", "text": "b"}\n{"conc\n', r"line 2 is not JSON"),
    "no object": ("a.jsonl", b"[1]\n", r"line 1 is no JSON object"),
    "torn gzip": ("a.jsonl.gz", gzip.compress(b'{"concept": "a"}' * 99)[:-20], r"corrupt compressed file"),
    "no parquet": ("a.parquet", b"PAR1nonsense", r"not a readable Parquet file"),
    "ending": ("a.xlsx", b"x", r"cannot tell what it is written in"),
    "empty": ("a.csv", b"", r"no row has both a text and a concept"),
    "no concept": ("a.csv", b"concept,text\n,b\n", r"no row has both a text and a concept; fill the column 'concept'"),
    "kind": (
        "a.csv",
        b"concept,text,kind\na,b,tones\n",
        r"line 2: kind 'tones'; did you mean 'tone'.*; known: content",
    ),
    "surrogate": (
        "a.jsonl",
        b'{"concept": "a", "text": "b \\ud800"}\n',
        r"line 1 is not JSON \(.*surrogates not allowed",
    ),
    "number": ("a.jsonl", b'{"concept": "a", "text": 5}\n', r"line 1: 'text' holds 5, which is no text; --text names"),
    "value": ("a.jsonl", b'{"concept": {"a": 1}, "text": "b"}\n', r"line 1: 'concept' holds .*write a name, or a list"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_tables_say_what_is_wrong(tmp_path: Path, case: str) -> None:
    name, content, message = BAD[case]
    (tmp_path / name).write_bytes(content)
    with pytest.raises(CorpusError, match=message) as caught:
        read_labels(tmp_path / name, LabelColumns())
    assert "\n" not in str(caught.value)
    assert name in str(caught.value)


def test_concept_and_text_are_two_columns() -> None:
    with pytest.raises(ConfigError, match="concept and text are both the column 'x'; name two columns"):
        LabelColumns.parse({"concept": "x", "text": "x"})


def test_missing_file(tmp_path: Path) -> None:
    with pytest.raises(CorpusError, match="no such file"):
        read_labels(tmp_path / "none.csv", LabelColumns())
