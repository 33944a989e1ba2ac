"""Shards: the same bytes from any number of workers and after any interruption, and memory that stays flat."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.packed.annotated import random_chunks, write_annotated
from vitrail.artifacts import file_sha256, read_manifest
from vitrail.atlas import AnnotatedCorpus, Chunk
from vitrail.errors import ArtifactError, ConfigError, RunFailed
from vitrail.packed import Loader, PackedCorpus, PackSettings, pack_corpus
from vitrail.packed.columns import open_columns, write_columns
from vitrail.text import Tokenizer

SETTINGS = PackSettings(length=67, shard_chunks=41, group_by="domain")


@pytest.fixture(scope="module")
def chunks() -> list[Chunk]:
    return random_chunks(1, 150)


@pytest.fixture(scope="module")
def annotated(tmp_path_factory: pytest.TempPathFactory, chunks: list[Chunk]) -> Path:
    return write_annotated(tmp_path_factory.mktemp("corpus") / "annotated", chunks)


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory, annotated: Path, tokenizer: Tokenizer) -> Path:
    """Packed in one process, without interruption."""
    out = tmp_path_factory.mktemp("alone") / "packed"
    pack_corpus(annotated, tokenizer, out, SETTINGS)
    return out


def test_any_number_of_workers_gives_the_same_bytes(
    alone: Path, annotated: Path, tokenizer: Tokenizer, tmp_path: Path
) -> None:
    manifest = pack_corpus(annotated, tokenizer, tmp_path / "packed", SETTINGS, workers=3)
    assert manifest == read_manifest(alone).model_copy(update={"inputs": manifest.inputs})
    assert manifest.counts["shards"] > 5
    for name, digest in manifest.files.items():
        assert file_sha256(tmp_path / "packed" / name) == digest


def test_every_chunk_is_in_one_shard(alone: Path, chunks: list[Chunk]) -> None:
    """Windows end with documents, so each document is whole in its shard."""
    packed = PackedCorpus.open(alone)
    seen = packed.batch("train", range(packed.num_sequences("train"))).rows.tolist()
    seen += packed.batch("heldout", range(packed.num_sequences("heldout"))).rows.tolist()
    assert sorted(seen) == [chunk.row for chunk in chunks if chunk.split != "judge"]
    shard_of: dict[str, set[str]] = {}
    for path in (alone / "shards").iterdir():
        for row in open_columns(path)["row"].tolist():
            shard_of.setdefault(chunks[row].document_id, set()).add(path.name)
    assert all(len(shards) == 1 for shards in shard_of.values())


@pytest.mark.parametrize("size", [1, 7])
def test_a_document_longer_than_a_window_stays_whole(
    size: int, annotated: Path, tokenizer: Tokenizer, tmp_path: Path, chunks: list[Chunk]
) -> None:
    values = PackSettings(length=67, shard_chunks=size)
    counts = pack_corpus(annotated, tokenizer, tmp_path / "packed", values).counts
    assert counts["train_chunks"] == sum(chunk.split == "train" for chunk in chunks)
    assert counts["shards"] == -(-len(chunks) // size)


def test_rows_are_read_from_where_they_begin(tmp_path: Path) -> None:
    """The corpus is read by row groups of a thousand; a range may begin and end anywhere in them."""
    chunks = random_chunks(5, 1200)
    corpus = AnnotatedCorpus.open(write_annotated(tmp_path / "annotated", chunks))
    assert len(chunks) > 2500
    for start, stop in [(0, None), (0, 3), (999, 1001), (1000, 2000), (1999, 2000), (2400, 10**6), (7, 7)]:
        assert list(corpus.chunks(start, stop)) == chunks[start:stop]


MANY = PackSettings(length=67, shard_chunks=5)
COMMAND = [sys.executable, "-c", "from vitrail.cli.main import main; main()", "pack"]


@pytest.mark.parametrize("workers", [1, 2])
def test_killed_ends_like_one_that_was_not(workers: int, tokenizer: Tokenizer, tmp_path: Path) -> None:
    """Finished shards are taken over as they are: the artifact's files are links to those of the killed run."""
    annotated = write_annotated(tmp_path / "annotated", random_chunks(6, 800))
    tokenizer.save(tmp_path / "tokenizer")
    out = tmp_path / "packed"
    flags = ("--tokenizer", tmp_path / "tokenizer", "--length", "67", "--shard_chunks", "5", "--workers", workers)
    with subprocess.Popen([*COMMAND, *map(str, (annotated, "--out", out, *flags))], stderr=subprocess.DEVNULL) as run:
        _wait(lambda: len(_finished(tmp_path)) >= 3)
        children = _children(run.pid)
        run.send_signal(signal.SIGKILL)
    assert (workers == 2) <= (len(children) >= 2)
    _wait(lambda: not any(_is_alive(child) for child in children))
    assert not out.exists()
    kept = {path.name: (path / "train.safetensors").stat().st_ino for path in _finished(tmp_path) if _has_train(path)}
    manifest = pack_corpus(annotated, tokenizer, out, MANY, workers=3 - workers)
    assert len(kept) < manifest.counts["shards"]
    for name, inode in kept.items():
        assert (out / "shards" / f"{name}.train.safetensors").stat().st_ino == inode
    assert manifest.files == pack_corpus(annotated, tokenizer, tmp_path / "alone", MANY).files
    assert not list(tmp_path.glob(".packed.*")), "nothing is left beside it"


