"""Import: any order of any inputs gives the same corpus; what cannot be read is named."""

import gzip
import json
import os
import random
from collections import Counter
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from vitrail.artifacts import Writing, read_json
from vitrail.corpus import Corpus, CorpusSettings, Document, document_id, import_corpus, split_of
from vitrail.corpus.store import write_documents
from vitrail.errors import ArtifactError, CorpusError

SETTINGS = CorpusSettings()
RECORDS = [
    {"id": "r1", "text": "Alpha is first.", "source": "greek/1", "domain": "letters", "license": "CC0", "title": "A"},
    {"text": "Beta\r\nis second.", "year": 1999, "metadata": {"by": "me"}},
]


def jsonl() -> bytes:
    return "".join(json.dumps(record) + "\n" for record in RECORDS).encode()


def make_inputs(folder: Path) -> list[Path]:
    (folder / "texts" / "history").mkdir(parents=True)
    (folder / "texts" / "history" / "rome.txt").write_text("Rome was not built in a day.")
    (folder / "texts" / "readme.md").write_text("\ufeffA note about the texts.")
    (folder / "texts" / ".hidden.txt").write_text("not to be read")
    (folder / "plain.jsonl").write_bytes(jsonl())
    (folder / "zipped.jsonl.gz").write_bytes(gzip.compress(jsonl(), mtime=0))
    (folder / "packed.jsonl.zst").write_bytes(zstandard.compress(jsonl()) + zstandard.compress(b'{"text": "Gamma."}'))
    pq.write_table(pa.Table.from_pylist([{"text": "Delta in a table.", "domain": "letters"}]), folder / "t.parquet")
    return [folder / name for name in ("texts", "plain.jsonl", "zipped.jsonl.gz", "packed.jsonl.zst", "t.parquet")]


def test_all_formats_are_read(tmp_path: Path) -> None:
    manifest = import_corpus(make_inputs(tmp_path), tmp_path / "corpus", SETTINGS)
    corpus = Corpus.open(tmp_path / "corpus")
    documents = list(corpus.documents())
    assert corpus.num_documents == len(documents) == 8
    assert corpus.num_bytes == sum(len(document.text.encode()) for document in documents)
    assert manifest.counts["duplicate_documents"] == 2, "greek/1 is the same document in three files"
    assert [document.id for document in documents] == sorted(document_id(d.text, d.source) for d in documents)
    by_text = {document.text: document for document in documents}
    rome = by_text["Rome was not built in a day."]
    assert (rome.source, rome.domain, rome.title) == ("texts/history/rome.txt", "history", "rome")
    assert by_text["A note about the texts."].domain == "texts"
    assert by_text["Delta in a table."].domain == "letters"
    alpha = by_text["Alpha is first."]
    assert (alpha.source, alpha.license, alpha.title, alpha.metadata) == ("greek/1", "CC0", "A", {"id": "r1"})
    assert by_text["Beta\nis second."].metadata == {"by": "me", "year": "1999"}


