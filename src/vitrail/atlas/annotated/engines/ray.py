"""A Ray cluster: an existing one by its address, or one that is started here for the run.

datatrove's own executor: one actor a task, and a task whose machine is lost is given to another up to three times.
The cluster's machines need the same environment, and must see the folders of the run at the same paths.
"""

import socket
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from datatrove.executor.ray import RayPipelineExecutor
from datatrove.utils.logging import logger

from vitrail.atlas.annotated.engines.job import Job
from vitrail.errors import ConfigError, RunFailed

_OBJECT_STORE_BYTES = 128 * 2**20
"""Only the pipeline's description goes through the object store."""

_KNOCK_S = 10.0


@dataclass(frozen=True)
class RayEngine:
    """Tasks on a Ray cluster.

    Attributes:
        address: of the cluster, such as `ray://head:10001` or `auto`; None starts one on this machine.
        tasks: tasks at a time; None takes one a core of the cluster.
        memory_gb: memory that a task asks for.
        task_time_s: a task that takes longer is stopped and counts as failed; None sets no limit.
    """

    address: str | None = None
    tasks: int | None = None
    memory_gb: float = 1.0
    task_time_s: int | None = None

    def run(self, job: Job) -> None:
        """Run the tasks on the cluster.

        Args:
            job: what to run.

        Raises:
            ConfigError: Ray is not installed.
            RunFailed: the cluster cannot be reached.
        """
        ray = _ray()
        is_ours = not ray.is_initialized()
        if is_ours:
            self._connect(ray, job)
        job.begin()
        logger.disable("datatrove")
        try:
            RayPipelineExecutor(
                pipeline=list(job.pipeline),
                tasks=job.num_tasks,
                workers=self.tasks or max(1, int(ray.cluster_resources().get("CPU", 1))),
                logging_dir=str(job.log_dir),
                mem_per_cpu_gb=self.memory_gb,
                time=self.task_time_s,
                ray_remote_kwargs={"runtime_env": {"env_vars": {"OMP_NUM_THREADS": "1"}}},
            ).run()
        finally:
            logger.enable("datatrove")
            if is_ours:
                ray.shutdown()

    def _connect(self, ray: Any, job: Job) -> None:
        quiet: dict[str, Any] = {"log_to_driver": False, "logging_level": "ERROR"}
        if self.address is None:
            own = {"num_cpus": job.workers, "object_store_memory": _OBJECT_STORE_BYTES, "include_dashboard": False}
            ray.init(**quiet, **own)
            return
        try:
            _knock(self.address)
            ray.init(address=self.address, **quiet)
        except (OSError, RuntimeError, ValueError) as error:
            problem = " ".join(str(error).split())
            raise RunFailed(f"no Ray cluster at {self.address} ({problem}); check the address, or start one") from error


def _knock(address: str) -> None:
    """Try the port of an address that names one: Ray itself would try for minutes."""
    place = urlsplit(address if "://" in address else f"ray://{address}")
    if place.port is not None:
        socket.create_connection((place.hostname or "", place.port), _KNOCK_S).close()


def _ray() -> Any:
    try:
        import ray
    except ImportError as error:
        raise ConfigError("the engine 'ray' needs Ray; run: pip install 'vitrail[ray]'") from error
    return ray
