"""Annotating in shards: the same bytes whatever the workers, the kills and the spoilt shards; faults are one line."""

import json
import logging
import os
import pickle
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pyarrow as pa
import pytest
from pydantic import SecretStr

from tests.atlas.annotated.conftest import SHARD_BYTES
from tests.atlas.annotated.sabotage import Fail, FillUp, KillOnce, Sabotaged, Spoil
from vitrail.artifacts import Manifest, Stage, read_manifest
from vitrail.atlas import AnnotatedCorpus, Annotator, annotate_corpus
from vitrail.atlas.annotated.engines import Engine
from vitrail.atlas.annotated.labelling import BatchAnnotator, vectors_of
from vitrail.atlas.llm import Endpoint
from vitrail.atlas.resources import Resources
from vitrail.corpus import Corpus, CorpusSettings, import_corpus
from vitrail.errors import ArtifactError, CorpusError, RunFailed

Undisturbed = tuple[Path, Manifest]


def annotate(corpus: Path, atlas: Path, out: Path, workers: int = 2, engine: Engine | None = None) -> Manifest:
    return annotate_corpus(corpus, atlas, out, Resources(workers), engine, shard_bytes=SHARD_BYTES)


def entries(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_workers_change_no_byte(corpus: Path, atlas: Path, undisturbed: Undisturbed, tmp_path: Path) -> None:
    """Three processes give the artifact of one, and leave nothing beside it."""
    assert len([name for name in undisturbed[1].files if name.startswith("chunks/")]) == 3
    assert annotate(corpus, atlas, tmp_path / "annotated", workers=3) == read_manifest(tmp_path / "annotated")
    assert read_manifest(tmp_path / "annotated").files == undisturbed[1].files
    assert read_manifest(tmp_path / "annotated").id == undisturbed[1].id
    assert entries(tmp_path) == ["annotated"]


def test_shards_are_the_corpus(corpus: Path, atlas: Path, undisturbed: Undisturbed, tmp_path: Path) -> None:
    """Three shards hold the chunks that one shard holds, in the same order, with the same rows in the field guide."""
    whole = annotate_corpus(corpus, atlas, tmp_path / "whole")  # one shard, in this process
    one, many = AnnotatedCorpus.open(tmp_path / "whole"), AnnotatedCorpus.open(undisturbed[0])
    assert whole.counts == undisturbed[1].counts
    texts = {document.id: document.text for document in Corpus.open(corpus).documents()}
    for first, second in zip(one.chunks(), many.chunks(), strict=True):
        assert (first.row, first.chunk_id, first.text) == (second.row, second.chunk_id, second.text)
        assert [label.concept_id for label in first.labels] == [label.concept_id for label in second.labels]
        assert second.text == texts[second.document_id][second.start : second.stop]
    assert sum(len(chunk.text) for chunk in many.chunks()) == sum(map(len, texts.values()))


def test_killed_worker_is_told_of_and_its_shard_made_again(
    corpus: Path, atlas: Path, undisturbed: Undisturbed, tmp_path: Path
) -> None:
    """datatrove's own local executor waits for ever here."""
    engine = Sabotaged(KillOnce(1, tmp_path / "killed"))
    with pytest.raises(RunFailed, match="a worker died while annotating"):
        annotate(corpus, atlas, tmp_path / "annotated", workers=2, engine=engine)
    assert not (tmp_path / "annotated").exists()
    assert annotate(corpus, atlas, tmp_path / "annotated", workers=2, engine=engine).id == undisturbed[1].id


RUN = """
import sys
from pathlib import Path
from tests.atlas.annotated.sabotage import Sabotaged, Stick
from tests.atlas.annotated.test_annotate import annotate
if __name__ == "__main__":
    corpus, atlas, folder = map(Path, sys.argv[1:])
    annotate(corpus, atlas, folder / "annotated", 2, Sabotaged(Stick(1, folder)))
"""


def test_killed_run_goes_on_from_its_shards(
    corpus: Path, atlas: Path, undisturbed: Undisturbed, tmp_path: Path
) -> None:
    """kill -9 of the command: its workers end too; the same command links the finished shards and makes the rest."""
    script = tmp_path / "run.py"
    script.write_text(RUN)
    root = Path(__file__).parents[3]
    environment = {**os.environ, "PYTHONPATH": f"{root / 'src'}:{root}"}
    running = subprocess.Popen([sys.executable, str(script), str(corpus), str(atlas), str(tmp_path)], env=environment)
    deadline = time.monotonic() + 120
    while not list(tmp_path.glob(".annotated.work-*/shards/00002/shard.json")) or not list(tmp_path.glob("*.stuck")):
        assert running.poll() is None, "the run ended before it could be killed"
        assert time.monotonic() < deadline
        time.sleep(0.05)
    running.send_signal(signal.SIGKILL)
    running.wait()
    (stuck,) = tmp_path.glob("*.stuck")
    while Path(f"/proc/{stuck.stem}").exists():
        assert time.monotonic() < deadline, "a worker outlived the run"
        time.sleep(0.05)
    (made,) = tmp_path.glob(".annotated.work-*/shards/00002/chunks.parquet")
    inode = made.stat().st_ino
    assert annotate(corpus, atlas, tmp_path / "annotated", workers=2).id == undisturbed[1].id
    assert (tmp_path / "annotated" / "chunks" / "part-00002.parquet").stat().st_ino == inode, "made again, or copied"


def test_spoilt_shard_is_named_and_made_again(
    corpus: Path, atlas: Path, undisturbed: Undisturbed, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """One bit of a finished shard's vectors turns over before the merge."""
    with caplog.at_level(logging.WARNING, "vitrail.atlas"):
        manifest = annotate(corpus, atlas, tmp_path / "annotated", engine=Spoil(1, []))
    assert manifest.id == undisturbed[1].id
    (message,) = caplog.messages
    assert "shards/00001/vectors.npy: damaged or missing; shard 1 is made again" in message


def test_failed_shard_stops_the_run_and_keeps_the_rest(
    corpus: Path, atlas: Path, undisturbed: Undisturbed, tmp_path: Path
) -> None:
    """A mistake of ours keeps its traceback; shards before it are finished and are not made again."""
    with pytest.raises(KeyError, match="nothing at 2"):
        annotate(corpus, atlas, tmp_path / "annotated", workers=1, engine=Sabotaged(Fail((2,))))
    (work,) = tmp_path.glob(".annotated.work-*")
    assert entries(work / "shards") == ["00000", "00001"]
    assert json.loads((work / "failed" / "00002.json").read_text()) == {"kind": "KeyError", "message": "'nothing at 2'"}
    assert annotate(corpus, atlas, tmp_path / "annotated").id == undisturbed[1].id
    assert entries(tmp_path) == ["annotated"]


@pytest.mark.parametrize("workers", [1, 2])
def test_full_disk_is_one_line(corpus: Path, atlas: Path, tmp_path: Path, workers: int) -> None:
    """In this process or in a worker."""
    with pytest.raises(RunFailed, match=r"annotated: the disk is full; free some space and run again"):
        annotate(corpus, atlas, tmp_path / "annotated", workers, Sabotaged(FillUp(0)))


def test_corrupt_part_of_the_corpus_is_named(corpus: Path, atlas: Path, tmp_path: Path) -> None:
    """A page is overwritten. Its length is right, and Parquet reads another text without a word, so the hash tells."""
    broken = tmp_path / "corpus"
    broken.mkdir()
    for path in corpus.rglob("*"):
        target = broken / path.relative_to(corpus)
        target.mkdir(exist_ok=True) if path.is_dir() else target.write_bytes(path.read_bytes())
    (part,) = broken.glob("documents/*.parquet")
    data = bytearray(part.read_bytes())
    data[len(data) // 2 : len(data) // 2 + 4_000] = bytes(4_000)
    part.write_bytes(data)
    for workers in (1, 2):
        with pytest.raises(ArtifactError, match=r"part-00000.parquet: damaged or missing .* import the corpus again"):
            annotate(broken, atlas, tmp_path / "annotated", workers)
    assert not (tmp_path / "annotated").exists()


def test_corpus_without_documents_leaves_nothing(atlas: Path, tmp_path: Path) -> None:
    with Stage(tmp_path / "corpus", "corpus", {}, {}).write() as writing:
        writing.counts.update(documents=0, text_bytes=0)
    with pytest.raises(CorpusError, match="the corpus holds no text to annotate"):
        annotate(tmp_path / "corpus", atlas, tmp_path / "annotated")
    assert entries(tmp_path) == ["corpus"]


def test_odd_documents_are_annotated(atlas: Path, tmp_path: Path) -> None:
    """Control characters, other scripts, one endless line, one character."""
    texts = ["\x00\x07\x1b[31m" * 40, "図書館" * 300, "x" * 1_300_000, "The class statement. " * 2, "a"]
    raw = tmp_path / "raw.jsonl"
    raw.write_text("".join(json.dumps({"text": text, "source": f"{i}"}) + "\n" for i, text in enumerate(texts)))
    import_corpus([raw], tmp_path / "corpus", CorpusSettings())
    annotate_corpus(tmp_path / "corpus", atlas, tmp_path / "annotated")
    found: dict[str, str] = {}
    for chunk in AnnotatedCorpus.open(tmp_path / "annotated").chunks():
        found[chunk.document_id] = found.get(chunk.document_id, "") + chunk.text
    stored = {document.id: document.text for document in Corpus.open(tmp_path / "corpus").documents()}
    assert found == stored


def test_atlas_of_another_kind_is_refused(corpus: Path, tmp_path: Path) -> None:
    with pytest.raises(ArtifactError, match="holds a 'corpus' artifact, wanted an 'atlas'"):
        annotate_corpus(corpus, corpus, tmp_path / "annotated")


def test_an_atlas_with_changed_bytes_is_named(corpus: Path, atlas: Path, tmp_path: Path) -> None:
    """One bit of a centroid, which no reader would notice: labels would be wrong, and bear the atlas' id."""
    broken = tmp_path / "atlas"
    shutil.copytree(atlas, broken)
    weights = bytearray((broken / "annotator.safetensors").read_bytes())
    weights[-5] ^= 1
    (broken / "annotator.safetensors").write_bytes(weights)
    Annotator.load(broken)
    with pytest.raises(ArtifactError, match=r"annotator\.safetensors: damaged .* build the atlas again"):
        annotate(corpus, broken, tmp_path / "annotated")
    assert entries(tmp_path) == ["atlas"]


def test_progress_is_told(corpus: Path, atlas: Path, undisturbed: Undisturbed, tmp_path: Path) -> None:
    """Finished shards of all shards, never fewer than before; at the end all, however quick the run was."""
    told: list[tuple[int, int]] = []
    out = tmp_path / "annotated"
    annotate_corpus(
        corpus, atlas, out, Resources(2), on_progress=lambda *pair: told.append(pair), shard_bytes=SHARD_BYTES
    )
    assert told == sorted(told)
    assert {total for _, total in told} == {3}
    assert told[-1] == (3, 3)


def test_batch_annotator_is_a_plain_function_of_a_table(atlas: Path) -> None:
    """It pickles to a few bytes, adds two columns, and says what the annotator says."""
    annotate_batch = pickle.loads(pickle.dumps(BatchAnnotator.of(atlas)))
    assert len(pickle.dumps(annotate_batch)) < 1_000
    texts = ["The class statement defines a class object.", "", "Exceptions are raised by the raise statement."]
    batch = annotate_batch(pa.table({"text": texts, "mine": [1, 2, 3]}))
    assert batch.column_names == ["text", "mine", "labels", "vector"]
    annotation = Annotator.load(atlas).annotate(texts)
    ids = [[label["concept_id"] for label in labels] for labels in batch["labels"].to_pylist()]
    assert ids == [[label.concept_id for label in labels] for labels in annotation.labels]
    assert (vectors_of(batch) == annotation.vectors.astype("float16")).all()


def test_batch_annotator_refuses_an_atlas_that_was_rebuilt(atlas: Path) -> None:
    with pytest.raises(ArtifactError, match="was built again while it was in use"):
        BatchAnnotator(atlas, "another id")(pa.table({"text": ["a"]}))


def test_key_of_a_server_reaches_no_file() -> None:
    """Slurm's tasks read the pickled pipeline from a disk that others see."""
    endpoint = Endpoint(url="http://localhost:1/v1", api_key=SecretStr("a secret"))
    annotate_batch = BatchAnnotator(Path("atlas"), "id", endpoint)
    assert b"a secret" not in pickle.dumps(annotate_batch)
    assert pickle.loads(pickle.dumps(annotate_batch)).endpoint.url == endpoint.url
