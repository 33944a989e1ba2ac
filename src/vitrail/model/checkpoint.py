"""Loading a checkpoint in the released layout: `config.json` and safetensors in, a model out.

What can be told from names and shapes is told before a number is read. Then tensors go one by one from their file
to their place, in their final dtype: memory holds the model and, where a dtype is changed, one tensor more. Every
number is checked to be finite on the way.
"""

from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor, nn

from vitrail.errors import CheckpointError
from vitrail.model.attention import AttentionKernel, AttentionName, attention_kernel
from vitrail.model.config import ModelConfig
from vitrail.model.lm import ConceptLM
from vitrail.model.meta import empty_model
from vitrail.model.quantized import is_quantized, to_int8
from vitrail.model.stored import EMBEDDING, LM_HEAD, StoredTensor, StoredTensors, read_object


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
    return ModelConfig.from_released(read_object(path), where=str(path))


def load_model(
    directory: Path,
    device: torch.device | str = "cpu",
    dtype: torch.dtype | None = None,
    attention: AttentionName = "sdpa",
    *,
    int8: bool = False,
    config: ModelConfig | None = None,
) -> ConceptLM:
    """A model from a checkpoint directory, in evaluation mode.

    Args:
        directory: holds `config.json` and one `model.safetensors`, indexed shards, or any `*.safetensors`.
        device: where the weights go.
        dtype: what to convert them to; None keeps what is stored. On the CPU a tensor whose dtype stays is a view
            of its file: the file must not be changed in place while the model is in use.
        attention: kernel of the attention.
        int8: keep the layers' matrices in int8 (see `vitrail.model.quantized`); everything else is in `dtype`.
        config: what `load_config` read there; None reads it.

    Returns:
        the model.

    Raises:
        CheckpointError: a file is missing or damaged, or a tensor is missing, unexpected, stored twice, of the
            wrong shape or type, or not finite; the message names it.
        ConfigError: `int8` without the package it needs, or no such attention on this machine.

    Cost: reads every byte once. Memory: the model's, and one tensor more where a dtype changes.
    """
    config, device, kernel = config or load_config(directory), torch.device(device), attention_kernel(attention)
    stored = StoredTensors(directory)
    model = model_of(stored, config, kernel)
    for name, tensor in matched(stored, model).items():
        module_name, _, leaf = name.rpartition(".")
        if int8 and is_quantized(name):
            parameter = to_int8(read_finite(name, tensor, device, dtype))
        else:
            parameter = nn.Parameter(_placed(stored, name, tensor, device, dtype))
        setattr(model.get_submodule(module_name), leaf, parameter)
    model.transformer.tie()
    return model.eval()


def model_of(stored: StoredTensors, config: ModelConfig, kernel: AttentionKernel | None = None) -> ConceptLM:
    """A model without numbers for stored tensors, of a configuration that may not be theirs.

    Args:
        stored: what there is.
        config: shape and flags.
        kernel: how attention is computed; scaled dot product by default.

    Returns:
        the model, on the `meta` device.

    Raises:
        CheckpointError: a configuration with more layers than are stored, or with sizes that no tensor has.
    """
    last = f"transformer.blocks.{config.num_layers - 1}.ln_1.weight"
    if last not in stored.by_name:  # told before a layer is made: a wrong number may be any number
        raise _missing(stored, last)
    try:
        return empty_model(config, kernel)
    except (RuntimeError, TypeError) as error:  # torch's words for sizes that overflow
        raise CheckpointError(
            f"{stored.directory}/config.json: no tensor is as large as it says ({str(error).splitlines()[0][:80]}); "
            "copy it again"
        ) from error


def _missing(stored: StoredTensors, name: str) -> CheckpointError:
    return CheckpointError(
        f"{stored.directory}: tensor '{name}' is missing; is every shard there, does config.json fit?"
    )


