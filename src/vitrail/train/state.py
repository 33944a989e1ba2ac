"""Training state on disk: safetensors and JSON, whole or absent, never pickle.

`state.safetensors` holds `model/<name>` and `optimiser/<name>/<key>`; `state.json` the step and what the
monitors remember. A checkpoint is written to a new folder and renamed over the pointer file, so a crash
while writing leaves the previous one.
"""

import shutil
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from vitrail.artifacts import read_json, sync_file, write_json
from vitrail.errors import ArtifactError, CheckpointError
from vitrail.train.optim import Optimisers

TENSORS, FACTS = "state.safetensors", "state.json"


@dataclass
class TrainState:
    """Everything needed to go on, beside the weights.

    Attributes:
        step: the next step.
        log_bytes: length of the log when the state was taken; what follows is forgotten on resume.
        monitors: what the monitors remember.
        extra: tensors that a phase keeps (calibrated scales).
    """

    step: int = 0
    log_bytes: int = 0
    monitors: dict[str, float] = field(default_factory=dict)
    extra: dict[str, Tensor] = field(default_factory=dict)


def save_state(folder: Path, model: nn.Module, optimisers: Optimisers, state: TrainState) -> None:
    """Write weights, optimiser state and facts into a folder.

    Args:
        folder: made if missing.
        model: its parameters are saved (shared ones once).
        optimisers: their state is saved.
        state: step, log length, monitors, extra tensors.
    """
    folder.mkdir(parents=True, exist_ok=True)
    tensors = {f"model/{name}": value.detach() for name, value in model.named_parameters()}
    tensors |= {f"optimiser/{name}": value for name, value in optimisers.state().items()}
    tensors |= {f"extra/{name}": value for name, value in state.extra.items()}
    save_file({name: value.contiguous() for name, value in tensors.items()}, folder / TENSORS)
    sync_file(folder / TENSORS)
    write_json(folder / FACTS, {"step": state.step, "log_bytes": state.log_bytes, "monitors": state.monitors})


def load_state(folder: Path, model: nn.Module, optimisers: Optimisers) -> TrainState:
    """Put weights and optimiser state back in place.

    Args:
        folder: of `save_state`.
        model: its parameters are overwritten.
        optimisers: their state is overwritten.

    Returns:
        step, log length, monitors, extra tensors.

    Raises:
        CheckpointError: a file is missing, damaged, or of another model.
    """
    try:
        facts, tensors = read_json(folder / FACTS), _read_tensors(folder / TENSORS)
    except ArtifactError as error:
        raise CheckpointError(f"{error}; remove {folder} to start afresh") from error
    parameters = dict(model.named_parameters())
    found = {name.removeprefix("model/"): value for name, value in tensors.items() if name.startswith("model/")}
    if {name: value.shape for name, value in found.items()} != {name: p.shape for name, p in parameters.items()}:
        raise CheckpointError(f"{folder}: training state of another model; remove it to start afresh")
    for name, parameter in parameters.items():
        parameter.data.copy_(found[name])
    optimisers.load(_under(tensors, "optimiser/"))
    return TrainState(facts["step"], facts["log_bytes"], facts["monitors"], _under(tensors, "extra/"))


def write_checkpoint(work: Path, model: nn.Module, optimisers: Optimisers, state: TrainState) -> None:
    """Save a checkpoint; the one before stays until the new one is whole.

    Nothing is written where this step's checkpoint is there already: a kill could leave it torn.

    Args:
        work: scratch of the run.
        model: weights.
        optimisers: optimiser state.
        state: the rest.
    """
    new, last = work / f"step-{state.step:08d}", latest_checkpoint(work)
    if new == last:
        return
    _remove_others(work, last)  # what a killed attempt or a full disk left half-written
    try:
        save_state(new, model, optimisers, state)
        write_json(work / "latest.json", {"checkpoint": new.name})
    except BaseException:
        _remove_others(work, last)
        raise
    _remove_others(work, new)


def latest_checkpoint(work: Path) -> Path | None:
    """Folder of the last whole checkpoint, or None."""
    pointer = work / "latest.json"
    folder = work / str(read_json(pointer)["checkpoint"]) if pointer.exists() else None
    return folder if folder and folder.is_dir() else None


def load_optimisers(folder: Path, optimisers: Optimisers) -> None:
    """Continue with the momentum of a finished run.

    Args:
        folder: training state of the model that is continued.
        optimisers: their state is overwritten.
    """
    try:
        tensors = _read_tensors(folder / TENSORS)
    except CheckpointError as error:
        raise CheckpointError(f"{error}; train that model again") from error
    optimisers.load(_under(tensors, "optimiser/"))


def _read_tensors(path: Path) -> dict[str, Tensor]:
    try:
        return load_file(path)
    except (OSError, SafetensorError) as error:
        raise CheckpointError(f"{path}: missing or damaged training state ({error})") from error


def _remove_others(work: Path, kept: Path | None) -> None:
    for folder in work.glob("step-*"):
        if folder != kept:
            shutil.rmtree(folder, ignore_errors=True)


def _under(tensors: dict[str, Any], prefix: str) -> dict[str, Any]:
    return {name.removeprefix(prefix): value for name, value in tensors.items() if name.startswith(prefix)}
