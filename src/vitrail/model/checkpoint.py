"""Reading and writing checkpoints in the released layout: `config.json` and safetensors.

Nothing in a checkpoint is executed. Loading checks every tensor at the door: present, expected, of the right
shape, finite.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from vitrail.errors import CheckpointError, RunFailed
from vitrail.model.attention import attention_kernel
from vitrail.model.config import ModelConfig
from vitrail.model.lm import ConceptLM

_EMBEDDING, _LM_HEAD = "transformer.tok_emb.weight", "transformer.lm_head.weight"
_INDEX = "model.safetensors.index.json"


def load_config(directory: Path) -> ModelConfig:
    """The configuration of a checkpoint directory.

    Args:
        directory: holds `config.json`, flat or nested.

    Returns:
        the configuration.

    Raises:
        CheckpointError: missing, not JSON, or wrong values.
    """
    path = directory / "config.json"
    return ModelConfig.from_released(_read_json(path), where=str(path))


def load_model(
    directory: Path,
    device: torch.device | str = "cpu",
    dtype: torch.dtype | None = None,
    attention: Literal["sdpa", "flex"] = "sdpa",
) -> ConceptLM:
    """A model from a checkpoint directory, in evaluation mode.

    Args:
        directory: holds `config.json` and one `model.safetensors`, indexed shards, or any `*.safetensors`.
        device: where the weights go.
        dtype: what to convert them to; None keeps what is stored.
        attention: kernel of the attention.

    Returns:
        the model.

    Raises:
        CheckpointError: a file is missing or damaged, or a tensor is missing, unexpected, of the wrong
            shape or not finite; the message names it.
    """
    config = load_config(directory)
    with torch.device("meta"):
        model = ConceptLM(config, attention_kernel(attention))
    tensors = _read_tensors(directory)
    if not any(name.startswith("transformer.") for name in tensors):
        tensors = {f"transformer.{name}": tensor for name, tensor in tensors.items()}
    if config.tie_embeddings:
        _merge_tied(tensors, directory)
    _check(tensors, model, directory)
    placed = {name: tensor.to(device=device, dtype=dtype) for name, tensor in tensors.items()}
    model.load_state_dict(placed, strict=False, assign=True)
    model.transformer.tie()
    return model.eval()


def save_model(model: ConceptLM, directory: Path, max_shard_bytes: int = 5 * 2**30) -> None:
    """Write `config.json` and the weights, in their dtype, under their released names.

    Args:
        model: what to write.
        directory: created where it does not exist; each file appears whole or not at all.
        max_shard_bytes: above this the weights are split into indexed shards.

    Raises:
        RunFailed: a file cannot be written (a full disk).
    """
    directory.mkdir(parents=True, exist_ok=True)
    tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in model.state_dict().items()}
    if model.config.tie_embeddings:
        del tensors[_LM_HEAD]
    shards = list(_shards(tensors, max_shard_bytes))
    names = ["model.safetensors"]
    (directory / _INDEX).unlink(missing_ok=True)
    if len(shards) > 1:
        names = [f"model-{n:05}-of-{len(shards):05}.safetensors" for n in range(1, len(shards) + 1)]
        weight_map = {key: name for name, shard in zip(names, shards, strict=True) for key in shard}
        total = sum(tensor.nbytes for tensor in tensors.values())
        _write_json(directory / _INDEX, {"metadata": {"total_size": total}, "weight_map": weight_map})
    for name, shard in zip(names, shards, strict=True):
        _write_tensors(directory / name, shard)
    dtype = str(tensors[_EMBEDDING].dtype).removeprefix("torch.")
    _write_json(directory / "config.json", {**model.config.to_released(), "torch_dtype": dtype})


def _read_json(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise CheckpointError(f"{path}: {error.strerror}; is this a model directory?") from error
    except ValueError as error:
        raise CheckpointError(f"{path}: not valid JSON ({error})") from error
    if not isinstance(value, dict):
        raise CheckpointError(f"{path}: expected a JSON object, got {type(value).__name__}")
    return value


def _read_tensors(directory: Path) -> dict[str, Tensor]:
    tensors: dict[str, Tensor] = {}
    for path in _weight_files(directory):
        try:
            with safe_open(path, framework="pt") as file:
                for name in file.keys():  # noqa: SIM118 (not a mapping)
                    if name in tensors:
                        raise CheckpointError(f"{path}: tensor '{name}' is stored twice")
                    tensors[name] = file.get_tensor(name)
        except (SafetensorError, OSError) as error:
            raise CheckpointError(f"{path}: damaged or truncated ({error}); copy it again") from error
    return tensors


def _weight_files(directory: Path) -> list[Path]:
    if (directory / _INDEX).exists():
        weight_map = _read_json(directory / _INDEX).get("weight_map")
        if not isinstance(weight_map, dict) or not weight_map:
            raise CheckpointError(f"{directory / _INDEX}: no 'weight_map'")
        names = sorted({str(name) for name in weight_map.values()})
        for name in names:
            if Path(name).name != name or not (directory / name).is_file():
                raise CheckpointError(f"{directory}: shard '{name}' of the index is missing")
        return [directory / name for name in names]
    single = directory / "model.safetensors"
    files = [single] if single.exists() else sorted(directory.glob("*.safetensors"))
    if not files:
        raise CheckpointError(f"{directory}: no *.safetensors file; is this a model directory?")
    return files


def _merge_tied(tensors: dict[str, Tensor], directory: Path) -> None:
    lm_head = tensors.pop(_LM_HEAD, None)
    if lm_head is None:
        return
    if not torch.equal(tensors.setdefault(_EMBEDDING, lm_head), lm_head):
        raise CheckpointError(f"{directory}: '{_LM_HEAD}' and '{_EMBEDDING}' differ, but weight_sharing makes them one")


def _check(tensors: dict[str, Tensor], model: ConceptLM, directory: Path) -> None:
    expected = dict(model.state_dict())
    if model.config.tie_embeddings:
        del expected[_LM_HEAD]
    for name in sorted(expected.keys() - tensors.keys()):
        raise CheckpointError(f"{directory}: tensor '{name}' is missing")
    for name in sorted(tensors.keys() - expected.keys()):
        raise CheckpointError(f"{directory}: unexpected tensor '{name}'; does config.json fit these weights?")
    for name, tensor in tensors.items():
        wanted = tuple(expected[name].shape)
        if tuple(tensor.shape) != wanted:
            raise CheckpointError(
                f"{directory}: tensor '{name}' has shape {tuple(tensor.shape)}, config.json wants {wanted}"
            )
        if not tensor.is_floating_point() or not torch.isfinite(tensor).all():
            raise CheckpointError(f"{directory}: tensor '{name}' holds NaN, infinite or non-float values")


def _shards(tensors: dict[str, Tensor], max_bytes: int) -> Iterator[dict[str, Tensor]]:
    shard: dict[str, Tensor] = {}
    size = 0
    for name, tensor in tensors.items():
        if shard and size + tensor.nbytes > max_bytes:
            yield shard
            shard, size = {}, 0
        shard[name] = tensor
        size += tensor.nbytes
    yield shard


def _write_tensors(path: Path, tensors: dict[str, Tensor]) -> None:
    partial = path.with_name(path.name + ".partial")
    try:
        save_file(tensors, partial, metadata={"format": "pt"})
        partial.replace(path)
    except (SafetensorError, OSError) as error:
        partial.unlink(missing_ok=True)
        raise RunFailed(f"{path}: cannot write ({error}); is the disk full?") from error


def _write_json(path: Path, value: dict[str, Any]) -> None:
    partial = path.with_name(path.name + ".partial")
    try:
        partial.write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")
        partial.replace(path)
    except OSError as error:
        partial.unlink(missing_ok=True)
        raise RunFailed(f"{path}: cannot write ({error.strerror}); is the disk full?") from error
