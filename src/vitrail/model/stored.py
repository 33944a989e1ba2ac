"""Tensors as they lie in a checkpoint directory: what there is comes first, bytes when they are asked for.

Files are mapped, not read: a tensor is a view of its file's pages, and takes memory only where it is touched.
The system takes such pages back when it needs them. Nothing in a file is executed.
"""

import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from vitrail.errors import CheckpointError

EMBEDDING, LM_HEAD = "transformer.tok_emb.weight", "transformer.lm_head.weight"
INDEX_NAME = "model.safetensors.index.json"
SINGLE_NAME = "model.safetensors"

_FLOATS = {"F16": torch.float16, "BF16": torch.bfloat16, "F32": torch.float32, "F64": torch.float64}
_BACKBONE = "transformer."
_STRETCH_BYTES = 4096


@dataclass(frozen=True)
class StoredTensor:
    """One tensor of a file, known by its header.

    Attributes:
        file: where it lies.
        key: its name in the file; a checkpoint of the bare backbone leaves out `transformer.`.
        shape: its shape.
        kind: its type, as safetensors names it, such as `BF16`.
    """

    file: Path
    key: str
    shape: tuple[int, ...]
    kind: str

    @property
    def dtype(self) -> torch.dtype | None:
        """Its dtype; None where it holds no floating-point numbers that weights are made of."""
        return _FLOATS.get(self.kind)

    @property
    def float_dtype(self) -> torch.dtype:
        """Its dtype, of a tensor that was matched with a model's, and so has one."""
        assert self.dtype is not None, self.key
        return self.dtype

    @property
    def num_elements(self) -> int:
        """How many numbers it holds."""
        return torch.Size(self.shape).numel()

    def read(self) -> Tensor:
        """A view of the file, in a mapping of its own that goes with it.

        Returns:
            the tensor; writing into it leaves the file alone.

        Raises:
            CheckpointError: the file is damaged or gone.
        """
        with _opened(self.file) as file:
            tensor: Tensor = file.get_tensor(self.key)
        return tensor


class StoredTensors:
    """All tensors of a checkpoint directory under their released names."""

    def __init__(self, directory: Path) -> None:
        """Read the headers.

        Args:
            directory: holds one `model.safetensors`, indexed shards, or any `*.safetensors`.

        Raises:
            CheckpointError: no such file, a damaged one, an index that names what is not there, or a tensor that
                is stored twice.
        """
        self.directory = directory
        self._mapped: dict[Path, Any] = {}
        found: dict[str, StoredTensor] = {}
        for path in weight_files(directory):
            for tensor in _header(path):
                if tensor.key in found:
                    raise CheckpointError(f"{path}: tensor '{tensor.key}' is stored twice; remove one of its files")
                found[tensor.key] = tensor
        prefix = "" if any(name.startswith(_BACKBONE) for name in found) else _BACKBONE
        self.by_name = {prefix + name: tensor for name, tensor in found.items()}

    @cached_property
    def dtype(self) -> torch.dtype | None:
        """Dtype of the embedding (or of the LM head in its place); None where there is neither."""
        stored = self.by_name.get(EMBEDDING) or self.by_name.get(LM_HEAD)
        return None if stored is None else stored.dtype

    @cached_property
    def fingerprint(self) -> str:
        """Hash of names, types, shapes and up to 12 KiB of every tensor: its beginning, middle and end.

        Other weights have another one, however they are sharded; to read all of 16 GB would take minutes. It names
        weights, it does not prove them: bytes outside these stretches can be changed without it.
        """
        digest = hashlib.sha256()
        for name, stored in sorted(self.by_name.items()):
            digest.update(json.dumps([name, stored.kind, stored.shape]).encode())
            data = stored.read().reshape(-1).view(torch.uint8)
            for start in sorted({0, max(0, len(data) // 2), max(0, len(data) - _STRETCH_BYTES)}):
                digest.update(data[start : start + _STRETCH_BYTES].numpy().tobytes())
        return digest.hexdigest()

    def view(self, stored: StoredTensor) -> Tensor:
        """A tensor that stays a view of its file, whose mapping it shares with the others.

        Args:
            stored: one of `by_name`.

        Returns:
            the tensor; writing into it leaves the file alone.

        Raises:
            CheckpointError: the file is damaged or gone.
        """
        if stored.file not in self._mapped:
            self._mapped[stored.file] = _opened(stored.file).__enter__()
        tensor: Tensor = self._mapped[stored.file].get_tensor(stored.key)
        return tensor


def read_object(path: Path) -> dict[str, Any]:
    """The object in a JSON file of a checkpoint.

    Args:
        path: the file.

    Returns:
        its keys and values.

    Raises:
        CheckpointError: missing, unreadable, or no JSON object.
    """
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise CheckpointError(f"{path}: {error.strerror}; is this a model directory?") from error
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{path}: not valid JSON ({error})") from error
    if not isinstance(value, dict):
        raise CheckpointError(f"{path}: expected a JSON object, got {type(value).__name__}")
    return value


def weight_files(directory: Path) -> list[Path]:
    """The files that hold a checkpoint's weights.

    Args:
        directory: holds one `model.safetensors`, indexed shards, or any `*.safetensors`.

    Returns:
        their paths, each there.

    Raises:
        CheckpointError: there is none, or the index names one that is not there or outside the directory.
    """
    if not directory.is_dir():
        raise CheckpointError(f"{directory}: no such directory; name a model directory")
    if (directory / INDEX_NAME).exists():
        weight_map = read_object(directory / INDEX_NAME).get("weight_map")
        if not isinstance(weight_map, dict) or not weight_map:
            raise CheckpointError(f"{directory / INDEX_NAME}: no 'weight_map'; copy it again")
        names = sorted({str(name) for name in weight_map.values()})
        for name in names:
            if Path(name).name != name:
                raise CheckpointError(f"{directory / INDEX_NAME}: shard '{name}' is outside the directory")
            if not (directory / name).is_file():
                raise CheckpointError(f"{directory}: shard '{name}' of the index is missing; copy it again")
        return [directory / name for name in names]
    single = directory / SINGLE_NAME
    files = [single] if single.exists() else sorted(directory.glob("*.safetensors"))
    if not files:
        raise CheckpointError(f"{directory}: no *.safetensors file; is this a model directory?")
    return files


def _opened(path: Path) -> Any:
    try:
        return safe_open(path, framework="pt")
    except (SafetensorError, OSError) as error:
        raise CheckpointError(f"{path}: damaged or truncated ({error}); copy it again") from error


def _header(path: Path) -> Iterator[StoredTensor]:
    with _opened(path) as file:
        for key in file.keys():  # noqa: SIM118 (not a mapping)
            part = file.get_slice(key)
            yield StoredTensor(path, key, tuple(part.get_shape()), str(part.get_dtype()))
