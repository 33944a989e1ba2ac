"""Training state on disk: sharded safetensors and JSON, whole or absent, never pickle.

A checkpoint is a folder `step-N`: every rank's shards of `model/<name>` and `optimiser/<name>/<key>` in safetensors
(torch's distributed checkpoint in its Hugging Face storage), and `state.json` with the step and what the monitors
remember. It is copied to memory at once and written in the background while training goes on. The pointer
`latest.json` moves when all of it is on the disk, so that a crash leaves the checkpoint before it. Saved on any
number of ranks, it loads on any other.

Beside a finished model lies its optimiser state alone, in one file, for a continuation with its momentum.
"""

import shutil
import warnings
from collections.abc import Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageReader, HuggingFaceStorageWriter
from torch.distributed.checkpoint.metadata import TensorStorageMetadata
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import async_save
from torch.distributed.tensor import DTensor

from vitrail.artifacts import read_json, sync_dir, sync_file, write_faults_are_clear, write_json
from vitrail.errors import ArtifactError, CheckpointError
from vitrail.train.distributed import World, spread, whole
from vitrail.train.optim import Optimisers

TENSORS, FACTS, POINTER = "state.safetensors", "state.json", "latest.json"


@dataclass
class TrainState:
    """Everything needed to go on, beside the weights.

    Attributes:
        step: the next step.
        log_bytes: length of the log when the state was taken; what follows is forgotten on resume.
        monitors: what the monitors remember.
        extra: tensors that a phase keeps (calibrated scales), equal on all ranks.
    """

    step: int = 0
    log_bytes: int = 0
    monitors: dict[str, float] = field(default_factory=dict)
    extra: dict[str, Tensor] = field(default_factory=dict)

    @property
    def facts(self) -> dict[str, Any]:
        """What is no tensor, as plain values."""
        return {"step": self.step, "log_bytes": self.log_bytes, "monitors": dict(self.monitors)}


class Checkpoints:
    """The checkpoints of a run: written in the background, one at a time; read on resume."""

    def __init__(self, work: Path, world: World, run: str = "") -> None:
        """Look at the place; `latest` is the last whole checkpoint, or None.

        Args:
            work: scratch of the run, the same for all ranks.
            world: the ranks that write together.
            run: what identifies the run; a checkpoint of another one is refused.
        """
        self.run = run
        self._work, self._world = work, world
        # Saving runs beside training: its exchanges must not mix with those of the step.
        self._group = dist.new_group(backend="gloo") if world.size > 1 else None
        self._waiting: tuple[Path, Future[Any]] | None = None
        # Remembered, not looked up each time: rank 0 moves the pointer while others read.
        self.latest: Path | None = world.shared(latest_checkpoint(work))

    def write(self, model: nn.Module, optimisers: Optimisers, state: TrainState) -> None:
        """Begin to save; the copy in memory is taken before this returns.

        Nothing is written where this step's checkpoint is there already: a kill could leave it torn.

        Args:
            model: weights.
            optimisers: optimiser state.
            state: the rest.

        Raises:
            RunFailed: the disk was full while this or the checkpoint before it was written.
        """
        self.finish()
        new = self._work / f"step-{state.step:08d}"
        if new == self.latest:
            return
        if self._world.is_main:
            self._remove_others(self.latest)  # left half-written by a kill or a full disk
        with self._faults_are_clear(new):
            self._world.wait()
            if self._world.is_main:
                new.mkdir(exist_ok=True)
                write_json(new / FACTS, state.facts | {"run": self.run})
            self._world.wait()
            tensors = _tensors(model, optimisers, state.extra)
            writer = HuggingFaceStorageWriter(str(new), save_distributed=True)
            _alone_is_meant()
            future = async_save(tensors, storage_writer=writer, process_group=self._group, no_dist=self._group is None)
        assert isinstance(future, Future)
        self._waiting = (new, future)

    def poll(self) -> None:
        """Take note of a checkpoint that is whole by now."""
        if self._waiting is not None and self._waiting[1].done():
            self.finish()

    def finish(self) -> None:
        """Wait for the checkpoint that is being written, and make it the latest.

        Raises:
            RunFailed: the disk was full; the checkpoint before it is intact.
        """
        if self._waiting is None:
            return
        (new, future), self._waiting = self._waiting, None
        with self._faults_are_clear(new):
            future.result()  # on rank 0 the last to end, when every rank has written
            if self._world.is_main:
                for path in new.iterdir():
                    sync_file(path)
                sync_dir(new)
                write_json(self._work / POINTER, {"checkpoint": new.name})
                self._remove_others(new)
        self.latest = new

    @contextmanager
    def _faults_are_clear(self, new: Path) -> Iterator[None]:
        try:
            with write_faults_are_clear(new):
                try:
                    yield
                except CheckpointException as error:
                    raise next(iter(error.failures.values()))[0] from error
        except BaseException:
            if self._world.is_main:
                self._remove_others(self.latest)
            raise

    def _remove_others(self, kept: Path | None) -> None:
        for folder in self._work.glob("step-*"):
            if folder != kept:
                shutil.rmtree(folder, ignore_errors=True)


