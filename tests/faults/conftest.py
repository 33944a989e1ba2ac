"""One small world for all tests of faults, made once through the command line."""

import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.faults.command import NEVER, Moment, Running
from tests.faults.world import STAGES, World


@pytest.fixture(scope="session")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    """Every stage made, without faults."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OMP_NUM_THREADS", "1")  # the server that all runs are forked from takes it over
        patch.setenv("TOKENIZERS_PARALLELISM", "false")
        made = World(tmp_path_factory.mktemp("world"))
        for stage in STAGES:
            words, never = made.words(stage, made.of(stage)), Moment(made.folder, NEVER)
            with Running(*words, folder=tmp_path_factory.mktemp("streams"), at=never) as running:
                done = running.wait()
                assert done.code == 0, done.err
                made.wall_s[stage] = time.monotonic() - running.started
                made.num_changes[stage] = running.num_changes
    return made


class SmallDisk:
    """A file system of its own, which can be filled, enlarged and made read-only."""

    def __init__(self, place: Path) -> None:
        self.place = place

    def mount(self, options: str) -> None:
        _system("mount", "-t", "tmpfs", "-o", options, "tmpfs", str(self.place))

    def remount(self, options: str) -> None:
        _system("mount", "-o", f"remount,{options}", str(self.place))

    @property
    def used_bytes(self) -> int:
        return shutil.disk_usage(self.place).used


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[SmallDisk]:
    """A tmpfs of one MiB at `tmp_path/disk`; only root may mount one."""
    place = tmp_path / "disk"
    place.mkdir()
    if os.geteuid() != 0 or shutil.which("mount") is None:
        pytest.skip("mounting a small file system needs root")
    disk = SmallDisk(place)
    try:
        disk.mount("size=1m")
    except subprocess.CalledProcessError as error:
        pytest.skip(f"no tmpfs can be mounted here: {error.stderr.strip()}")
    try:
        yield disk
    finally:
        _system("umount", "--lazy", str(place))


def _system(*words: str) -> None:
    subprocess.run(words, check=True, capture_output=True, text=True)