def test_order_and_place_of_inputs_do_not_matter(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    first = import_corpus(make_inputs(tmp_path), tmp_path / "a", SETTINGS)
    again = import_corpus(make_inputs(tmp_path / "elsewhere")[::-1], tmp_path / "b", SETTINGS)
    assert first.id == again.id
    assert first.files == again.files


@settings(max_examples=15, deadline=None)
@given(
    texts=st.lists(st.text(min_size=1, max_size=20), max_size=20), seed=st.integers(0, 99), buckets=st.integers(1, 7)
)
def test_stored_documents_do_not_depend_on_order_or_buckets(
    tmp_path_factory: pytest.TempPathFactory, texts: list[str], seed: int, buckets: int
) -> None:
    documents = [
        Document(document_id(text, "s"), text, "s", "d", title=title) for text in texts for title in ("x", "y")
    ]
    shuffled = random.Random(seed).sample(documents, len(documents))
    stored = []
    for order, num_buckets in ((documents, 1), (shuffled, buckets)):
        folder = tmp_path_factory.mktemp("store")
        (folder / "work").mkdir()
        writing = Writing(dir=folder, work=folder / "work")
        write_documents(order, num_buckets, writing)
        parts = sorted((folder / "documents").iterdir())
        stored.append((writing.counts, [part.read_bytes() for part in parts]))
        assert writing.counts["documents"] == len(set(texts))
    assert stored[0] == stored[1]


def test_second_run_does_nothing(tmp_path: Path) -> None:
    inputs = make_inputs(tmp_path)
    import_corpus(inputs, tmp_path / "corpus", SETTINGS)
    before = (tmp_path / "corpus" / "provenance.json").stat().st_mtime_ns
    import_corpus(inputs, tmp_path / "corpus", SETTINGS)
    assert (tmp_path / "corpus" / "provenance.json").stat().st_mtime_ns == before
    (tmp_path / "plain.jsonl").write_text('{"text": "Changed."}')
    import_corpus(inputs, tmp_path / "corpus", SETTINGS)
    assert "Changed." in {document.text for document in Corpus.open(tmp_path / "corpus").documents()}


def test_unreadable_files_are_skipped_counted_and_named(tmp_path: Path) -> None:
    folder = tmp_path / "texts"
    folder.mkdir()
    (folder / "good.txt").write_text("A good text.")
    (folder / "latin.txt").write_bytes("caf\xe9".encode("latin-1"))
    (folder / "binary.txt").write_bytes(b"MZ\0\1\2")
    (folder / "photo.png").write_bytes(b"\x89PNG")
    (folder / "mixed.jsonl").write_text('{"text": "Fine."}\nnot json\n{"no": 1}\n{"text": "  "}\n["list"]\n')
    manifest = import_corpus([folder], tmp_path / "corpus", SETTINGS)
    assert manifest.counts["documents"] == 2
    assert (manifest.counts["skipped_files"], manifest.counts["skipped_records"]) == (3, 4)
    rows = read_json(tmp_path / "corpus" / "skipped.json")
    reasons = {row["file"]: row["reason"] for row in rows}
    assert reasons["texts/latin.txt"] == "not UTF-8 (byte 3)"
    assert reasons["texts/binary.txt"] == "binary"
    assert reasons["texts/photo.png"].startswith("not a text")


def test_lone_surrogates_become_question_marks(tmp_path: Path) -> None:
    (tmp_path / "odd.jsonl").write_text('{"text": "half a \\ud83d pair"}')
    import_corpus([tmp_path / "odd.jsonl"], tmp_path / "corpus", SETTINGS)
    assert [document.text for document in Corpus.open(tmp_path / "corpus").documents()] == ["half a ? pair"]


@pytest.mark.parametrize(
    "name", ["torn.jsonl.gz", "torn.jsonl.zst", "wrong.jsonl.gz", "wrong.jsonl.zst", "torn.parquet"]
)
def test_corrupt_file_is_named_and_nothing_is_left(tmp_path: Path, name: str) -> None:
    whole = {
        "torn.jsonl.gz": gzip.compress(jsonl(), mtime=0)[:-9],
        "torn.jsonl.zst": zstandard.compress(jsonl())[:-5],
        "wrong.jsonl.gz": b"this is no gzip",
        "wrong.jsonl.zst": b"this is no zstd",
        "torn.parquet": b"PAR1 and then nothing",
    }
    (tmp_path / name).write_bytes(whole[name])
    with pytest.raises(CorpusError, match=f"{name}: corrupt") as caught:
        import_corpus([tmp_path / name], tmp_path / "corpus", SETTINGS)
    assert "\n" not in str(caught.value)
    assert sorted(path.name for path in tmp_path.iterdir()) == [name]


def test_empty_and_missing_sources_are_refused(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(CorpusError, match="no readable text"):
        import_corpus([tmp_path / "empty"], tmp_path / "corpus", SETTINGS)
    with pytest.raises(CorpusError, match="no such file"):
        import_corpus([tmp_path / "nowhere"], tmp_path / "corpus", SETTINGS)
    (tmp_path / "empty" / "zero.txt").write_text("")
    with pytest.raises(CorpusError, match=r"zero\.txt: record without text"):
        import_corpus([tmp_path / "empty"], tmp_path / "corpus", SETTINGS)
    pq.write_table(pa.table({"body": ["x"]}), tmp_path / "other.parquet")
    with pytest.raises(CorpusError, match=r"no column 'text', found body; set text_field"):
        import_corpus([tmp_path / "other.parquet"], tmp_path / "corpus", SETTINGS)
    assert not (tmp_path / "corpus").exists()


def test_damaged_part_is_an_artifact_error(tmp_path: Path) -> None:
    import_corpus(make_inputs(tmp_path), tmp_path / "corpus", SETTINGS)
    (tmp_path / "corpus" / "documents" / "part-00000.parquet").write_bytes(b"PAR1")
    with pytest.raises(ArtifactError, match="damaged or missing"):
        list(Corpus.open(tmp_path / "corpus").documents())


def test_changed_text_is_not_read_as_the_corpus(tmp_path: Path) -> None:
    """A Parquet file of the same length that reads well, with another text or other columns."""
    import_corpus(make_inputs(tmp_path), tmp_path / "corpus", SETTINGS)
    part = tmp_path / "corpus" / "documents" / "part-00000.parquet"
    whole = part.read_bytes()
    pq.write_table(pa.table({"body": ["x"]}), part)
    part.write_bytes(part.read_bytes().ljust(len(whole), b"\0"))
    with pytest.raises(ArtifactError, match=r"part-00000\.parquet: damaged .*not the bytes that were imported"):
        list(Corpus.open(tmp_path / "corpus").documents())


def test_splits_have_their_shares() -> None:
    counts = Counter(split_of(document_id(str(number), "s")) for number in range(20_000))
    # three standard deviations of a binomial share at n = 20,000 are below 0.008
    assert counts["train"] / 20_000 == pytest.approx(0.84, abs=0.008)
    assert counts["heldout"] / 20_000 == pytest.approx(0.08, abs=0.008)


def test_json_nested_without_end_is_skipped(tmp_path: Path) -> None:
    """It ended the import with a RecursionError."""
    (tmp_path / "deep.jsonl").write_bytes(b"[" * 100_000 + b'\n{"text": "fine"}\n')
    manifest = import_corpus([tmp_path / "deep.jsonl"], tmp_path / "corpus", SETTINGS)
    assert (manifest.counts["documents"], manifest.counts["skipped_records"]) == (1, 1)


def test_parquet_times_become_text(tmp_path: Path) -> None:
    """Nanoseconds, and years that Python does not know, ended the import with a ValueError."""
    times = {"ns": pa.array([10**18 + 1], pa.timestamp("ns")), "far": pa.array([2**61], pa.timestamp("us"))}
    pq.write_table(pa.table({"text": ["a"], **times, "day": pa.array([0], pa.date32())}), tmp_path / "t.parquet")
    import_corpus([tmp_path / "t.parquet"], tmp_path / "corpus", SETTINGS)
    (document,) = Corpus.open(tmp_path / "corpus").documents()
    assert document.metadata["ns"] == "2001-09-09 01:46:40.000000001"
    assert document.metadata["day"] == "1970-01-01"


def test_parquet_text_that_is_not_utf8_is_one_line(tmp_path: Path) -> None:
    offsets = pa.array([0, 2], pa.int32()).buffers()[1]
    text = pa.Array.from_buffers(pa.string(), 1, [None, offsets, pa.py_buffer(b"\xff\xfe")])
    pq.write_table(pa.table({"text": text}), tmp_path / "t.parquet")
    with pytest.raises(CorpusError, match=r"t\.parquet: corrupt Parquet file"):
        import_corpus([tmp_path / "t.parquet"], tmp_path / "corpus", SETTINGS)


def test_entries_that_are_no_files_are_named(tmp_path: Path) -> None:
    folder = tmp_path / "texts"
    (folder / "folder.jsonl").mkdir(parents=True)
    (folder / "folder.jsonl" / "good.txt").write_text("A good text.")
    os.mkfifo(folder / "pipe.txt")
    (folder / "broken.txt").symlink_to("nowhere")
    (folder / "up").symlink_to("..")
    assert import_corpus([folder], tmp_path / "corpus", SETTINGS).counts["documents"] == 1
    reasons = {row["file"]: row["reason"] for row in read_json(tmp_path / "corpus" / "skipped.json")}
    assert sorted(reasons) == ["texts/broken.txt", "texts/pipe.txt", "texts/up"]


def test_file_that_the_system_refuses_to_read_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(CorpusError, match="mem: cannot be read"):
        import_corpus([Path("/proc/self/mem")], tmp_path / "corpus", SETTINGS)


def test_link_is_read_by_its_own_ending(tmp_path: Path) -> None:
    """Download caches link `name.jsonl.gz` to a blob without an ending, which was read as plain text."""
    (tmp_path / "blob").write_bytes(gzip.compress(jsonl(), mtime=0))
    (tmp_path / "linked.jsonl.gz").symlink_to("blob")
    manifest = import_corpus([tmp_path / "linked.jsonl.gz"], tmp_path / "corpus", SETTINGS)
    assert manifest.counts["documents"] == 2


def test_overlapping_sources_give_the_same_in_any_order(tmp_path: Path) -> None:
    """The name of a file in two given folders depended on which was given first."""
    make_inputs(tmp_path)
    folders = [tmp_path / "texts", tmp_path / "texts" / "history"]
    ids = {import_corpus(order, tmp_path / f"{n}", SETTINGS).id for n, order in enumerate((folders, folders[::-1]))}
    assert len(ids) == 1


def test_file_names_that_are_not_utf8_are_read(tmp_path: Path) -> None:
    folder = tmp_path / "caf\udce9"
    folder.mkdir()
    (folder / "t\udcfe.txt").write_text("A good text.")
    import_corpus([folder], tmp_path / "corpus", SETTINGS)
    assert [document.source for document in Corpus.open(tmp_path / "corpus").documents()] == ["caf?/t?.txt"]


def test_own_output_is_never_a_source(tmp_path: Path) -> None:
    """`corpus import . --out runs/corpus` read its own Parquet parts the second time."""
    (tmp_path / "a.txt").write_text("A good text.")
    with pytest.raises(CorpusError, match="lies inside the source"):
        import_corpus([tmp_path], tmp_path / "runs" / "corpus", SETTINGS)
    assert not (tmp_path / "runs").exists()
