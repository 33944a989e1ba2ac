"""Concept labels: search, groups and label texts, on the recorded toy catalog and on small tables of our own."""

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest

from tests.compat.golden import records, shared
from vitrail.compat import ConceptCatalog
from vitrail.errors import ArtifactError, ConceptNotFound

ROWS: list[dict[str, Any]] = [
    {"concept_id": 0, "name": "Rivers", "description": "water; a river, a river mouth", "group": 4.0},
    {"concept_id": 1, "name": "River boats", "description": "boats", "group": None},
    {"concept_id": 2, "name": "Deltas (C++)", "description": "river's end", "group": 4.0, "is_steerable": False},
    {"concept_id": 3, "name": "Found river", "description": "", "group": float("nan"), "head": "unknown"},
    {"concept_id": 4, "name": "Seas", "description": "salt water", "group": 4.0},
]


def _table(id_column: str = "concept_id") -> pa.Table:
    flags = ("is_steerable", "is_tone", "is_alignment", "is_demographic")
    return pa.table(
        {
            id_column: [row["concept_id"] for row in ROWS],
            "head": [row.get("head", "known") for row in ROWS],
            "concept_name": [row["name"] for row in ROWS],
            "concept_description": [row["description"] for row in ROWS],
            "public_group_id": pa.array([row["group"] for row in ROWS], from_pandas=False),
            "group_name": ["N/A" for _ in ROWS],
            **{flag: [row.get(flag, flag == "is_steerable") for row in ROWS] for flag in flags},
            "extra": list(range(len(ROWS))),
        }
    )


@pytest.fixture
def catalog(tmp_path: Path) -> ConceptCatalog:
    pq.write_table(_table(), tmp_path / "labels.parquet")
    return ConceptCatalog.load(tmp_path / "labels.parquet")


def test_recorded_catalog() -> None:
    directory = shared("concept_catalog")
    catalog, expected = ConceptCatalog.load(directory / "concept_labels.parquet"), records(directory / "expected.json")
    assert len(catalog) == expected["len"]
    heads = [record.head for record in catalog.records]
    assert (heads.count("known"), heads.count("unknown")) == (expected["n_known"], expected["n_unknown"])
    for case in expected["search"]:
        found = catalog.search(case["query"], **case["args"])
        assert [record.concept_id for record in found] == case["ids"], case
    for concept, members in expected["group"].items():
        assert [record.concept_id for record in catalog.group(int(concept))] == members
    for concept, fields in expected["get"].items():
        assert vars(catalog.get(int(concept))) == fields
    for case in expected["labels"]:
        assert catalog.label(case["concept_id"], case["type"]) == case["label"]


def test_search_counts_whole_words_and_names_three_times(catalog: ConceptCatalog) -> None:
    assert [record.concept_id for record in catalog.search("RIVER")] == [1, 0]
    assert [record.concept_id for record in catalog.search("river", steerable_only=False, head=None)] == [1, 3, 0, 2]
    assert [record.concept_id for record in catalog.search("river water", limit=1)] == [0]
    assert catalog.search("rive") == catalog.search("") == []


def test_a_group_begins_with_the_concept_itself(catalog: ConceptCatalog) -> None:
    assert [record.concept_id for record in catalog.group(2)] == [2, 0, 4]
    assert [record.concept_id for record in catalog.group(1)] == [1], "a null is no group"
    assert [record.concept_id for record in catalog.group(3)] == [3], "a NaN is no group"


def test_a_label_names_the_head_of_its_row(catalog: ConceptCatalog) -> None:
    assert catalog.label(3, "known") == "Discovered: Found river"
    assert catalog.label(9, "discovered") == "Discovered: #9"


def test_an_unknown_concept_is_named(catalog: ConceptCatalog) -> None:
    with pytest.raises(ConceptNotFound, match="no concept 9 among 5"):
        catalog.group(9)


def test_the_older_csv_is_read(catalog: ConceptCatalog, tmp_path: Path) -> None:
    pyarrow.csv.write_csv(_table("concept_idx"), tmp_path / "labels.csv")
    assert ConceptCatalog.load(tmp_path / "labels.csv").records == catalog.records


def test_the_environment_names_the_file(
    catalog: ConceptCatalog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STEERLING_CONCEPTS_PATH", str(tmp_path / "labels.parquet"))
    assert ConceptCatalog.load().records == catalog.records
    monkeypatch.delenv("STEERLING_CONCEPTS_PATH")
    with pytest.raises(ArtifactError, match="set STEERLING_CONCEPTS_PATH"):
        ConceptCatalog.load()


def test_a_damaged_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "labels.parquet").write_bytes(b"not a table")
    with pytest.raises(ArtifactError, match=r"labels\.parquet: cannot read"):
        ConceptCatalog.load(tmp_path / "labels.parquet")
    pq.write_table(pa.table({"concept_id": [1]}), tmp_path / "labels.parquet")
    with pytest.raises(ArtifactError, match="not a table of concept labels"):
        ConceptCatalog.load(tmp_path / "labels.parquet")
