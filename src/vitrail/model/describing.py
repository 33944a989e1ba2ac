"""What a checkpoint without a manifest is, from its configuration and the headers of its files."""

from pathlib import Path
from typing import Any

from vitrail.artifacts import MANIFEST_NAME
from vitrail.model.checkpoint import load_config, matched, model_of
from vitrail.model.stored import StoredTensors


def is_bare_checkpoint(directory: Path) -> bool:
    """Whether a directory holds a checkpoint, and is no artifact of ours.

    Args:
        directory: any path.

    Returns:
        true where there is a `config.json` and no manifest.
    """
    return (directory / "config.json").is_file() and not (directory / MANIFEST_NAME).exists()


def describe_checkpoint(directory: Path) -> dict[str, Any]:
    """Size and configuration of a checkpoint; numbers are not read.

    Args:
        directory: of the checkpoint.

    Returns:
        kind, counts (parameters, tensors, bytes, files), dtype, what is beside it, and every key of the configuration.

    Raises:
        CheckpointError: it cannot be loaded.
    """
    config, stored = load_config(directory), StoredTensors(directory)
    tensors = matched(stored, model_of(stored, config)).values()
    beside = sorted(path.name for path in directory.iterdir() if path.suffix in (".json", ".parquet") or path.is_dir())
    return {
        "kind": "checkpoint",
        "parameters": sum(tensor.num_elements for tensor in tensors),
        "tensors": len(tensors),
        "bytes": sum(tensor.num_elements * tensor.float_dtype.itemsize for tensor in tensors),
        "files": len({tensor.file for tensor in tensors}),
        "dtype": str(stored.dtype).removeprefix("torch."),
        "beside": ", ".join(name for name in beside if name != "config.json"),
        **config.to_released(),
    }
