"""What an engine is given, and what it owes: run the pipeline once for every task that has no completion marker."""

import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from vitrail.artifacts import make_folder
from vitrail.atlas.annotated.finished import Shelf

Step = Callable[[Any, int, int], Any]
"""A step of a datatrove pipeline: what the step before gave, the task's number, and how many tasks there are."""


@dataclass(frozen=True)
class Job:
    """A datatrove pipeline and the tasks it has.

    Attributes:
        pipeline: the steps.
        num_tasks: shards of the corpus, one task each.
        work: folder of the run, seen by every machine; finished shards, logs and completion markers lie there.
        workers: processes to use on this machine.
    """

    pipeline: Sequence[Step]
    num_tasks: int
    work: Path
    workers: int

    @property
    def log_dir(self) -> Path:
        """Logs, statistics and completion markers of datatrove."""
        return self.work / "log"

    def missing(self) -> list[int]:
        """Tasks whose shard is not finished."""
        shelf = Shelf(self.work)
        return [number for number in range(self.num_tasks) if not shelf.is_finished(number)]

    def begin(self) -> None:
        """Make ready for tasks to be started; only while none of an earlier command runs, whose work it would remove.

        Traces of failed and killed tasks go, and datatrove's completion markers come to say what the finished shards
        say, which alone are the truth.
        """
        Shelf(self.work).begin()
        completions = self.log_dir / "completions"
        shutil.rmtree(completions, ignore_errors=True)
        make_folder(completions)
        for number in set(range(self.num_tasks)) - set(self.missing()):
            (completions / f"{number:05d}").touch()

    def clear(self) -> None:
        """Remove everything of the run."""
        for path in self.work.iterdir():
            shutil.rmtree(path) if path.is_dir() else path.unlink()


@runtime_checkable
class Engine(Protocol):
    """Runs jobs."""

    def run(self, job: Job) -> None:
        """Call the job's `begin`, then run every task without a completion marker; one that fails stays without.

        Tasks of an earlier command that are still running are waited for instead, and `begin` is not called.

        Args:
            job: what to run.

        Raises:
            RunFailed: the engine itself cannot go on.
            ConfigError: it is not installed, or not told enough.
        """
        ...
