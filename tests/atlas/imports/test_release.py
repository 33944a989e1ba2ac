"""An atlas release becomes an annotated corpus: what the labels say, in any order, with every fault reported."""

import copy
import json
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.atlas.imports.releases import Release, make_release, pairs_of
from vitrail.artifacts import Manifest
from vitrail.atlas import AnnotatedCorpus, Chunk, ConceptLibrary
from vitrail.atlas.imports import REPORT_NAME, check_lines, import_release, load_map, scattering
from vitrail.errors import ConfigError, CorpusError

SEED, NUM_CONCEPTS = 11, 7


@pytest.fixture(scope="module")
def release() -> Release:
    return make_release(SEED, num_concepts=NUM_CONCEPTS)


@pytest.fixture(scope="module")
def imported(release: Release, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("release")
    import_release(release.write(folder / "raw"), folder / "annotated", load_map())
    return folder / "annotated"


def _import(release: Release, folder: Path, columns: str = "", *, encode: bool = False) -> tuple[Manifest, list[Chunk]]:
    path = folder / "map.yaml"
    path.write_text(columns, encoding="utf-8")
    manifest = import_release(release.write(folder / "raw"), folder / "annotated", load_map(path), encode=encode)
    return manifest, list(AnnotatedCorpus.open(folder / "annotated").chunks())


def _report(place: Path) -> list[dict[str, Any]]:
    report: list[dict[str, Any]] = json.loads((place / REPORT_NAME).read_text())
    return report


def test_every_chunk_and_label_arrives(release: Release, imported: Path) -> None:
    ids = sorted(concept["concept_id"] for concept in release.concepts)
    documents = {document["document_id"]: document for document in release.documents}
    chunks = list(AnnotatedCorpus.open(imported).chunks())
    assert [chunk.row for chunk in chunks] == list(range(len(release.chunks)))
    by_id = {chunk.chunk_id: chunk for chunk in chunks}
    for row in release.chunks:
        chunk, document = by_id[row["chunk_id"]], documents[row["document_id"]]
        scored = {ids.index(c): score for c, score in zip(row["concept_ids"], row["scores"], strict=True)}
        assert {label.concept_id: round(label.score, 3) for label in chunk.labels} == scored
        assert [label.score for label in chunk.labels] == sorted((label.score for label in chunk.labels), reverse=True)
        assert (chunk.text, chunk.start, chunk.stop) == (row["text"], row["start"], row["end"])
        assert (chunk.source, chunk.domain) == (document["source"], document["domain"])


def test_documents_are_together_and_in_reading_order(imported: Path) -> None:
    chunks = list(AnnotatedCorpus.open(imported).chunks())
    owners = [chunk.document_id for chunk in chunks]
    runs = [name for i, name in enumerate(owners) if i == 0 or owners[i - 1] != name]
    assert len(runs) == len(set(owners))
    assert all(b.start == a.stop for a, b in pairwise(chunks) if a.document_id == b.document_id)


def test_cards_count_what_the_labels_say(release: Release, imported: Path) -> None:
    cards = AnnotatedCorpus.open(imported).library().cards
    rows = sorted(release.concepts, key=lambda row: row["concept_id"])
    assert [(card.name, card.description) for card in cards] == [(row["name"], row["description"]) for row in rows]
    assert json.loads((imported / "release_ids.json").read_text()) == [str(row["concept_id"]) for row in rows]
    for card, row in zip(cards, rows, strict=True):
        scores = [
            score
            for chunk in release.chunks
            for concept, score in zip(chunk["concept_ids"], chunk["scores"], strict=True)
            if concept == row["concept_id"]
        ]
        assert card.num_chunks == len(scores)
        assert card.threshold == pytest.approx(min(scores))


def test_a_sound_release_agrees(imported: Path) -> None:
    lines = check_lines(_report(imported))
    assert lines[0].endswith("not in the release")
    assert lines[1] == f"reverse index against labels, by concept: all {NUM_CONCEPTS} agree"
    assert lines[2].endswith("agree")


def test_order_files_and_buckets_change_nothing(
    release: Release, imported: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The id names the files it was made from; the content must not depend on how rows lie in them."""
    expected = AnnotatedCorpus.open(imported).manifest
    for seed, bucket_bytes, num_files in ((1, 24 * 2**20, 1), (2, 1, 5)):
        monkeypatch.setattr(scattering, "BUCKET_BYTES", bucket_bytes)
        raw = release.write(tmp_path / f"raw{seed}", order_seed=seed, num_files=num_files)
        found = import_release(raw, tmp_path / f"annotated{seed}", load_map())
        assert found.files == expected.files
        assert found.counts == expected.counts
    assert import_release(raw, tmp_path / "again", load_map()).id == found.id


def test_other_names_and_nested_labels(release: Release, imported: Path, tmp_path: Path) -> None:
    other = copy.deepcopy(release)
    for row in other.chunks:
        scored = zip(row.pop("concept_ids"), row.pop("scores"), strict=True)
        row["labels"] = [{"concept": f"c-{concept}", "p": score} for concept, score in scored]
        row["body"] = row.pop("text")
    for row in other.concepts:
        row["concept_id"] = f"c-{row['concept_id']}"
    columns = (
        "chunks: {text: body, concepts: labels.concept, scores: labels.p}\n"
        "reverse_index: {files: null}\ncooccurrence: {files: null}\n"
    )
    _, chunks = _import(other, tmp_path, columns)
    assert chunks == list(AnnotatedCorpus.open(imported).chunks())
    assert all(line.endswith("not in the release") for line in check_lines(_report(tmp_path / "annotated")))


def test_text_is_cut_from_the_document_where_chunks_have_none(release: Release, imported: Path, tmp_path: Path) -> None:
    other = copy.deepcopy(release)
    for document in other.documents:
        own = [row for row in other.chunks if row["document_id"] == document["document_id"]]
        document["body"] = "".join(row["text"] for row in sorted(own, key=lambda row: row["start"]))
    for row in other.chunks:
        del row["text"]
    _, chunks = _import(other, tmp_path, "chunks: {text: null}\ndocuments: {text: body}\n")
    assert chunks == list(AnnotatedCorpus.open(imported).chunks())


def test_vectors_of_the_release_of_minilm_or_none(release: Release, imported: Path, tmp_path: Path) -> None:
    assert AnnotatedCorpus.open(imported).embeddings().shape == (len(release.chunks), 0)
    other, rng = copy.deepcopy(release), np.random.default_rng(0)
    for row in other.chunks:
        row["vector"] = rng.normal(size=5).tolist()
    (tmp_path / "own").mkdir()
    (tmp_path / "made").mkdir()
    _, chunks = _import(other, tmp_path / "own", "chunks: {embedding: vector}")
    vectors = np.asarray(AnnotatedCorpus.open(tmp_path / "own/annotated").embeddings(), np.float32)
    given = {row["chunk_id"]: np.array(row["vector"]) for row in other.chunks}
    for chunk in chunks:
        wanted = given[chunk.chunk_id] / np.linalg.norm(given[chunk.chunk_id])
        assert vectors[chunk.row] == pytest.approx(wanted, abs=1e-3)
    _import(release, tmp_path / "made", encode=True)
    made = np.asarray(AnnotatedCorpus.open(tmp_path / "made/annotated").embeddings(), np.float32)
    assert made.shape == (len(release.chunks), 384)
    assert np.linalg.norm(made, axis=1) == pytest.approx(np.ones(len(made)), abs=2e-3)


def _lose_reverse(release: Release) -> None:
    release.reverse_index[0]["chunk_ids"] = release.reverse_index[0]["chunk_ids"][1:]


def _swap_reverse(release: Release) -> None:
    """As many chunks as before, but other ones."""
    ids = release.reverse_index[0]["chunk_ids"]
    others = [row["chunk_id"] for row in release.chunks if row["chunk_id"] not in ids]
    release.reverse_index[0]["chunk_ids"] = [others[0], *ids[1:]]


def _change_pair(release: Release) -> None:
    release.cooccurrence[0]["count"] += 1


def _lose_pair(release: Release) -> None:
    release.cooccurrence.pop()


def _unknown_pair(release: Release) -> None:
    release.cooccurrence.append({"concept_a": -5, "concept_b": release.concepts[0]["concept_id"], "count": 2})


def _two_unknown(release: Release) -> None:
    release.cooccurrence.append({"concept_a": -5, "concept_b": -6, "count": None})


def _unknown_reverse(release: Release) -> None:
    release.reverse_index.append({"concept_id": -5, "chunk_ids": ["x"]})


@pytest.mark.parametrize(
    ("spoil", "place", "words"),
    [
        (_lose_reverse, 1, "lists"),
        (_swap_reverse, 1, "lists"),
        (_unknown_reverse, 1, "unknown concepts"),
        (_change_pair, 2, "labels give"),
        (_lose_pair, 2, "says 0, labels give"),
        (_unknown_pair, 2, "an unknown concept"),
        (_two_unknown, 2, "an unknown concept with an unknown concept"),
    ],
)
def test_tables_that_disagree_are_reported(
    release: Release, tmp_path: Path, spoil: Callable[[Release], None], place: int, words: str
) -> None:
    spoiled = copy.deepcopy(release)
    spoil(spoiled)
    _import(spoiled, tmp_path)
    report = _report(tmp_path / "annotated")
    assert [check["differing"] for check in report] == [int(number == place) for number in range(3)]
    assert words in check_lines(report)[place]


def test_pairs_in_both_directions_and_stated_counts(release: Release, tmp_path: Path) -> None:
    other = copy.deepcopy(release)
    flipped = [{**row, "concept_a": row["concept_b"], "concept_b": row["concept_a"]} for row in other.cooccurrence]
    own = {"concept_a": other.concepts[0]["concept_id"], "concept_b": other.concepts[0]["concept_id"], "count": 3}
    other.cooccurrence += [*flipped, own]
    for row in other.concepts:
        row["n"] = sum(row["concept_id"] in chunk["concept_ids"] for chunk in other.chunks)
    other.concepts[2]["n"] += 1
    _import(other, tmp_path, "concepts: {num_chunks: n}")
    lines = check_lines(_report(tmp_path / "annotated"))
    assert "1 of 7 differ" in lines[0]
    assert lines[2] == f"co-occurrence against labels, by pair: all {len(pairs_of(other.chunks))} agree"


def test_what_cannot_be_used_is_counted(release: Release, tmp_path: Path) -> None:
    other = copy.deepcopy(release)
    other.chunks.append(copy.deepcopy(other.chunks[0]))
    other.chunks.append({**other.chunks[1], "chunk_id": "blank", "text": " ", "start": 10_000, "end": 10_001})
    other.chunks[2]["concept_ids"], other.chunks[2]["scores"] = [*other.chunks[2]["concept_ids"], -7], [
        *other.chunks[2]["scores"], 0.9
    ]  # fmt: skip
    other.documents.pop()
    other.documents.append({"document_id": "lonely", "source": "web/0", "domain": "odd"})
    manifest, chunks = _import(other, tmp_path)
    assert len(chunks) == len(release.chunks)
    expected = {
        "dropped_duplicate_chunks": 1,
        "dropped_empty_chunks": 1,
        "dropped_labels_of_unknown_concepts": 1,
        "documents_without_record": 1,
        "documents_without_chunks": 1,
    }
    assert {name: manifest.counts[name] for name in expected} == expected
    assert manifest.counts["labels"] == sum(len(chunk["concept_ids"]) for chunk in release.chunks)


def test_names_that_are_taken_or_empty(release: Release, tmp_path: Path) -> None:
    other = copy.deepcopy(release)
    for row in other.concepts[:2]:
        row["name"] = "Same"
    other.concepts[2]["name"] = None
    _import(other, tmp_path)
    names = [card.name for card in AnnotatedCorpus.open(tmp_path / "annotated").library().cards]
    ids = [row["concept_id"] for row in other.concepts[:3]]
    assert names[:3] == ["Same", f"Same ({ids[1]})", f"concept {ids[2]}"]


def test_missing_column_names_the_nearest(release: Release, tmp_path: Path) -> None:
    message = r"no column 'concept_idz' \(chunks.concepts in the column map\); did you mean 'concept_ids'"
    with pytest.raises(CorpusError, match=message):
        _import(release, tmp_path, "chunks: {concepts: concept_idz}")
    assert not (tmp_path / "annotated").exists()


def test_unknown_line_of_a_map_names_the_nearest(tmp_path: Path) -> None:
    (tmp_path / "map.yaml").write_text("chunks: {text_column: body}")
    with pytest.raises(ConfigError, match=r"unknown setting 'chunks.text_column'; did you mean 'text'"):
        load_map(tmp_path / "map.yaml")
    (tmp_path / "map.yaml").write_text("chunk: {text: body}")
    with pytest.raises(ConfigError, match=r"unknown setting 'chunk'; did you mean 'chunks'"):
        load_map(tmp_path / "map.yaml")


def test_missing_and_damaged_tables(release: Release, tmp_path: Path) -> None:
    raw = release.write(tmp_path / "raw")
    with pytest.raises(CorpusError, match="no such folder"):
        import_release(tmp_path / "none", tmp_path / "a", load_map())
    (raw / "chunks-1.parquet").write_bytes((raw / "chunks-1.parquet").read_bytes()[:-30])
    with pytest.raises(CorpusError, match=r"chunks-1.parquet: not a readable Parquet file"):
        import_release(raw, tmp_path / "a", load_map())
    for path in raw.glob("chunks*"):
        path.rename(path.with_name("parts-" + path.name))
    with pytest.raises(CorpusError, match=r"no file 'chunks\*.parquet' \(chunks.files in the column map\)"):
        import_release(raw, tmp_path / "a", load_map())


@pytest.mark.parametrize("pattern", ["/etc/*", "../raw/chunks*.parquet"])
def test_files_lie_in_the_folder_of_the_release(release: Release, tmp_path: Path, pattern: str) -> None:
    raw = release.write(tmp_path / "raw")
    (tmp_path / "map.yaml").write_text(f"chunks: {{files: '{pattern}'}}\n")
    with pytest.raises(CorpusError, match=r"lies outside .*\(chunks.files in the column map\); name files in it"):
        import_release(raw, tmp_path / "a", load_map(tmp_path / "map.yaml"))


@pytest.mark.parametrize(("column", "words"), [("start", "whole numbers"), ("text", "text")])
def test_a_column_of_another_type_is_named(release: Release, tmp_path: Path, column: str, words: str) -> None:
    other = copy.deepcopy(release)
    for row in other.chunks:
        row[column] = [row[column]]
    with pytest.raises(CorpusError, match=rf"column '{column}' holds list.* instead of {words} \(chunks.{column} in"):
        _import(other, tmp_path)


def test_labels_of_another_table_of_concepts_are_refused(release: Release, tmp_path: Path) -> None:
    other = copy.deepcopy(release)
    for row in other.concepts:
        row["concept_id"] = str(row["concept_id"])
    with pytest.raises(CorpusError, match=r"none of \d+ labels is a concept of the table of concepts; name the"):
        _import(other, tmp_path)
    assert not (tmp_path / "annotated").exists()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"scores": [0.5] * 9}, r"9 scores; set chunks.scores to null"),
        ({"concept_ids": [101], "scores": [float("nan")]}, r"has the score nan"),
        ({"concept_ids": [101], "scores": [1e300]}, r"has the score 1e\+300; set chunks.scores to null"),
    ],
)
def test_labels_that_cannot_be_meant(release: Release, tmp_path: Path, change: dict[str, Any], message: str) -> None:
    other = copy.deepcopy(release)
    other.chunks[4].update(change)
    if "concept_ids" in change:
        other.chunks[4]["concept_ids"] = [other.concepts[0]["concept_id"]]
    with pytest.raises(CorpusError, match=message):
        _import(other, tmp_path)


@pytest.mark.parametrize(("start", "stop"), [(-5, 40), (2**62, 55), (55, 0)])
def test_places_that_no_text_has(release: Release, tmp_path: Path, start: int, stop: int) -> None:
    other = copy.deepcopy(release)
    other.chunks[4].update(start=start, end=stop)
    with pytest.raises(CorpusError, match=f"begins at {start} and ends at {stop}, which is no place in a text"):
        _import(other, tmp_path)


def test_names_that_a_terminal_would_obey_are_levelled(release: Release, tmp_path: Path) -> None:
    other = copy.deepcopy(release)
    other.concepts[0]["name"] = "a\nb\x1b[31mc"
    _import(other, tmp_path)
    assert ConceptLibrary.load(tmp_path / "annotated").card("known", 0).name == "a b [31mc"


def test_concept_that_is_there_twice(release: Release, tmp_path: Path) -> None:
    other = copy.deepcopy(release)
    for row in other.concepts[:2]:
        row["concept_id"] = 0
    with pytest.raises(CorpusError, match="concept 0 is there twice"):
        _import(other, tmp_path)


def test_release_without_text(tmp_path: Path) -> None:
    empty = make_release(num_documents=2)
    for row in empty.chunks:
        row["text"] = ""
    with pytest.raises(CorpusError, match="no chunk with text"):
        _import(empty, tmp_path)
    assert not (tmp_path / "annotated").exists()


def test_files_whose_lists_are_empty_or_of_another_width(release: Release, imported: Path, tmp_path: Path) -> None:
    """A file without a single label has a list of nulls, and another writer has large lists."""
    raw = release.write(tmp_path / "raw", num_files=1)
    table = pq.read_table(raw / "chunks-0.parquet")
    is_empty = [not row for row in table["concept_ids"].to_pylist()]
    bare = table.filter(pa.array(is_empty))
    place = bare.column_names.index("concept_ids")
    nulls = pa.array([[] for _ in range(len(bare))], pa.list_(pa.null()))
    pq.write_table(bare.set_column(place, "concept_ids", nulls), raw / "chunks-1.parquet")
    full = table.filter(pa.array([not value for value in is_empty]))
    large = full["concept_ids"].cast(pa.large_list(pa.int64()))
    pq.write_table(full.set_column(place, "concept_ids", large), raw / "chunks-0.parquet")
    found = import_release(raw, tmp_path / "annotated", load_map())
    assert found.files == AnnotatedCorpus.open(imported).manifest.files


@pytest.mark.parametrize(
    ("columns", "values", "message"),
    [
        ("concepts: {path: x}", "Science/Physics", "column 'x' holds string instead of lists of names"),
        ("concepts: {words: x}", "beam light", "column 'x' holds string instead of lists of words"),
        ("concepts: {name: x}", ["a"], r"column 'x' holds list.* instead of single values"),
        ("chunks: {concepts: x}", 7, "column 'x' holds int64 instead of lists of concept ids"),
        ("chunks: {scores: x}", "0.5", "column 'x' holds string instead of lists of numbers"),
        ("chunks: {scores: x}", ["0.5"], "column 'x' holds list.* instead of lists of numbers"),
        ("chunks: {embedding: x}", ["0.5"], "column 'x' holds list.* instead of lists of numbers"),
    ],
)
def test_lists_must_be_lists(release: Release, tmp_path: Path, columns: str, values: object, message: str) -> None:
    """A path written as text was taken for branches of one letter each, a single concept ended in a traceback."""
    other = copy.deepcopy(release)
    for row in getattr(other, columns.partition(":")[0]):
        row["x"] = values
    with pytest.raises(CorpusError, match=message):
        _import(other, tmp_path, columns)


@pytest.mark.parametrize("vector", [[1.0, 2.0], [1.0, None, 2.0], [1.0, 1e300, 2.0]])
def test_vectors_that_cannot_be_meant(release: Release, tmp_path: Path, vector: list[float | None]) -> None:
    """One of another width ended in a traceback, one that is no number in a page that could not be made."""
    other = copy.deepcopy(release)
    for row in other.chunks:
        row["vector"] = [0.5, 1.0, 1.5]
    other.chunks[9]["vector"] = vector
    with pytest.raises(
        CorpusError, match=rf"'{other.chunks[9]['chunk_id']}' has a vector of .* the vectors are 3 wide"
    ):
        _import(other, tmp_path, "chunks: {embedding: vector}")


def test_a_column_without_values_in_the_first_file(release: Release, tmp_path: Path) -> None:
    """Its type was taken from there, and the text in the next file ended in a traceback."""
    raw = release.write(tmp_path / "raw", num_files=2)
    table = pq.read_table(raw / "chunks-0.parquet")
    other = table.set_column(table.column_names.index("text"), "text", pa.nulls(len(table)))
    pq.write_table(other, raw / "chunks-0.parquet")
    manifest = import_release(raw, tmp_path / "annotated", load_map())
    assert manifest.counts["chunks"] == pq.read_metadata(raw / "chunks-1.parquet").num_rows
    assert manifest.counts["dropped_empty_chunks"] == len(table)


def test_files_that_disagree_on_a_type(release: Release, tmp_path: Path) -> None:
    raw = release.write(tmp_path / "raw", num_files=2)
    table = pq.read_table(raw / "chunks-1.parquet")
    numbers = pa.array(range(len(table)), pa.int64())
    other = table.set_column(table.column_names.index("chunk_id"), "chunk_id", numbers)
    pq.write_table(other, raw / "chunks-1.parquet")
    with pytest.raises(CorpusError, match=r"chunks-1.parquet: other types than in chunks-0.parquet .*chunk_id"):
        import_release(raw, tmp_path / "annotated", load_map())


def test_text_that_is_not_utf8(release: Release, tmp_path: Path) -> None:
    raw = release.write(tmp_path / "raw")
    table = pq.read_table(raw / "documents-0.parquet")
    place, bad = table.column_names.index("domain"), pa.array([b"\xff"] * len(table)).view(pa.string())
    pq.write_table(table.set_column(place, "domain", bad), raw / "documents-0.parquet")
    with pytest.raises(CorpusError, match=r"documents-0.parquet: not a readable Parquet file .*UTF8"):
        import_release(raw, tmp_path / "annotated", load_map())


def test_text_without_a_stop_ends_where_the_next_chunk_begins(release: Release, imported: Path, tmp_path: Path) -> None:
    """Every chunk went to the end of the document."""
    other = copy.deepcopy(release)
    for document in other.documents:
        own = [row for row in other.chunks if row["document_id"] == document["document_id"]]
        document["body"] = "".join(row["text"] for row in sorted(own, key=lambda row: row["start"]))
    columns = "chunks: {text: null, stop: null}\ndocuments: {text: body}\n"
    _, chunks = _import(other, tmp_path, columns)
    assert chunks == list(AnnotatedCorpus.open(imported).chunks())
    (tmp_path / "b").mkdir()
    with pytest.raises(CorpusError, match="has no text, start or stop"):
        _import(other, tmp_path / "b", "chunks: {text: null, start: null, stop: null}\ndocuments: {text: body}\n")


def test_a_wrong_pair_in_both_directions_is_one_pair(release: Release, tmp_path: Path) -> None:
    """It was counted twice: "2 of 1 differ"."""
    other = copy.deepcopy(release)
    pair = {**other.cooccurrence[0], "count": other.cooccurrence[0]["count"] + 1}
    flipped = {**pair, "concept_a": pair["concept_b"], "concept_b": pair["concept_a"]}
    other.cooccurrence = [pair, flipped, *other.cooccurrence[1:]]
    _import(other, tmp_path)
    check = _report(tmp_path / "annotated")[2]
    assert (check["differing"], check["compared"], len(check["examples"])) == (1, len(pairs_of(other.chunks)), 1)


@pytest.mark.parametrize(
    ("table", "name"), [("chunks", "document_id"), ("chunks", "chunk_id"), ("documents", "document_id")]
)
def test_rows_without_an_id(release: Release, tmp_path: Path, table: str, name: str) -> None:
    """All of them became chunks of one document called "None"."""
    other = copy.deepcopy(release)
    getattr(other, table)[3][name] = None
    with pytest.raises(CorpusError, match=rf"a row of {table} has no {name} "):
        _import(other, tmp_path)


def test_a_new_name_may_be_taken_too(release: Release, tmp_path: Path) -> None:
    other = copy.deepcopy(release)
    ids = [row["concept_id"] for row in other.concepts[:3]]
    for row, name in zip(other.concepts[:3], (f"Same ({ids[2]})", "Same", "Same"), strict=True):
        row["name"] = name
    _import(other, tmp_path)
    names = [card.name for card in AnnotatedCorpus.open(tmp_path / "annotated").library().cards]
    assert names[:3] == [f"Same ({ids[2]})", "Same", f"Same ({ids[2]}) ({ids[2]})"]


def test_a_column_with_a_dot_in_its_name(release: Release, imported: Path, tmp_path: Path) -> None:
    other = copy.deepcopy(release)
    for row in other.chunks:
        row["my.text"] = row.pop("text")
    _, chunks = _import(other, tmp_path, "chunks: {text: my.text}")
    assert chunks == list(AnnotatedCorpus.open(imported).chunks())
