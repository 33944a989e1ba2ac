"""The real command line in processes of its own, which real faults may befall.

Starting Python and loading the tensor library takes three seconds, a stage on a small corpus a fifth of one. So a
server process loads every command once, and each run is forked from it: a process like any other, with its own
number, memory and exit code, that may be killed.
"""

import faulthandler
import multiprocessing
import os
import signal
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from types import TracebackType

NEVER = 10**9
"""A number that no change of files reaches."""
TIMEOUT_S = 500
_LATE = ["torch._dynamo", "pytest"]
"""What the commands, and the start of a process, load by themselves but late."""
_PRELOADED = [*_LATE, *(f"vitrail.cli.{name}" for name in ("main", "atlas", "data", "demo", "index", "model"))]
_FILE_EVENTS = frozenset({"open", "os.mkdir", "os.rename", "os.remove", "os.rmdir"})

_processes = multiprocessing.get_context("forkserver")
_processes.set_forkserver_preload(_PRELOADED)


@dataclass(frozen=True)
class Done:
    """What a finished process leaves; `code` is negative where a signal ended it."""

    code: int
    out: str
    err: str

    @property
    def last_line(self) -> str:
        return (self.err.strip().splitlines() or [""])[-1]


@dataclass(frozen=True)
class Moment:
    """When a process sends itself a signal: right before change number `number` (from 0) of files in `folder`.

    Changes are what Python itself does to the file system: opening for writing, making, renaming, removing. With
    `ending`, only changes of paths that end so are counted.
    """

    folder: Path
    number: int
    ending: str = ""
    sends: signal.Signals = signal.SIGKILL


class Running:
    """A command that runs."""

    def __init__(self, *words: str | Path, folder: Path, at: Moment | None = None) -> None:
        """Start it; what it prints goes to files in `folder`.

        Args:
            words: the words after `vitrail`.
            folder: for the files of its output.
            at: when it is killed or stopped, if it gets so far.
        """
        folder.mkdir(parents=True, exist_ok=True)
        self._streams = (folder / "stdout", folder / "stderr", folder / "changes")
        for path in self._streams:
            path.write_bytes(b"")
        self.started = time.monotonic()
        self.process: ForkServerProcess = _processes.Process(
            target=_run, args=([str(word) for word in words], *map(str, self._streams), at)
        )
        self.process.start()

    def __enter__(self) -> "Running":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, failure: BaseException | None, at: TracebackType | None
    ) -> None:
        self.process.kill()
        self.process.join()

    def kill(self) -> None:
        """Kill it now, as `kill -9` does."""
        self.process.kill()

    def go_on(self) -> None:
        """Let a stopped process run again."""
        assert self.process.pid is not None
        os.kill(self.process.pid, signal.SIGCONT)

    def wait_for_moment(self) -> None:
        """Wait until it sends itself the signal."""
        while "now" not in self._streams[2].read_text(encoding="utf-8"):
            assert self.process.exitcode is None, self._streams[1].read_text(encoding="utf-8", errors="replace")
            time.sleep(0.01)

    def wait_for(self, words: str) -> None:
        """Wait until its messages hold some words."""
        while words not in self._streams[1].read_text(encoding="utf-8", errors="replace"):
            assert self.process.exitcode is None, self._streams[1].read_text(encoding="utf-8", errors="replace")
            assert time.monotonic() - self.started < TIMEOUT_S, "too slow"
            time.sleep(0.02)

    def wait(self) -> Done:
        """Wait for its end."""
        self.process.join(TIMEOUT_S)
        assert self.process.exitcode is not None, "still running"
        out, err, _ = (path.read_text(encoding="utf-8", errors="replace") for path in self._streams)
        return Done(self.process.exitcode, out, err)

    @property
    def num_changes(self) -> int:
        """Changes of files that the process made by itself, where it was told a `Moment`."""
        return int((self._streams[2].read_text(encoding="utf-8").split() or ["0"])[0])


def vitrail(*words: str | Path, folder: Path) -> Done:
    """Run one command to its end."""
    with Running(*words, folder=folder) as running:
        return running.wait()


def _run(words: Sequence[str], out: str, err: str, changes: str, at: Moment | None) -> None:
    """In the new process: send the output to files, and run the command."""
    from vitrail.cli.main import main

    faulthandler.disable()
    for path, number in ((out, 1), (err, 2)):
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(handle, number)
        os.close(handle)
    sys.stdout = open(1, "w", encoding="utf-8", closefd=False)  # noqa: SIM115 - lives as long as the process
    sys.stderr = open(2, "w", encoding="utf-8", closefd=False, buffering=1)  # noqa: SIM115
    counted = os.open(changes, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    if at is not None:
        _watch(at, counted)
    main(words)


def _watch(moment: Moment, counted: int) -> None:
    folder, number = str(moment.folder), 0

    def watch(event: str, arguments: tuple[object, ...]) -> None:
        nonlocal number
        if event not in _FILE_EVENTS:
            return
        path = str(arguments[0])
        if not (path.startswith(folder) and path.endswith(moment.ending)):
            return
        if event == "open" and not (isinstance(arguments[2], int) and arguments[2] & (os.O_WRONLY | os.O_RDWR)):
            return
        if number == moment.number:
            os.pwrite(counted, f"{number} now".encode(), 0)
            os.kill(os.getpid(), moment.sends)
        number += 1
        os.pwrite(counted, str(number).encode(), 0)

    sys.addaudithook(watch)
