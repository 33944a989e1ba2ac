"""Writing checkpoints in the released layout, shard by shard: memory holds one shard of what is not already there."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor

from vitrail.artifacts import write_json
from vitrail.errors import ConfigError, RunFailed
from vitrail.model.config import ModelConfig
from vitrail.model.lm import ConceptLM
from vitrail.model.stored import EMBEDDING, INDEX_NAME, LM_HEAD, SINGLE_NAME

SHARD_BYTES = 5 * 2**30


@dataclass(frozen=True)
class Part:
    """A tensor to be written.

    Attributes:
        num_bytes: its size.
        get: gives it, contiguous and on the CPU; asked once, when its shard is written.
    """

    num_bytes: int
    get: Callable[[], Tensor]


def save_model(model: ConceptLM, directory: Path, max_shard_bytes: int = SHARD_BYTES) -> None:
    """Write `config.json` and the weights, in their dtype, under their released names.

    Args:
        model: what to write.
        directory: created where it does not exist; each file appears whole or not at all.
        max_shard_bytes: above this the weights are split into indexed shards.

    Raises:
        ConfigError: int8 weights, which the layout does not have.
        RunFailed: a file cannot be written (a full disk).
    """
    directory.mkdir(parents=True, exist_ok=True)
    tensors = {name: tensor.detach() for name, tensor in model.state_dict().items()}
    if model.config.tie_embeddings:
        del tensors[LM_HEAD]
    if odd := [name for name, tensor in tensors.items() if type(tensor) is not Tensor]:
        raise ConfigError(f"'{odd[0]}' is an int8 weight, which the released layout lacks; save the model it came from")
    parts = {name: Part(tensor.nbytes, partial(_on_cpu, tensor)) for name, tensor in tensors.items()}
    save_weights(parts, directory, max_shard_bytes)
    save_config(model.config, tensors[EMBEDDING].dtype, directory)


def save_config(config: ModelConfig, dtype: torch.dtype, directory: Path) -> None:
    """Write `config.json` in the flat layout.

    Args:
        config: what to write.
        dtype: of the weights beside it.
        directory: where.

    Raises:
        RunFailed: the disk is full.
    """
    write_json(directory / "config.json", {**config.to_released(), "torch_dtype": str(dtype).removeprefix("torch.")})


def save_weights(parts: Mapping[str, Part], directory: Path, max_shard_bytes: int) -> None:
    """Write tensors to one file, or to indexed shards where they are more than fits one.

    Args:
        parts: what to write, by released name, in this order.
        directory: where; files of the same names are replaced.
        max_shard_bytes: a shard's size, unless a single tensor is larger.

    Raises:
        RunFailed: a file cannot be written (a full disk).
    """
    shards = list(_shards(parts, max_shard_bytes))
    names = [SINGLE_NAME]
    (directory / INDEX_NAME).unlink(missing_ok=True)
    if len(shards) > 1:
        names = [f"model-{n:05}-of-{len(shards):05}.safetensors" for n in range(1, len(shards) + 1)]
        weight_map = {key: name for name, shard in zip(names, shards, strict=True) for key in shard}
        total = sum(part.num_bytes for part in parts.values())
        write_json(directory / INDEX_NAME, {"metadata": {"total_size": total}, "weight_map": weight_map})
    for name, shard in zip(names, shards, strict=True):
        _write(directory / name, {key: parts[key].get() for key in shard})


def _shards(parts: Mapping[str, Part], max_bytes: int) -> Iterator[Sequence[str]]:
    shard: list[str] = []
    size = 0
    for name, part in parts.items():
        if shard and size + part.num_bytes > max_bytes:
            yield shard
            shard, size = [], 0
        shard.append(name)
        size += part.num_bytes
    yield shard


def _write(path: Path, tensors: dict[str, Tensor]) -> None:
    unfinished = path.with_name(path.name + ".partial")
    try:
        save_file(tensors, unfinished, metadata={"format": "pt"})
        unfinished.replace(path)
    except (SafetensorError, OSError) as error:
        unfinished.unlink(missing_ok=True)
        raise RunFailed(f"{path}: cannot write ({error}); is the disk full?") from error


def _on_cpu(tensor: Tensor) -> Tensor:
    return tensor.cpu().contiguous()
