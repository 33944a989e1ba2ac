"""The same documents give the same atlas: in whatever order, files and copies they come, however the build went."""

import gzip
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from pydoc_data.topics import topics

import pytest
import torch

from vitrail.artifacts import Manifest, read_manifest
from vitrail.atlas import AtlasSettings, annotate_corpus, build_atlas
from vitrail.corpus import CorpusSettings, import_corpus

SETTINGS = AtlasSettings(num_concepts=12, max_tags=1_000)


def corpus_of(folder: Path, seed: int, num_files: int) -> Path:
    """Reference topics of Python, dealt out to files in an order of their own."""
    folder.mkdir(parents=True)
    names = sorted(topics)[:40]
    random.Random(seed).shuffle(names)
    for number in range(num_files):
        lines = [
            json.dumps({"text": topics[name], "source": f"topics/{name}", "domain": name[:1]})
            for name in names[number::num_files]
        ]
        data = ("\n".join(lines) + "\n").encode()
        suffix = ".jsonl.gz" if number % 2 else ".jsonl"
        (folder / f"{seed}-{number}{suffix}").write_bytes(gzip.compress(data) if number % 2 else data)
    import_corpus(sorted(folder.iterdir()), folder.parent / f"corpus-{seed}", CorpusSettings())
    return folder.parent / f"corpus-{seed}"


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Manifest]:
    """A corpus and its atlas, built without anything happening; the raw files lie beside it."""
    folder = tmp_path_factory.mktemp("plain")
    corpus = corpus_of(folder / "raw", seed=0, num_files=4)
    return corpus, build_atlas(corpus, folder / "atlas", SETTINGS)


def test_files_in_another_order_are_the_same_input(plain: tuple[Path, Manifest], tmp_path: Path) -> None:
    """The same files, copied elsewhere and named in another order: the same corpus, and so the same atlas."""
    copies = [Path(shutil.copy(file, tmp_path)) for file in sorted((plain[0].parent / "raw").iterdir())]
    again = import_corpus([copies[i] for i in (2, 0, 3, 1)], tmp_path / "corpus", CorpusSettings())
    assert again == read_manifest(plain[0])


def test_documents_dealt_to_other_files_give_the_same_atlas(plain: tuple[Path, Manifest], tmp_path: Path) -> None:
    """Other files are another input, so the id may differ; the atlas and what it labels are the same, byte for byte.

    In this process with another number of threads, too.
    """
    corpus = corpus_of(tmp_path / "raw", seed=1, num_files=3)
    annotate_corpus(plain[0], plain[0].parent / "atlas", tmp_path / "first")
    num_threads = torch.get_num_threads()
    torch.set_num_threads(1 if num_threads > 1 else 3)
    try:
        assert build_atlas(corpus, tmp_path / "atlas", SETTINGS).files == plain[1].files
        second = annotate_corpus(corpus, tmp_path / "atlas", tmp_path / "second")
    finally:
        torch.set_num_threads(num_threads)
    assert second.files == read_manifest(tmp_path / "first").files


def test_a_killed_build_ends_as_if_nothing_had_happened(plain: tuple[Path, Manifest], tmp_path: Path) -> None:
    """kill -9 at several moments, then the same command: the same id, and nothing half made in between.

    The last one has another number of threads: those that OpenMP, BLAS and torch read when a process starts.
    """
    out = tmp_path / "atlas"
    for seconds in (1.0, 3.5):
        process = _build(plain[0], out, "1")
        time.sleep(seconds)
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
        assert not out.exists() or read_manifest(out).id == plain[1].id
    assert _build(plain[0], out, "3").wait(120) == 0
    assert read_manifest(out).id == plain[1].id
    assert [path.name for path in tmp_path.iterdir()] == ["atlas"], "a killed build left something behind"


def _build(corpus: Path, out: Path, threads: str) -> "subprocess.Popen[bytes]":
    script = (
        "import sys; from pathlib import Path\n"
        "from vitrail.atlas import AtlasSettings, build_atlas\n"
        "settings = AtlasSettings(num_concepts=12, max_tags=1_000)\n"
        "build_atlas(Path(sys.argv[1]), Path(sys.argv[2]), settings)\n"
    )
    variables = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), threads)
    return subprocess.Popen([sys.executable, "-c", script, str(corpus), str(out)], env={**os.environ, **variables})