def load_checkpoint(folder: Path, model: nn.Module, optimisers: Optimisers, run: str = "") -> TrainState:
    """Put weights and optimiser state back in place, in the shards of this run.

    Args:
        folder: of `Checkpoints`.
        model: its parameters are overwritten.
        optimisers: their state is overwritten.
        run: of `Checkpoints`; empty takes a checkpoint of any.

    Returns:
        step, log length, monitors, extra tensors.

    Raises:
        CheckpointError: a file is missing, damaged, or of another model or run.
    """
    facts = _facts(folder)
    if run and facts.get("run", run) != run:  # those of earlier versions do not say
        raise CheckpointError(f"{folder}: training state of another run; remove it to start afresh")
    reader = HuggingFaceStorageReader(str(folder))
    try:
        stored = _stored_sizes(reader)
    except (OSError, SafetensorError, ValueError, KeyError) as error:
        raise CheckpointError(f"{folder}: damaged training state ({error}); remove it to start afresh") from error
    parameters = {f"model/{name}": parameter.shape for name, parameter in model.named_parameters()}
    if {name: size for name, size in stored.items() if name.startswith("model/")} != parameters:
        raise CheckpointError(f"{folder}: training state of another model; remove it to start afresh")
    optimisers.make_state(_under(stored, "optimiser/"))
    extra = {name: torch.empty(size) for name, size in _under(stored, "extra/").items()}
    tensors = _tensors(model, optimisers, extra)
    try:
        _alone_is_meant()
        load(tensors, storage_reader=reader, no_dist=not dist.is_initialized())
    except (OSError, SafetensorError, CheckpointException, ValueError) as error:
        raise CheckpointError(f"{folder}: damaged training state ({error}); remove it to start afresh") from error
    if bad := next((name for name, parameter in model.named_parameters() if not _is_finite(parameter)), None):
        raise CheckpointError(f"{folder}: damaged training state ('{bad}' is not finite); remove it to start afresh")
    return TrainState(facts["step"], facts["log_bytes"], facts["monitors"], extra)


def latest_checkpoint(work: Path) -> Path | None:
    """Folder of the last whole checkpoint, or None."""
    pointer = work / POINTER
    if not pointer.exists():
        return None
    try:
        folder = work / str(read_json(pointer)["checkpoint"])
    except (ArtifactError, KeyError, TypeError) as error:
        raise CheckpointError(f"{pointer}: damaged ({error}); remove {work} to start afresh") from error
    return folder if folder.is_dir() else None


def save_optimisers(folder: Path, optimisers: Optimisers, world: World) -> None:
    """Write the optimiser state of a finished run into one file; every rank must call it.

    Args:
        folder: made if missing.
        optimisers: their state is saved.
        world: rank 0 writes.
    """
    tensors = {name: whole(value).cpu().contiguous() for name, value in optimisers.state().items()}
    if world.is_main:
        folder.mkdir(parents=True, exist_ok=True)
        save_file(tensors, folder / TENSORS)
        sync_file(folder / TENSORS)


def load_optimisers(folder: Path, optimisers: Optimisers) -> None:
    """Continue with the momentum of a finished run.

    Args:
        folder: training state of the model that is continued.
        optimisers: their state is overwritten; parameters that it lacks start afresh.

    Raises:
        CheckpointError: the file is missing, damaged, or of another model.
    """
    path = folder / TENSORS
    try:
        found = load_file(path)
    except (OSError, SafetensorError) as error:
        raise CheckpointError(f"{path}: missing or damaged training state ({error}); train that model again") from error
    optimisers.make_state({name: value.shape for name, value in found.items()})
    for name, value in optimisers.state().items():
        if value.shape != found[name].shape:
            raise CheckpointError(f"{path}: '{name}' is of another model; train that model again")
        value.copy_(spread(found[name].to(value.dtype), value))


def _facts(folder: Path) -> dict[str, Any]:
    try:
        facts = dict(read_json(folder / FACTS))
    except ArtifactError as error:
        raise CheckpointError(f"{error}; remove {folder} to start afresh") from error
    if missing := TrainState().facts.keys() - facts.keys():
        raise CheckpointError(f"{folder / FACTS}: damaged ({min(missing)} is missing); remove {folder} to start afresh")
    return facts


def _is_finite(parameter: Tensor) -> bool:
    own = parameter.to_local() if isinstance(parameter, DTensor) else parameter
    return bool(own.detach().isfinite().all())


def _stored_sizes(reader: HuggingFaceStorageReader) -> dict[str, torch.Size]:
    """Shapes of all stored tensors, after a look whether every shard is there."""
    found = reader.read_metadata().state_dict_metadata
    entries = {name: entry for name, entry in found.items() if isinstance(entry, TensorStorageMetadata)}
    if not entries:
        raise ValueError("no shard is there")
    for name, entry in entries.items():
        if sum(chunk.sizes.numel() for chunk in entry.chunks) != entry.size.numel():
            raise ValueError(f"a shard with rows of '{name}' is missing")
    return {name: entry.size for name, entry in entries.items()}


def _tensors(model: nn.Module, optimisers: Optimisers, extra: Mapping[str, Tensor]) -> dict[str, Any]:
    tensors = {f"model/{name}": parameter.detach() for name, parameter in model.named_parameters()}
    tensors |= {f"optimiser/{name}": value for name, value in optimisers.state().items()}
    return tensors | {f"extra/{name}": value for name, value in extra.items()}


def _under(values: Mapping[str, Any], prefix: str) -> dict[str, Any]:
    return {name.removeprefix(prefix): value for name, value in values.items() if name.startswith(prefix)}


def _alone_is_meant() -> None:
    """One process without a group is meant, and needs no warning at each checkpoint (some come from a thread)."""
    warnings.filterwarnings("ignore", "torch.distributed is disabled")
