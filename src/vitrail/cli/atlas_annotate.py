"""`vitrail atlas annotate`: on the cores of this machine, on a Ray cluster, or on a Slurm cluster."""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from vitrail.atlas import annotate_corpus
from vitrail.atlas.annotated.engines import Engine, LocalEngine, RayEngine, SlurmEngine
from vitrail.atlas.resources import Resources
from vitrail.cli.endpoints import split_endpoint
from vitrail.cli.output import Count, Json, Overrides, described, emit, parse_overrides, progress_console, working
from vitrail.errors import ConfigError

_OF_RAY = ("workers", "address", "tasks", "memory_gb", "task_time_s")
_OF_SLURM = ("partition", "time", "cpus", "memory_gb", "tasks", "max_array", "qos", "account", "setup")


def annotate(
    corpus: Path,
    *overrides: Overrides,
    atlas: Path,
    out: Path,
    engine: Literal["local", "ray", "slurm"] = "local",
    workers: Count | None = None,
    address: str | None = None,
    partition: str | None = None,
    time: str | None = None,
    cpus: Count | None = None,
    memory_gb: Count | None = None,
    tasks: Count | None = None,
    task_time_s: Count | None = None,
    max_array: Count | None = None,
    qos: str | None = None,
    account: str | None = None,
    setup: str | None = None,
    json: Json = False,
) -> None:
    """Label every chunk of a corpus with the concepts of an atlas.

    Example: `vitrail atlas annotate runs/corpus --atlas runs/atlas --out runs/annotated`

    The same command resumes what was interrupted; shards that are finished are kept.

    Args:
        corpus: a corpus directory.
        overrides: --endpoint.url and the like: the server of embeddings, if the atlas was built with one.
        atlas: an atlas directory.
        out: directory to make.
        engine: local (processes here), ray or slurm.
        workers: local: processes; all cores if not given. ray without an address: cores of the cluster.
        address: ray: of an existing cluster; without it one is started here.
        partition: slurm: where the job goes.
        time: slurm: limit of one task, such as 02:00:00.
        cpus: slurm: cores of one task.
        memory_gb: ray: memory of a task; slurm: memory a core.
        tasks: ray and slurm: tasks at a time.
        task_time_s: ray: seconds after which a task is stopped.
        max_array: slurm: largest array job of the cluster.
        qos: slurm: quality of service.
        account: slurm: who is charged.
        setup: slurm: shell command that each task runs first.
        json: print one JSON object.
    """
    given = {
        "workers": workers,
        "address": address,
        "partition": partition,
        "time": time,
        "cpus": cpus,
        "memory_gb": memory_gb,
        "tasks": tasks,
        "task_time_s": task_time_s,
        "max_array": max_array,
        "qos": qos,
        "account": account,
        "setup": setup,
    }
    chosen = _engine(engine, {name: value for name, value in given.items() if value is not None})
    endpoint, others = split_endpoint(parse_overrides(overrides), None, None)
    if others:
        raise ConfigError(f"unknown flag --{next(iter(others))}; --endpoint.url is the only group of settings here")
    resources = Resources(workers=workers or len(os.sched_getaffinity(0)), endpoint=endpoint)
    with _progress() as on_progress:
        manifest = annotate_corpus(corpus, atlas, out, resources, chosen, on_progress)
    emit({"id": manifest.id, "counts": manifest.counts}, json, described(out, manifest.counts))


def _engine(name: str, given: dict[str, Any]) -> Engine:
    known = {"local": ("workers",), "ray": _OF_RAY, "slurm": _OF_SLURM}[name]
    for flag in given:
        if flag not in known:
            raise ConfigError(f"--{flag.replace('_', '-')} says nothing to the engine '{name}'; leave it out")
    if "workers" in given and "address" in given:
        raise ConfigError("--workers says nothing to a cluster that runs already; leave it or --address out")
    own = {flag: value for flag, value in given.items() if flag != "workers"}  # those stand in the resources
    if name == "ray":
        return RayEngine(**own)
    if name == "slurm":
        if "partition" not in given:
            raise ConfigError("the engine 'slurm' needs --partition; `sinfo` lists those of the cluster")
        return SlurmEngine(**own)
    return LocalEngine()


@contextmanager
def _progress() -> Iterator[Callable[[int, int], None] | None]:
    """A bar of finished shards on a terminal, one line elsewhere."""
    if not progress_console.is_terminal:
        with working("annotating chunks"):
            yield None
        return
    columns = (TextColumn("annotating chunks"), BarColumn(), MofNCompleteColumn(), TextColumn("shards"))
    with Progress(*columns, TimeRemainingColumn(), console=progress_console, transient=True) as bar:
        task = bar.add_task("", total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)
