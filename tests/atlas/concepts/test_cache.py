"""The cache of tag vectors: the encoder's own bits, whatever happened to the folder before."""

import multiprocessing
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from jaxtyping import Float32

from vitrail.atlas.concepts import vector_cache
from vitrail.atlas.concepts.tag_encoder import TagEncoder
from vitrail.atlas.concepts.vector_cache import VectorCache

TAGS = [f"{a} {b}" for a in ("graph", "river", "tax", "Straße", "机器") for b in ("theory", "bank", "of", "x", "学习")]


class Letters:
    """A vector of letter counts, and how many texts were asked for."""

    width = 7
    fingerprint = "letters-1"

    def __init__(self) -> None:
        self.asked: list[str] = []

    def encode(self, texts: Sequence[str]) -> Float32[np.ndarray, "n 7"]:
        self.asked += texts
        return np.array([[(hash_of(text) >> shift) % 101 for shift in range(7)] for text in texts], np.float32)


def hash_of(text: str) -> int:
    return int.from_bytes(text.encode()[:24], "big")


def test_what_is_there_is_not_asked_again(tmp_path: Path) -> None:
    """In any order, with repeats, and by another object on the same folder."""
    first, second = Letters(), Letters()
    vectors = VectorCache(first, tmp_path).encode(TAGS[:9])
    again = VectorCache(second, tmp_path).encode([*TAGS[::-1], *TAGS])
    assert second.asked == sorted(set(TAGS[9:]))
    np.testing.assert_array_equal(again[len(TAGS) :][:9], vectors)
    np.testing.assert_array_equal(again, Letters().encode([*TAGS[::-1], *TAGS]))


def test_no_tags_make_no_file(tmp_path: Path) -> None:
    assert VectorCache(Letters(), tmp_path).encode([]).shape == (0, 7)
    assert list(tmp_path.iterdir()) == []


def test_segments_are_small_enough_to_lose(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Work is kept every few thousand tags; what a kill costs is one segment."""
    monkeypatch.setattr(vector_cache, "SEGMENT_TAGS", 4)
    cache = VectorCache(Letters(), tmp_path)
    cache.encode(TAGS)
    assert len(list(cache.folder.iterdir())) == -(-len(TAGS) // 4)


@pytest.mark.parametrize("harm", ["cut", "flip", "empty"])
def test_a_damaged_segment_is_named_and_made_again(tmp_path: Path, harm: str, caplog: pytest.LogCaptureFixture) -> None:
    """Torn, bit-flipped or empty: never a wrong vector, never a crash, and afterwards the cache is whole."""
    cache = VectorCache(Letters(), tmp_path)
    expected = cache.encode(TAGS)
    (segment,) = cache.folder.iterdir()
    data = bytearray(segment.read_bytes())
    place = data.find(expected[0].tobytes())
    assert place > 0, "vectors are stored as they are"
    data[place] ^= 0xFF
    segment.write_bytes({"cut": bytes(data[: len(data) // 2]), "flip": bytes(data), "empty": b""}[harm])
    np.testing.assert_array_equal(VectorCache(Letters(), tmp_path).encode(TAGS), expected)
    assert segment.name in caplog.text
    untouched = Letters()
    np.testing.assert_array_equal(VectorCache(untouched, tmp_path).encode(TAGS), expected)
    assert untouched.asked == []


def _fill(folder: Path, tags: list[str]) -> None:
    VectorCache(Letters(), folder).encode(tags)


def test_two_processes_fill_one_folder(tmp_path: Path) -> None:
    """Overlapping sets at the same time: every tag is there afterwards, with its own vector."""
    context = multiprocessing.get_context("spawn")
    parts = [TAGS[:17], TAGS[8:]]
    processes = [context.Process(target=_fill, args=(tmp_path, part)) for part in parts]
    for process in processes:
        process.start()
    for process in processes:
        process.join(60)
        assert process.exitcode == 0
    untouched = Letters()
    np.testing.assert_array_equal(VectorCache(untouched, tmp_path).encode(TAGS), Letters().encode(TAGS))
    assert untouched.asked == []


def test_a_killed_process_leaves_whole_segments(tmp_path: Path) -> None:
    """kill -9 while segments are written: what is there is right, the rest is made."""
    script = (
        "import sys; from pathlib import Path; from tests.atlas.concepts.test_cache import Letters\n"
        "from vitrail.atlas.concepts import vector_cache as v\n"
        "v.SEGMENT_TAGS = 3\n"
        "v.VectorCache(Letters(), Path(sys.argv[1])).encode([f'tag {i}' for i in range(30_000)])\n"
    )
    process = subprocess.Popen([sys.executable, "-c", script, str(tmp_path)])
    folder = tmp_path / "tag_vectors" / Letters.fingerprint
    deadline = time.monotonic() + 60
    while len(list(folder.glob("*.parquet"))) < 20 and time.monotonic() < deadline:
        time.sleep(0.01)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    kept = len(list(folder.glob("*.parquet")))
    assert kept >= 20, "the process was killed before it had written anything"
    encoder = Letters()
    wanted = [f"tag {i}" for i in range(300)]
    np.testing.assert_array_equal(VectorCache(encoder, tmp_path).encode(wanted), Letters().encode(wanted))
    assert len(encoder.asked) < len(wanted)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_tags_vector_depends_on_the_tag_alone(dtype: torch.dtype) -> None:
    """Alone, among few, among many: the same bits; else a cache would change an atlas."""
    encoder = TagEncoder(dtype)
    many = encoder.encode(TAGS)
    for size in (1, 7):
        np.testing.assert_array_equal(encoder.encode(TAGS[:size]), many[:size])


def test_the_cache_gives_the_encoders_own_bits(tmp_path: Path) -> None:
    """MiniLM filled bit by bit equals MiniLM at once; another precision has another folder."""
    encoder = TagEncoder(torch.bfloat16)
    cache = VectorCache(encoder, tmp_path)
    cache.encode(TAGS[3:8])
    np.testing.assert_array_equal(cache.encode(TAGS[:12]), encoder.encode(TAGS[:12]))
    assert TagEncoder(torch.float32).fingerprint != encoder.fingerprint