def _finished(place: Path) -> list[Path]:
    return [path for path in place.glob(".packed.work-*/*") if not path.name.startswith(".")]


def _has_train(shard: Path) -> bool:
    return (shard / "train.safetensors").exists()


def _children(process: int) -> list[int]:
    return [int(word) for word in Path(f"/proc/{process}/task/{process}/children").read_text().split()]


def _is_alive(process: int) -> bool:
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def _wait(is_so: Callable[[], bool], limit_s: float = 100.0) -> None:
    end = time.monotonic() + limit_s
    while not is_so():
        assert time.monotonic() < end
        time.sleep(0.002)


def test_a_fault_in_a_worker_is_one_line(annotated: Path, tokenizer: Tokenizer, tmp_path: Path) -> None:
    """The same as in one process: that of the first window, whichever worker fails first."""
    said = []
    for workers in (1, 2):
        with pytest.raises(ConfigError, match=r"a sequence holds 9; set length") as caught:
            pack_corpus(
                annotated, tokenizer, tmp_path / "packed", PackSettings(length=12, shard_chunks=7), workers=workers
            )
        said.append(str(caught.value))
    assert said[0] == said[1]
    assert not (tmp_path / "packed").exists()


def test_a_worker_that_dies_is_told_of(annotated: Path, tokenizer: Tokenizer, tmp_path: Path) -> None:
    """As by the system when memory runs out."""
    values = PackSettings(length=67, shard_chunks=1)
    stop = threading.Event()

    def kill() -> None:
        while not stop.is_set():
            for child in _children(os.getpid()):
                if b"spawn_main" in Path(f"/proc/{child}/cmdline").read_bytes() and _finished(tmp_path):
                    os.kill(child, signal.SIGKILL)
                    return
            time.sleep(0.002)

    killer = threading.Thread(target=kill)
    killer.start()
    try:
        with pytest.raises(RunFailed, match=r"a worker died while packing .* fewer workers, or a smaller shard_chunks"):
            pack_corpus(annotated, tokenizer, tmp_path / "packed", values, workers=2)
    finally:
        stop.set()
        killer.join()


@settings(max_examples=30, deadline=None)
@given(
    columns=st.dictionaries(
        st.text("abcdef", min_size=1),
        st.tuples(st.sampled_from(["<u2", "<u4", "<i4", "<i8"]), st.lists(st.integers(0, 65535), max_size=9)),
        min_size=1,
    )
)
def test_columns_come_back(columns: dict[str, tuple[str, list[int]]], tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.mktemp("columns") / "c.safetensors"
    arrays = {name: np.array(values, dtype) for name, (dtype, values) in columns.items()}
    write_columns(path, arrays)
    found = open_columns(path)
    assert found.keys() == arrays.keys()
    for name, values in arrays.items():
        assert found[name].dtype == values.dtype
        assert np.array_equal(found[name], values)


@pytest.mark.parametrize("size", [0, 5, 300])
def test_a_torn_shard_is_named(size: int, tmp_path: Path) -> None:
    write_columns(tmp_path / "c.safetensors", {"a": np.arange(90, dtype="<i8")})
    content = (tmp_path / "c.safetensors").read_bytes()
    (tmp_path / "c.safetensors").write_bytes(content[:size])
    with pytest.raises(ArtifactError, match=r"c\.safetensors: damaged or missing"):
        open_columns(tmp_path / "c.safetensors")


def test_more_shards_than_may_be_open(annotated: Path, tokenizer: Tokenizer, tmp_path: Path) -> None:
    """A corpus of ten thousand shards must not need ten thousand open files."""
    pack_corpus(annotated, tokenizer, tmp_path / "packed", PackSettings(length=67, shard_chunks=1))
    packed = PackedCorpus.open(tmp_path / "packed")
    assert packed.manifest.counts["shards"] > 300
    before = len(list(Path("/proc/self/fd").iterdir()))
    batch = packed.batch("train", range(packed.num_sequences("train")))
    assert len(list(Path("/proc/self/fd").iterdir())) - before <= 64
    one = packed.batch("train", [packed.num_sequences("train") - 1])
    assert torch.equal(batch.tokens[-1:], one.tokens)
    assert Loader(packed, 5, 0).batch_at(3).tokens.shape == (5, 67)
