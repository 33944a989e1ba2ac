"""`vitrail atlas import`, as it is typed."""

import json
from collections.abc import Callable
from pathlib import Path
from pydoc_data.topics import topics
from typing import Any

import pyarrow.parquet as pq
import pytest

from tests.atlas.annotator.embedding_server import good, serving
from tests.atlas.imports.releases import make_release
from vitrail.atlas import AnnotatedCorpus, Annotator, ConceptLibrary
from vitrail.atlas.concepts.edits import concepts_of
from vitrail.atlas.concepts.finding import CLUSTERS
from vitrail.cli.main import main
from vitrail.errors import ArtifactError

Type = Callable[..., tuple[int, str, str]]


@pytest.fixture
def type_in(capsys: pytest.CaptureFixture[str]) -> Type:
    """Runs `vitrail atlas import`; gives exit code, stdout, stderr."""

    def typing(*words: object) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as ended:
            main(["atlas", "import", *map(str, words)])
        return (int(ended.value.code or 0), *capsys.readouterr())

    return typing


def test_a_folder_becomes_an_annotated_corpus(tmp_path: Path, type_in: Type) -> None:
    release = make_release(3)
    release.cooccurrence[0]["count"] += 5
    raw = release.write(tmp_path / "raw")
    code, out, _ = type_in(raw, "--out", tmp_path / "annotated", "--json")
    found = json.loads(out)
    assert (code, found["kind"], found["counts"]["chunks"]) == (0, "annotated", len(release.chunks))
    assert [check["differing"] for check in found["checks"]] == [0, 0, 1]
    assert AnnotatedCorpus.open(tmp_path / "annotated").num_chunks == len(release.chunks)
    code, out, _ = type_in(raw, "--out", tmp_path / "annotated")
    assert "reverse index against labels, by concept: all 7 agree" in out
    assert "labels give" in out.splitlines()[-1]


def test_flags_of_the_other_kind_are_refused(tmp_path: Path, type_in: Type) -> None:
    raw = make_release(3).write(tmp_path / "raw")
    (tmp_path / "labels.csv").write_text("concept,text\na,b\n")
    code, _, err = type_in(raw, "--out", tmp_path / "a", "--num_concepts", "9")
    assert (code, "a release brings its own labels" in err) == (2, True)
    code, _, err = type_in(tmp_path / "labels.csv", "--out", tmp_path / "a", "--encode")
    assert (code, "are for a release's folder" in err) == (2, True)
    for flag in ("--concept", "--text", "--separator"):
        code, _, err = type_in(raw, "--out", tmp_path / "a", flag, "x")
        assert (code, f"{flag} is for a table of labels" in err) == (2, True)
    assert not (tmp_path / "a").exists()


def test_a_table_becomes_an_atlas(tmp_path: Path, type_in: Type) -> None:
    """Python's reference topics, labelled by what they speak of: the fitted annotator knows which is which."""
    wanted: dict[str, tuple[str, ...]] = {
        "numbers": ("FLOAT", "INTEGER", "NUMBER"),
        "classes": ("CLASS",),
        "loops": ("WHILE", "LOOP", "ITERA"),
    }
    rows: list[dict[str, Any]] = []
    for name in sorted(topics):
        for part in topics[name].split("\n\n"):
            carried = [concept for concept, words in wanted.items() if any(word in part.upper() for word in words)]
            if len(part) > 80:
                rows.append({"concept": carried, "text": part})
    labels = tmp_path / "labels.jsonl"
    labels.write_text("".join(json.dumps(row) + "\n" for row in rows))
    code, out, err = type_in(labels, "--out", tmp_path / "atlas", "--json")
    assert code == 0, err
    assert json.loads(out)["kind"] == "atlas"
    cards = ConceptLibrary.load(tmp_path / "atlas").cards
    assert [card.name for card in cards] == sorted(wanted)
    annotation = Annotator.load(tmp_path / "atlas").annotate([row["text"] for row in rows])
    for card in cards:
        is_labelled = [any(label.concept_id == card.concept_id for label in found) for found in annotation.labels]
        is_true = [card.name in row["concept"] for row in rows]
        base = sum(is_true) / len(rows)
        hits = sum(a and b for a, b in zip(is_labelled, is_true, strict=True))
        assert hits / max(sum(is_labelled), 1) > 1.5 * base, f"labels of '{card.name}' are no better than chance"
    with pytest.raises(ArtifactError, match="from a table of labels; change that table and import it again"):
        concepts_of(tmp_path / "atlas")
    clusters = pq.read_table(tmp_path / "atlas" / "clusters.parquet")
    assert (clusters.num_rows, clusters.schema) == (0, CLUSTERS)


def test_a_table_with_too_little_text_is_one_line(tmp_path: Path, type_in: Type) -> None:
    (tmp_path / "labels.csv").write_text("concept,text\na,b\n")
    code, _, err = type_in(tmp_path / "labels.csv", "--out", tmp_path / "a")
    assert (code, len(err.strip().splitlines()[-1]) > 0, "Traceback" in err) == (2, True, False)
    assert not (tmp_path / "a").exists()


def test_a_table_whose_texts_a_server_encodes(tmp_path: Path, type_in: Type) -> None:
    rows = [{"concept": name, "text": part} for name in sorted(topics) for part in topics[name].split("\n\n")[:2]]
    labels = tmp_path / "labels.jsonl"
    labels.write_text("".join(json.dumps(row) + "\n" for row in rows[:40]))
    words = (labels, "--out", tmp_path / "atlas", "--encoder", "endpoint:m")
    code, _, err = type_in(*words)
    assert (code, "--endpoint.url" in err) == (2, True)
    with serving(good) as (url, requests):
        code, _, err = type_in(*words, "--endpoint.url", url)
    assert code == 0, err
    assert len(requests) > 1
