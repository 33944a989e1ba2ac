"""A Slurm cluster: one array job whose tasks are the shards; the submitting command waits and then merges.

datatrove's own executor writes the script and submits it. The job's number is kept beside the shards: a command that
is started again while the job still runs waits for it instead of submitting a second one.
"""

import shutil
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from datatrove.executor.slurm import SlurmPipelineExecutor
from datatrove.utils.logging import logger

from vitrail.artifacts import atomic_write_bytes
from vitrail.atlas.annotated.engines.job import Job
from vitrail.errors import ConfigError, RunFailed

_JOB_NAME = "slurm_job"


@dataclass(frozen=True)
class SlurmEngine:
    """Tasks on a Slurm cluster.

    Attributes:
        partition: where the job goes.
        time: limit of one task, as Slurm writes it (`02:00:00`).
        cpus: of one task; more than one only buys memory.
        memory_gb: for each of those.
        tasks: tasks at a time; None sets no limit.
        max_array: largest array that the cluster takes.
        qos: quality of service; empty leaves it to the cluster.
        account: who is charged; empty leaves it to the cluster.
        setup: shell command that a task runs first, such as `module load python`.
        poll_s: seconds between two looks at the queue.
    """

    partition: str
    time: str = "02:00:00"
    cpus: int = 1
    memory_gb: int = 4
    tasks: int | None = None
    max_array: int = 1_000
    qos: str = ""
    account: str = ""
    setup: str = ""
    poll_s: float = 10.0

    def run(self, job: Job) -> None:
        """Submit the tasks, unless an earlier command has, and wait for them.

        Args:
            job: what to run.

        Raises:
            ConfigError: this machine has no Slurm.
            RunFailed: the job is not accepted.
        """
        for command in ("sbatch", "squeue"):
            if shutil.which(command) is None:
                raise ConfigError(f"the engine 'slurm' needs '{command}' on the PATH; run on a machine of the cluster")
        note = job.work / _JOB_NAME
        if not (note.is_file() and self._is_queued(note.read_text())):
            self._submit(job, note)
        while job.missing() and self._is_queued(note.read_text()):
            time.sleep(self.poll_s)
        note.unlink()

    def _submit(self, job: Job, note: Path) -> None:
        job.begin()
        executor = SlurmPipelineExecutor(
            pipeline=list(job.pipeline),
            tasks=job.num_tasks,
            time=self.time,
            partition=self.partition,
            cpus_per_task=self.cpus,
            mem_per_cpu_gb=self.memory_gb,
            workers=self.tasks or -1,
            job_name="vitrail-annotate",
            qos=self.qos,
            env_command=self._environment(),
            sbatch_args={"account": self.account} if self.account else {},
            max_array_size=self.max_array,
            logging_dir=str(job.log_dir),
        )
        logger.disable("datatrove")
        try:
            executor.run()
        except (OSError, subprocess.CalledProcessError) as error:
            raise RunFailed(f"Slurm did not take the job ({error}); check partition, time and account") from error
        finally:
            logger.enable("datatrove")
        atomic_write_bytes(note, str(executor.job_id).encode())

    def _environment(self) -> str:
        """Of a task: this Python, and one thread."""
        lines = [f'export PATH="{Path(sys.executable).parent}:$PATH"', "export OMP_NUM_THREADS=1"]
        return "\n".join([*lines, self.setup] if self.setup else lines)

    def _is_queued(self, job_id: str) -> bool:
        """Whether a job waits or runs; a queue that does not answer just now says nothing, and is asked again."""
        words = ["squeue", "-h", "-j", job_id]
        answer = subprocess.run(words, capture_output=True, text=True, check=False)
        if answer.returncode == 0:
            return bool(answer.stdout.strip())
        return "invalid job id" not in answer.stderr.lower()  # Slurm forgets jobs some minutes after their end