def matched(stored: StoredTensors, model: ConceptLM) -> dict[str, StoredTensor]:
    """The stored tensors that a model takes, after a look at their headers.

    Args:
        stored: what there is.
        model: what is wanted; only shapes are looked at.

    Returns:
        tensors by released name, in the model's order; of a tied pair the embedding alone.

    Raises:
        CheckpointError: one is missing, unexpected, of the wrong shape or type; the message names it.
    """
    where, config = stored.directory, model.config
    tensors = dict(stored.by_name)
    expected: Mapping[str, Tensor] = model.state_dict()
    if config.tie_embeddings:
        expected = {name: tensor for name, tensor in expected.items() if name != LM_HEAD}
        if lm_head := tensors.pop(LM_HEAD, None):
            _require_tied(stored, tensors.setdefault(EMBEDDING, lm_head), lm_head)
    for name in sorted(expected.keys() - tensors.keys()):
        raise _missing(stored, name)
    for name in sorted(tensors.keys() - expected.keys()):
        raise CheckpointError(f"{where}: unexpected tensor '{name}'; {_advice(name, config)}")
    for name, tensor in tensors.items():
        wanted = tuple(expected[name].shape)
        if tensor.shape != wanted:
            raise CheckpointError(f"{where}: tensor '{name}' has shape {tensor.shape}, config.json wants {wanted}")
        if tensor.dtype is None:
            raise CheckpointError(
                f"{where}: tensor '{name}' holds {tensor.kind}; convert it to BF16, F16, F32 or F64 first"
            )
    return {name: tensors[name] for name in expected}


def read_finite(
    name: str, tensor: StoredTensor, device: torch.device | str = "cpu", dtype: torch.dtype | None = None
) -> Tensor:
    """A tensor read from its file, put in place and checked.

    Args:
        name: its released name, for messages.
        tensor: where it lies.
        device: where it goes.
        dtype: what to convert it to; None keeps what is stored.

    Returns:
        the tensor.

    Raises:
        CheckpointError: it holds NaN or infinite values, or does not fit the dtype.
    """
    found = tensor.read()
    placed = found.to(device=device, dtype=dtype)
    _require_finite(placed, name, tensor, found)
    return placed


def _advice(name: str, config: ModelConfig) -> str:
    if name.startswith(("known_head.", "unknown_head.")) and not config.interpretable:
        return 'for a model with concepts write "interpretable": true into config.json'
    return "does config.json fit these weights?"


def _require_tied(stored: StoredTensors, embedding: StoredTensor, lm_head: StoredTensor) -> None:
    if embedding is lm_head:
        return
    is_same = (embedding.shape, embedding.kind) == (lm_head.shape, lm_head.kind)
    if is_same and lm_head.dtype is not None:
        first, second = embedding.read(), lm_head.read()
        _require_finite(second, LM_HEAD, lm_head, second)
        is_same = torch.equal(first, second) or not _is_finite(first)  # the latter is told when its turn comes
    if not is_same:
        raise CheckpointError(
            f"{stored.directory}: '{LM_HEAD}' and '{EMBEDDING}' differ, but weight_sharing makes them one; "
            'write "weight_sharing": false into config.json to keep both'
        )


def _placed(
    stored: StoredTensors, name: str, tensor: StoredTensor, device: torch.device, dtype: torch.dtype | None
) -> Tensor:
    if device.type != "cpu" or dtype not in (None, tensor.dtype):
        return read_finite(name, tensor, device, dtype)
    view = stored.view(tensor)
    _require_finite(view, name, tensor, view)
    return view


def _require_finite(placed: Tensor, name: str, tensor: StoredTensor, found: Tensor) -> None:
    if _is_finite(placed):
        return
    fault = f"does not fit {placed.dtype}" if _is_finite(found) else "holds NaN or infinite values"
    raise CheckpointError(f"{tensor.file}: tensor '{name}' {fault}, first at {_first_fault(placed)}")


def _is_finite(tensor: Tensor) -> bool:
    """Whether all numbers are finite; the extremes tell it without a mask of the tensor's size."""
    low, high = torch.aminmax(tensor)
    return bool(low.isfinite() and high.isfinite())


def _first_fault(tensor: Tensor) -> list[int]:
    at = tensor.isfinite().logical_not().flatten().to(torch.uint8).argmax()
    return [int(index) for index in torch.unravel_index(at, tensor.shape)]
