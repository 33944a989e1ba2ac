"""A disk that fills up under each writer: one clear line, nothing half-written counts, and room mends it."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.faults.command import Done, Running, vitrail
from tests.faults.conftest import SmallDisk
from tests.faults.world import STAGES, World, assert_nothing_torn, assert_whole, entries
from vitrail.artifacts import read_manifest


def assert_full(done: Done, path: Path | str) -> None:
    assert done.code == 1, (done.code, done.err)
    assert "Traceback" not in done.err
    assert "Exception ignored" not in done.err
    assert done.last_line.startswith(f"vitrail: {path}")
    assert "the disk is full" in done.last_line


def fill(disk: SmallDisk, room: int) -> Path:
    """Leave so many bytes free."""
    ballast = disk.place / "ballast"
    ballast.unlink(missing_ok=True)
    with ballast.open("wb") as file:
        file.write(bytes(max(0, shutil.disk_usage(disk.place).free - room)))
    return ballast


@pytest.mark.parametrize("stage", STAGES)
def test_stage_on_a_full_disk_and_again_with_room(stage: str, world: World, disk: SmallDisk, tmp_path: Path) -> None:
    disk.remount("size=8m")
    runs, streams = disk.place / "runs", tmp_path / "streams"
    shutil.copytree(world.of("corpus"), runs / "older")
    size = sum(path.stat().st_size for path in world.of(stage).rglob("*"))
    words = world.words(stage, runs / stage)
    for room in (0, size // 3, 2 * size // 3):
        ballast = fill(disk, room)
        assert_full(vitrail(*words, folder=streams), runs / stage)
        assert_nothing_torn(runs)
        assert not (runs / stage).exists()
        assert_whole(runs / "older")
        ballast.unlink()
    done = vitrail(*words, folder=streams)
    assert done.code == 0, done.err
    assert_whole(runs / stage)
    assert read_manifest(runs / stage).id == read_manifest(world.of(stage)).id
    assert entries(runs) == sorted([stage, "older"])


def test_disk_without_room_for_another_name(world: World, disk: SmallDisk, tmp_path: Path) -> None:
    """Bytes are free, but no file can be made."""
    disk.remount("nr_inodes=3")
    (disk.place / "a").touch()
    (disk.place / "b").touch()
    words = world.words("corpus", disk.place / "corpus")
    assert_full(vitrail(*words, folder=tmp_path), disk.place / "corpus")
    assert_full(vitrail("demo", "--out", disk.place / "demo", folder=tmp_path), disk.place / "demo")
    assert entries(disk.place) == ["a", "b"]


def test_training_keeps_its_checkpoint_and_goes_on(world: World, disk: SmallDisk, tmp_path: Path) -> None:
    """The disk fills up at the second checkpoint: the half-written one is removed, the first one used."""
    disk.remount("size=8m")
    runs = disk.place / "runs"
    words = world.words("model", runs / "model")
    files = ("model.safetensors", "training/state.safetensors")
    ballast = fill(disk, int(1.5 * sum((world.of("model") / name).stat().st_size for name in files)))
    assert_full(vitrail(*words, folder=tmp_path), runs / "model")
    (work,) = runs.glob(".model.work-*")
    assert len(list(work.glob("step-*"))) == 1
    assert entries(runs) == [work.name]
    ballast.unlink()
    done = vitrail(*words, folder=tmp_path)
    assert done.code == 0, done.err
    assert read_manifest(runs / "model").id == read_manifest(world.of("model")).id


def test_trace_on_a_full_disk_does_not_cost_the_answer(world: World, disk: SmallDisk, tmp_path: Path) -> None:
    words = ("generate", world.of("model"), "The judge", "--max-new-tokens", "4", "--save", disk.place / "trace")
    ballast = fill(disk, 4096)
    done = vitrail(*words, folder=tmp_path)
    assert_full(done, disk.place / "trace")
    assert done.out.strip()
    assert entries(disk.place) == ["ballast"]
    ballast.unlink()
    again = vitrail(*words, folder=tmp_path)
    assert (again.code, again.out) == (0, done.out)
    assert_whole(disk.place / "trace")
    ids = read_manifest(disk.place / "trace").id
    fill(disk, 4096)
    assert_full(vitrail(*words, "--seed", "1", folder=tmp_path), disk.place / "trace")
    assert read_manifest(disk.place / "trace").id == ids, "the older trace is intact"


def test_calibration_on_a_full_disk_leaves_the_old_one(world: World, disk: SmallDisk, tmp_path: Path) -> None:
    disk.remount("size=8m")
    model = disk.place / "model"
    shutil.copytree(world.of("model"), model)
    words = ("steer", "calibrate", model, "--packed", world.of("packed"))
    assert vitrail(*words, folder=tmp_path).code == 0
    before = (model / "calibration.json").read_bytes()
    fill(disk, 4096)
    assert_full(vitrail(*words, "--target", "2", folder=tmp_path), model / "calibration.json")
    assert (model / "calibration.json").read_bytes() == before
    assert not list(model.glob(".*"))


def test_demo_on_a_full_disk_goes_on_with_room(world: World, disk: SmallDisk, tmp_path: Path) -> None:
    """The first stages fit, a later one does not; with room the same command goes on from there."""
    out = disk.place / "demo"
    words = ("demo", "--corpus", world.texts, "--minutes", "0.1", "--out", out, "--no-serve")
    disk.remount("size=1m")
    done = vitrail(*words, folder=tmp_path)
    assert_full(done, out / "annotated")
    kept = {stage: read_manifest(out / stage).id for stage in ("corpus", "atlas")}
    assert_nothing_torn(out)
    disk.remount("size=1300k")
    assert_full(vitrail(*words, folder=tmp_path), out)
    disk.remount("size=32m")
    with Running(*words, folder=tmp_path / "on") as running:
        running.wait_for(" base ")
    assert {stage: read_manifest(out / stage).id for stage in kept} == kept
    for stage in ("corpus", "atlas", "annotated", "tokenizer", "packed"):
        assert_whole(out / stage)


@pytest.mark.parametrize("words", [("explain", "MODEL", "The judge", "--max-new-tokens", "1"), ("--help",)])
def test_answer_on_a_full_disk(words: tuple[str, ...], world: World) -> None:
    """A cold process, since what Python itself writes when it ends counts too."""
    command = [sys.executable, "-c", "from vitrail.cli.main import main; main()"]
    named = [str(world.of("model")) if word == "MODEL" else word for word in words]
    with Path("/dev/full").open("w") as full:
        done = subprocess.run([*command, *named], stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert_full(Done(done.returncode, "", done.stderr), "standard output")
