"""`kill -9` on the way: the same command again ends at the same bytes, and nothing torn is taken for whole."""

import random
import shutil
import signal
import time
from pathlib import Path

import pytest

from tests.faults.command import NEVER, Moment, Running, vitrail
from tests.faults.world import STAGES, World, assert_nothing_torn, assert_whole, entries
from vitrail.artifacts import read_json, read_manifest

KILLED = -signal.SIGKILL
NUM_DRAWN = 3
LAST_CHANGES = 7
"""The describing, renaming and tidying that end every stage. The import, as the cheapest, is killed at each change."""


def kill_before_change(words: list[str | Path], place: Path, streams: Path, number: int) -> None:
    """Kill a command before its change of that number; where it ends before, begin again with an earlier one."""
    while True:
        with Running(*words, folder=streams, at=Moment(place, number)) as running:
            done = running.wait()
        if done.code == KILLED:
            return
        assert (done.code, number > 0) == (0, True), done.err
        shutil.rmtree(place / Path(words[words.index("--out") + 1]).name)
        number //= 2


def kill_after(words: list[str | Path], place: Path, streams: Path, delay_s: float) -> None:
    """Kill a command from outside, some time after its start; where it ends before, begin again and kill earlier."""
    while True:
        with Running(*words, folder=streams) as running:
            time.sleep(max(0.0, running.started + delay_s - time.monotonic()))
            running.kill()
            done = running.wait()
        if done.code == KILLED:
            return
        assert (done.code, delay_s > 1e-3) == (0, True), done.err
        shutil.rmtree(place / Path(words[words.index("--out") + 1]).name)
        delay_s /= 2


@pytest.mark.parametrize("stage", STAGES)
def test_killed_again_and_again_ends_like_one_that_was_not(stage: str, world: World, tmp_path: Path) -> None:
    """Each attempt starts from what the one before left behind."""
    place, streams = tmp_path / "runs", tmp_path / "streams"
    place.mkdir()
    words, num_changes = world.words(stage, place / stage), world.num_changes[stage]
    draw = random.Random(f"kill {stage}")
    points = set(range(num_changes))
    if stage != "corpus":
        points = {*draw.sample(sorted(points), NUM_DRAWN), *draw.sample(sorted(points)[-LAST_CHANGES:], 2)}
    for number in sorted(points):
        kill_before_change(words, place, streams, number)
        assert_nothing_torn(place)
        assert not (place / stage).exists() or (place / stage / "manifest.json").exists()
    for share in (draw.uniform(0.2, 0.5), draw.uniform(0.5, 0.9)):
        if (place / stage).exists():
            shutil.rmtree(place / stage)
        kill_after(words, place, streams, share * world.wall_s[stage])
        assert_nothing_torn(place)
    done = vitrail(*words, folder=streams)
    assert done.code == 0, done.err
    assert read_manifest(place / stage).id == read_manifest(world.of(stage)).id
    assert_whole(place / stage)
    assert entries(place) == [stage], "leftovers of the killed attempts must be gone"


def test_killed_training_goes_on_from_its_checkpoint(world: World, tmp_path: Path) -> None:
    place, streams = tmp_path / "runs", tmp_path / "streams"
    place.mkdir()
    words, num_changes = world.words("model", place / "model"), world.num_changes["model"]
    kill_before_change(words, place, streams, num_changes // 2)
    with Running(*words, folder=streams, at=Moment(place, NEVER)) as running:
        assert running.wait().code == 0
    assert running.num_changes < 0.8 * num_changes, "it began from the start"
    assert_whole(place / "model")


def test_last_checkpoint_is_not_written_over(world: World, tmp_path: Path) -> None:
    """An attempt that had only the last files to write wrote its checkpoint once more: a kill left it torn."""
    place = tmp_path / "runs"
    place.mkdir()
    words = world.words("model", place / "model")
    stamps = []
    for _attempt in range(2):
        at_the_end = Moment(place, 0, ending="/model.safetensors.partial")
        with Running(*words, folder=tmp_path / "streams", at=at_the_end) as running:
            assert running.wait().code == KILLED
        stamps.append(_checkpoint(place).stat().st_mtime_ns)
    assert stamps[0] == stamps[1]


def _checkpoint(place: Path) -> Path:
    (pointer,) = place.glob(".model.work-*/latest.json")
    (shard,) = (pointer.parent / str(read_json(pointer)["checkpoint"])).glob("*.safetensors")
    return shard


def test_lost_checkpoint_is_named_or_done_without(world: World, tmp_path: Path) -> None:
    """A torn one (after a power cut) is named with what to remove; once it is removed the run begins again."""
    place, streams = tmp_path / "runs", tmp_path / "streams"
    place.mkdir()
    words = world.words("model", place / "model")
    kill_before_change(words, place, streams, world.num_changes["model"] // 2)
    checkpoint = _checkpoint(place)
    checkpoint.write_bytes(checkpoint.read_bytes()[:1000])
    done = vitrail(*words, folder=streams)
    assert done.code == 2
    assert f"{checkpoint.parent}: damaged training state" in done.last_line
    assert "remove it to start afresh" in done.last_line
    shutil.rmtree(checkpoint.parent)
    done = vitrail(*words, folder=streams)
    assert done.code == 0, done.err
    assert read_manifest(place / "model").id == read_manifest(world.of("model")).id


def test_replaced_artifact_is_never_lost(world: World, tmp_path: Path) -> None:
    """A kill between the two renames hides the old one; a later attempt that fails must bring it back."""
    place, streams = tmp_path / "runs", tmp_path / "streams"
    place.mkdir()
    shutil.copytree(world.of("corpus"), place / "corpus")
    words = [*world.words("corpus", place / "corpus"), "--min_chars", "2"]
    with Running(*words, folder=streams, at=Moment(place, 1, ending="/.corpus.new")) as running:
        assert running.wait().code == KILLED
    assert entries(place) == [".corpus.lock", ".corpus.new", ".corpus.old", *_work(place)]
    assert_nothing_torn(place)
    nothing = tmp_path / "empty.txt"
    nothing.touch()
    assert vitrail("corpus", "import", nothing, "--out", place / "corpus", folder=streams).code == 2
    assert read_manifest(place / "corpus").id == read_manifest(world.of("corpus")).id
    assert vitrail(*words, folder=streams).code == 0
    assert read_manifest(place / "corpus").id != read_manifest(world.of("corpus")).id
    assert entries(place) == ["corpus"]


def _work(place: Path) -> list[str]:
    return sorted(path.name for path in place.glob(".corpus.work-*"))


def test_killed_calibration_leaves_the_old_one(world: World, tmp_path: Path) -> None:
    """It is one file in the model's directory; the half-written one stayed beside it for ever."""
    model, streams = tmp_path / "model", tmp_path / "streams"
    shutil.copytree(world.of("model"), model)
    words = ("steer", "calibrate", model, "--packed", world.of("packed"))
    assert vitrail(*words, folder=streams).code == 0
    before = (model / "calibration.json").read_bytes()
    with Running(*words, "--target", "2", folder=streams, at=Moment(model, 1)) as running:
        assert running.wait().code == KILLED
    assert (model / "calibration.json").read_bytes() == before
    assert list(model.glob(".calibration.json.*"))
    assert vitrail(*words, "--target", "2", folder=streams).code == 0
    assert (model / "calibration.json").read_bytes() != before
    assert not list(model.glob(".*"))
