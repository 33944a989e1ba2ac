"""Places that cannot be written to, that hold something else, or that two runs want at once."""

import shutil
import signal
from pathlib import Path

import pytest

from tests.faults.command import Done, Moment, Running, vitrail
from tests.faults.conftest import SmallDisk
from tests.faults.world import STAGES, World, assert_nothing_torn, assert_whole, entries
from vitrail.artifacts import read_manifest


def assert_refused(done: Done, *parts: str) -> None:
    assert done.code == 2, (done.code, done.err)
    assert "Traceback" not in done.err
    assert done.last_line.startswith("vitrail: ")
    for part in parts:
        assert part in done.last_line


@pytest.mark.parametrize("stage", STAGES)
def test_stage_on_a_read_only_disk(stage: str, world: World, disk: SmallDisk, tmp_path: Path) -> None:
    (disk.place / "runs").mkdir()
    disk.remount("ro")
    words = world.words(stage, disk.place / "runs" / stage)
    assert_refused(vitrail(*words, folder=tmp_path), f"runs/{stage}: the file system is read-only")
    assert_refused(
        vitrail(*world.words(stage, disk.place / "new" / stage), folder=tmp_path), f"new/{stage}: the file system"
    )


def test_stale_artifact_on_a_read_only_disk_is_kept(world: World, disk: SmallDisk, tmp_path: Path) -> None:
    shutil.copytree(world.of("corpus"), disk.place / "corpus")
    (disk.place / ".corpus.new").mkdir()
    disk.remount("ro")
    words = world.words("corpus", disk.place / "corpus")
    assert vitrail(*words, folder=tmp_path).code == 0, "nothing is to be done"
    assert_refused(vitrail(*words, "--min_chars", "2", folder=tmp_path), "corpus: the file system is read-only")
    assert_whole(disk.place / "corpus")


def test_disk_that_turns_read_only_during_training(world: World, disk: SmallDisk, tmp_path: Path) -> None:
    """As a kernel does it after an error: the checkpoint stays and is gone on from."""
    disk.remount("size=8m")
    runs = disk.place / "runs"
    words = world.words("model", runs / "model")
    second_checkpoint = Moment(runs, 0, ending="/step-00000006", sends=signal.SIGSTOP)
    with Running(*words, folder=tmp_path, at=second_checkpoint) as running:
        running.wait_for_moment()
        disk.remount("ro")
        running.go_on()
        done = running.wait()
    assert_refused(done, "runs/model: the file system is read-only")
    assert not (runs / "model").exists()
    assert list(runs.glob(".model.work-*/latest.json"))
    disk.remount("rw")
    assert vitrail(*words, folder=tmp_path).code == 0
    assert read_manifest(runs / "model").id == read_manifest(world.of("model")).id
    assert entries(runs) == ["model"]


def test_trace_calibration_and_demo_on_a_read_only_disk(world: World, disk: SmallDisk, tmp_path: Path) -> None:
    disk.remount("size=8m")
    model = disk.place / "model"
    shutil.copytree(world.of("model"), model)
    disk.remount("ro")
    words = ("generate", model, "The judge", "--max-new-tokens", "4")
    done = vitrail(*words, "--save", disk.place / "trace", folder=tmp_path)
    assert_refused(done, "trace: the file system is read-only")
    assert done.out == vitrail(*words, folder=tmp_path).out, "the answer is not lost"
    done = vitrail("steer", "calibrate", model, "--packed", world.of("packed"), folder=tmp_path)
    assert_refused(done, "calibration.json", "read-only")
    done = vitrail("demo", "--corpus", world.texts, "--out", disk.place / "demo", folder=tmp_path)
    assert_refused(done, "demo: the file system is read-only")


