"""Steps and engines that go wrong on purpose: real ones of the pipeline, with one more step in between."""

import os
import signal
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from vitrail.atlas.annotated.engines import Engine, Job, LocalEngine, Step


@dataclass(frozen=True)
class KillOnce:
    """Kills the process that works on a shard, the first time."""

    shard: int
    note: Path

    def __call__(self, data: Iterator[Any], rank: int, world_size: int) -> Iterator[Any]:
        if rank == self.shard and not self.note.exists():
            self.note.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        yield from data


@dataclass(frozen=True)
class Stick:
    """Hangs in a shard, after telling its process number."""

    shard: int
    folder: Path

    def __call__(self, data: Iterator[Any], rank: int, world_size: int) -> Iterator[Any]:
        if rank == self.shard:
            (self.folder / f"{os.getpid()}.stuck").touch()
            time.sleep(600)
        yield from data


@dataclass(frozen=True)
class Hold:
    """Waits in the midst of every shard until it is let go, after telling that it is there."""

    folder: Path

    def __call__(self, data: Iterator[Any], rank: int, world_size: int) -> Iterator[Any]:
        (self.folder / "held").touch()
        while not (self.folder / "go").exists():
            time.sleep(0.05)
        yield from data


@dataclass(frozen=True)
class Fail:
    """Fails in some shards with an error that no user can mend."""

    shards: tuple[int, ...]

    def __call__(self, data: Iterator[Any], rank: int, world_size: int) -> Iterator[Any]:
        if rank in self.shards:
            raise KeyError(f"nothing at {rank}")
        yield from data


@dataclass(frozen=True)
class FillUp:
    """Meets a full disk in a shard."""

    shard: int

    def __call__(self, data: Iterator[Any], rank: int, world_size: int) -> Iterator[Any]:
        if rank == self.shard:
            with Path("/dev/full").open("wb", buffering=0) as file:
                file.write(b"no room")
        yield from data


@dataclass(frozen=True)
class Sabotaged:
    """The local engine, or another, with one more step before the last."""

    step: Step
    engine: Engine | None = None

    def run(self, job: Job) -> None:
        (self.engine or LocalEngine()).run(replace(job, pipeline=[*job.pipeline[:-1], self.step, job.pipeline[-1]]))


@dataclass(frozen=True)
class Spoil:
    """The local engine; afterwards a byte of a finished shard is another one, as a broken disk would have it."""

    shard: int
    times: list[int]

    def run(self, job: Job) -> None:
        LocalEngine().run(job)
        if len(self.times) < 1:
            self.times.append(self.shard)
            (file,) = job.work.glob(f"shards/{self.shard:05d}/vectors.npy")
            with file.open("r+b") as stream:
                stream.seek(-1, os.SEEK_END)
                last = stream.read(1)
                stream.seek(-1, os.SEEK_END)
                stream.write(bytes([last[0] ^ 1]))
