"""Processes of this machine, one core each.

A datatrove executor of our own: datatrove's waits for ever when one of its processes is killed, and starts a server
process before its first task. This one notices, ends with its parent however that ends, and works in the calling
process where one worker is enough.
"""

import os
from collections.abc import Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import AbstractContextManager, contextmanager
from copy import deepcopy
from dataclasses import dataclass
from itertools import islice
from multiprocessing import get_context

import pyarrow as pa
from datatrove.executor.base import DistributedEnvVars, PipelineExecutor
from datatrove.utils.logging import logger

from vitrail.atlas.annotated.engines.job import Job
from vitrail.atlas.annotated.labelling import forget
from vitrail.errors import RunFailed
from vitrail.processes import worker_pool

_PRELOADED = "vitrail.atlas.annotated.steps"


@dataclass(frozen=True)
class LocalEngine:
    """Processes of this machine, as many as the job allows."""

    def run(self, job: Job) -> None:
        """Run the tasks here.

        Args:
            job: what to run.

        Raises:
            RunFailed: a worker died.
        """
        job.begin()
        with _quiet():
            ProcessExecutor(job).run()


class ProcessExecutor(PipelineExecutor):  # type: ignore[misc]  # datatrove declares no types
    """A datatrove executor over processes that end with this one."""

    def __init__(self, job: Job) -> None:
        """Set up.

        Args:
            job: what to run.
        """
        super().__init__(list(job.pipeline), str(job.log_dir))
        self._job = job

    @property
    def world_size(self) -> int:
        """How many tasks there are."""
        return self._job.num_tasks

    def get_distributed_env(self, node_rank: int = -1) -> DistributedEnvVars:
        """What datatrove puts into the environment of a task.

        Args:
            node_rank: of several machines; none here.

        Returns:
            the variables.
        """
        return DistributedEnvVars(
            datatrove_node_ips="localhost",
            datatrove_cpus_per_task="1",
            datatrove_mem_per_cpu="-1",
            datatrove_gpus_on_node="-1",
            datatrove_executor="LOCAL",
        )

    def run(self) -> None:
        """Run every task that is not complete; the first failure stops the run.

        Raises:
            RunFailed: a worker died.
        """
        ranks = self.get_incomplete_ranks()
        workers = min(self._job.workers, len(ranks))
        if workers > 1:
            with _pool(workers) as pool:
                self._spread(pool, iter(ranks), limit=2 * workers)
            return
        try:
            for rank in ranks:
                deepcopy(self)._run_for_rank(rank)  # statistics are of one task
        finally:
            forget()

    def _spread(self, pool: ProcessPoolExecutor, ranks: Iterator[int], limit: int) -> None:
        """Keep the workers busy with few tasks waiting."""
        waiting: set[Future[object]] = set()
        try:
            while True:
                waiting |= {pool.submit(self._run_for_rank, rank) for rank in islice(ranks, limit - len(waiting))}
                if not waiting:
                    return
                done, waiting = wait(waiting, return_when=FIRST_COMPLETED)
                for future in done:
                    future.result()
        except BrokenProcessPool as error:
            raise RunFailed(
                "a worker died while annotating (out of memory?); finished shards are kept: run again, with fewer "
                "workers if memory is short"
            ) from error


def _pool(workers: int) -> AbstractContextManager[ProcessPoolExecutor]:
    context = get_context("forkserver")  # imports once; a fork of this process would copy the locks of its threads
    context.set_forkserver_preload([_PRELOADED])
    return worker_pool(context, workers, _begin_worker)


def _begin_worker() -> None:
    """Keep to one core."""
    logger.disable("datatrove")
    os.environ["OMP_NUM_THREADS"] = "1"  # read by torch, which only an encoder of texts loads
    pa.set_cpu_count(1)


@contextmanager
def _quiet() -> Iterator[None]:
    """Without datatrove's log on the terminal: failures come as exceptions, progress from the caller."""
    logger.disable("datatrove")
    try:
        yield
    finally:
        logger.enable("datatrove")