@pytest.mark.parametrize("stage", STAGES)
def test_a_file_at_the_place(stage: str, world: World, tmp_path: Path) -> None:
    (tmp_path / "thesis").write_text("mine", encoding="utf-8")
    assert_refused(vitrail(*world.words(stage, tmp_path / "thesis"), folder=tmp_path), "thesis: is a file")
    below = world.words(stage, tmp_path / "thesis" / "runs")
    assert_refused(vitrail(*below, folder=tmp_path), "thesis: cannot be made")
    assert (tmp_path / "thesis").read_text(encoding="utf-8") == "mine"


@pytest.mark.parametrize("stage", STAGES)
def test_a_folder_of_other_things_at_the_place(stage: str, world: World, tmp_path: Path) -> None:
    mine = tmp_path / "mine"
    mine.mkdir()
    (mine / "thesis.txt").write_text("mine", encoding="utf-8")
    words = world.words(stage, mine)
    assert_refused(vitrail(*words, folder=tmp_path), "mine: not a vitrail artifact", "nothing was overwritten")
    assert entries(tmp_path) == ["changes", "mine", "stderr", "stdout"]
    assert entries(mine) == ["thesis.txt"]


def test_somebodys_file_in_an_artifact_is_not_replaced_with_it(world: World, tmp_path: Path) -> None:
    """Notes laid beside the weights went with the model when it was trained anew."""
    for stage, flags in (("corpus", ["--min_chars", "2"]), ("model", ["--seed", "7"])):
        out = tmp_path / "runs" / stage
        shutil.copytree(world.of(stage), out)
        (out / "notes").mkdir()
        (out / "notes" / "thesis.txt").write_text("mine", encoding="utf-8")
        words = world.words(stage, out)
        assert vitrail(*words, folder=tmp_path).code == 0, "nothing is to be done"
        assert_refused(vitrail(*words, *flags, folder=tmp_path), "notes/thesis.txt", "move it")
        assert read_manifest(out).id == read_manifest(world.of(stage)).id
        assert (out / "notes" / "thesis.txt").read_text(encoding="utf-8") == "mine"
    assert entries(tmp_path / "runs") == ["corpus", "model"]


def test_trace_does_not_replace_what_is_no_trace(world: World, tmp_path: Path) -> None:
    shutil.copytree(world.of("corpus"), tmp_path / "corpus")
    words = ("generate", world.of("model"), "The judge", "--max-new-tokens", "1", "--save")
    for place, message in ((tmp_path / "corpus", "holds a 'corpus' artifact"), (world.texts, "is a file")):
        assert_refused(vitrail(*words, place, folder=tmp_path / "streams"), message)
    assert_whole(tmp_path / "corpus")


def test_second_run_on_the_same_place_is_told_to_wait(world: World, tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    words = world.words("model", runs / "model")
    second_checkpoint = Moment(runs, 0, ending="/step-00000006", sends=signal.SIGSTOP)
    with Running(*words, folder=tmp_path / "first", at=second_checkpoint) as first:
        first.wait_for_moment()
        for flags in ([], ["--seed", "7"]):
            second = vitrail(*words, *flags, folder=tmp_path / "second")
            assert second.code == 1
            assert "runs/model: another process is writing this artifact" in second.last_line
        first.go_on()
        done = first.wait()
    assert done.code == 0, done.err
    assert read_manifest(runs / "model").id == read_manifest(world.of("model")).id
    assert entries(runs) == ["model"]


def test_many_runs_at_once(world: World, tmp_path: Path) -> None:
    """Of the same and of other settings: each makes the artifact whole, or says that another does."""
    runs = tmp_path / "runs"
    words = world.words("corpus", runs / "corpus")
    together = [Running(*words, "--min_chars", str(n % 2 + 1), folder=tmp_path / str(n)) for n in range(8)]
    ends = [running.wait() for running in together]
    assert {done.code for done in ends} <= {0, 1}
    assert any(done.code == 0 for done in ends)
    for done in ends:
        assert "Traceback" not in done.err
        assert done.code == 0 or "another process" in done.last_line
    assert_nothing_torn(runs)
    assert entries(runs) == ["corpus"]
