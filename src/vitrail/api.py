"""The verbs of the project as Python calls: load a model, generate, explain.

`load` reads a model directory made by `vitrail train` or `vitrail demo`, or a released checkpoint. What it returns
holds the network and, as far as they are there, what gives its numbers names: tokenizer, concept library,
calibration of strengths.
"""

from pathlib import Path

import torch

from vitrail.artifacts import MANIFEST_NAME, file_sha256, read_manifest
from vitrail.atlas import LABELS_NAME, LIBRARY_NAME, load_library
from vitrail.errors import CheckpointError, ConfigError
from vitrail.loaded import Generation, LoadedModel, Prompt, calibrate_on
from vitrail.model import (
    AttentionName,
    ModelConfig,
    StoredTensors,
    find_file,
    find_model,
    load_config,
    load_model,
)
from vitrail.text import Tokenizer, load_tokenizer, missing_tokenizer

__all__ = ["Generation", "LoadedModel", "Prompt", "calibrate_on", "choose_device", "choose_dtype", "load"]

_DTYPES = {
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
    "float64": torch.float64,
}


def choose_device(name: str) -> torch.device:
    """The device that a `--device` value names.

    Args:
        name: auto, cpu, cuda, mps, or any name PyTorch knows.

    Returns:
        the device; `auto` prefers cuda, then mps, then cpu.

    Raises:
        ConfigError: no such device on this machine.
    """
    if name == "auto":
        if torch.cuda.is_available():
            return torch.device("cuda")
        return torch.device("mps" if torch.backends.mps.is_available() else "cpu")
    try:
        device = torch.device(name)
        torch.zeros((), device=device).item()
    except (RuntimeError, AssertionError) as error:
        reason = str(error).splitlines()[0]
        raise ConfigError(f"device '{name}' cannot be used here ({reason}); try --device auto") from error
    return device


def choose_dtype(name: str, device: torch.device, stored: torch.dtype | None = None) -> torch.dtype:
    """The dtype that a `--dtype` value names, for the numbers that are not in int8.

    Args:
        name: auto, int8, float32, bfloat16, float16 or float64.
        device: where it must work.
        stored: of the checkpoint; `auto` and `int8` keep it where the device has it, and take float32 where not.

    Returns:
        the dtype.

    Raises:
        ConfigError: another name, or a dtype that the device cannot multiply.
    """
    if name in ("auto", "int8"):
        return stored if stored is not None and not _dtype_fault(stored, device) else torch.float32
    if name not in _DTYPES:
        raise ConfigError(f"dtype '{name}' is not one of auto, int8, {', '.join(_DTYPES)}")
    if fault := _dtype_fault(_DTYPES[name], device):
        raise ConfigError(f"dtype '{name}' cannot be used on {device.type} ({fault}); try float32 or bfloat16")
    return _DTYPES[name]


def _dtype_fault(dtype: torch.dtype, device: torch.device) -> str:
    """Why a device cannot compute in a dtype; empty where it can."""
    if dtype == torch.float16 and device.type == "cpu":
        return "half precision is for GPUs"
    try:
        square = torch.ones(8, 8, dtype=dtype, device=device)
        (square @ square).sum().item()
    except (RuntimeError, TypeError) as error:
        return str(error).splitlines()[0]
    return ""


def load(
    path: str | Path,
    *,
    device: str = "auto",
    dtype: str = "auto",
    attention: AttentionName = "sdpa",
    labels: str | Path | None = None,
    revision: str | None = None,
    needs_text: bool = False,
) -> "LoadedModel":
    """Load a model: a directory made by vitrail, a released checkpoint, or one of the Hugging Face Hub.

    Args:
        path: a directory with `config.json` and `*.safetensors`, and as far as they are there a tokenizer, names of
            concepts and a calibration; or a repository of the Hub, such as `guidelabs/steerling-8b`.
        device: auto, cpu, cuda or mps.
        dtype: auto (as stored, where the device has it), float32, bfloat16, float16, float64, or int8: the layers'
            matrices in int8 (needs the extra `int8`), the rest as by auto.
        attention: kernel of the attention; flex needs CUDA.
        labels: names of the concepts, if not in the directory: a Parquet file of ours or of the release
            (`concept_labels.parquet`), or a repository that holds one.
        revision: branch, tag or commit of the repository.
        needs_text: refuse a model without a tokenizer, before its weights are read.

    Returns:
        the model, ready to generate and explain.

    Raises:
        ArtifactError: a file is missing or damaged, or tokenizer or names are another model's.
        ConfigError: no such device, dtype or kernel here.

    Cost: reads the weights once; memory is that of the weights.
    """
    directory, place = find_model(path, revision), choose_device(device)
    if dtype == "int8" and place.type not in ("cpu", "cuda"):
        raise ConfigError(f"dtype 'int8' cannot be used on {place.type}; try bfloat16, or --device cpu")
    config = load_config(directory)
    chosen = choose_dtype(dtype, place, StoredTensors(directory).dtype)
    tokenizer = load_tokenizer(directory, config.controls, config.vocab_size)
    if needs_text and tokenizer is None:
        raise missing_tokenizer(directory, config.controls)
    _require_own(directory, config, tokenizer, needs_names=labels is None)
    library = load_library(
        directory if labels is None else find_file(labels, LABELS_NAME), config.known_count, config.discovered_count
    )
    network = load_model(
        directory, device=place, dtype=chosen, attention=attention, int8=dtype == "int8", config=config
    )
    return LoadedModel(directory=directory, network=network, library=library, found_tokenizer=tokenizer)


def _require_own(directory: Path, config: ModelConfig, tokenizer: Tokenizer | None, *, needs_names: bool) -> None:
    """Our own models have names for their concepts, and the tokenizer that they were stored with."""
    if not (directory / MANIFEST_NAME).is_file():
        return
    names = directory / LIBRARY_NAME
    if needs_names and config.interpretable and not names.is_file():
        raise CheckpointError(f"{names}: missing; copy the model again")
    num_tokens = config.vocab_size - (len(tokenizer.unused_ids) if tokenizer is not None else 0)
    # A model that was continued from another's checkpoint may have rows without a token, and then always had.
    if num_tokens != config.vocab_size and not _is_stored_with(directory, "tokenizer/tokenizer.json"):
        raise CheckpointError(
            f"{directory}/tokenizer: {num_tokens} tokens, config.json has {config.vocab_size}; "
            "copy the tokenizer that the model was trained with"
        )


def _is_stored_with(directory: Path, name: str) -> bool:
    """Whether a file is the one that the manifest lists."""
    file, listed = directory / name, read_manifest(directory, "model").files.get(name)
    return listed is not None and file.is_file() and file_sha256(file) == listed
