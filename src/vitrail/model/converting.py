"""From one checkpoint directory to another: sharding, dtype, and what `transformers` needs to load it.

Tensors stream from the source's files to the new ones, so memory holds one shard, and of that only what changes its
dtype. Names of concepts, tokenizer and calibration go along.
"""

import shutil
from functools import partial
from pathlib import Path
from typing import Any, Literal, get_args

import torch

from vitrail.artifacts import new_folder, write_json
from vitrail.errors import ConfigError
from vitrail.model.checkpoint import load_config, matched, model_of, read_finite
from vitrail.model.config import ModelConfig
from vitrail.model.stored import EMBEDDING, StoredTensor, StoredTensors, read_object
from vitrail.model.writing import SHARD_BYTES, Part, save_config, save_weights
from vitrail.text import load_tokenizer

Layout = Literal["released", "huggingface"]

_COMPANIONS = (
    *("tokenizer", "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "chat_template.jinja"),
    *("cl100k_base.tiktoken", "concepts.parquet", "concept_labels.parquet", "calibration.json"),
)
_MODULES = {
    "configuration_vitrail.py": ("VitrailConfig", "AutoConfig"),
    "modeling_vitrail.py": ("VitrailForCausalLM", "AutoModelForCausalLM"),
}
_MODULE = '''"""{name}, from the installed vitrail (pip install 'vitrail[hub]')."""

from vitrail.hub import {name}

__all__ = ["{name}"]
'''


def convert_checkpoint(
    source: Path,
    out: Path,
    layout: Layout = "released",
    dtype: torch.dtype | None = None,
    max_shard_bytes: int = SHARD_BYTES,
) -> dict[str, int]:
    """Write a checkpoint anew.

    Args:
        source: a directory that `load_model` reads.
        out: the new directory; appears whole or not at all.
        layout: `released`, or `huggingface`: the same, and what `transformers` needs to load it by itself.
        dtype: of the new weights; None keeps each tensor's own, bit by bit.
        max_shard_bytes: a file's size, unless a single tensor is larger.

    Returns:
        counts: tensors, parameters, bytes and files of weights.

    Raises:
        ArtifactError: something is at `out` already.
        CheckpointError: the source cannot be loaded; the message names the file or tensor.
        ConfigError: an unknown layout, or shards of no size.
        RunFailed: the disk is full.

    Cost: reads and writes every byte once; memory: one shard, and only where the dtype changes is it the process's own.
    """
    if layout not in get_args(Layout):
        raise ConfigError(f"layout '{layout}' is not one of {', '.join(get_args(Layout))}")
    if max_shard_bytes < 1:
        raise ConfigError(f"shards of {max_shard_bytes} bytes hold nothing; give a size above 0")
    config, stored = load_config(source), StoredTensors(source)
    tensors = matched(stored, model_of(stored, config))
    parts = {name: _part(name, tensor, dtype) for name, tensor in tensors.items()}
    with new_folder(out) as folder:
        save_weights(parts, folder, max_shard_bytes)
        save_config(config, dtype or tensors[EMBEDDING].float_dtype, folder)
        _copy_companions(source, folder)
        if layout == "huggingface":
            _add_modules(folder)
            _add_tokenizer(source, config, folder)
    files = list(out.glob("*.safetensors"))
    return {
        "tensors": len(parts),
        "parameters": sum(tensor.num_elements for tensor in tensors.values()),
        "bytes": sum(part.num_bytes for part in parts.values()),
        "files": len(files),
    }


def _part(name: str, tensor: StoredTensor, dtype: torch.dtype | None) -> Part:
    itemsize = (dtype or tensor.float_dtype).itemsize
    return Part(tensor.num_elements * itemsize, partial(read_finite, name, tensor, dtype=dtype))


def _copy_companions(source: Path, folder: Path) -> None:
    for name in _COMPANIONS:
        if (source / name).is_dir():
            shutil.copytree(source / name, folder / name)
        elif (source / name).is_file():
            shutil.copyfile(source / name, folder / name)


def _add_modules(folder: Path) -> None:
    """What `trust_remote_code` runs: an import of the vitrail that is installed."""
    auto_map: dict[str, Any] = {}
    for file, (name, role) in _MODULES.items():
        (folder / file).write_text(_MODULE.format(name=name), encoding="utf-8")
        auto_map[role] = f"{file.removesuffix('.py')}.{name}"
    values = {"model_type": "vitrail", "architectures": ["VitrailForCausalLM"], "auto_map": auto_map}
    write_json(folder / "config.json", read_object(folder / "config.json") | values)


def _add_tokenizer(source: Path, config: ModelConfig, folder: Path) -> None:
    """`tokenizer.json` at the root, and the names of its control tokens, for `AutoTokenizer`."""
    tokenizer = load_tokenizer(source, config.controls, config.vocab_size)
    if tokenizer is None:
        return
    shutil.rmtree(folder / "tokenizer", ignore_errors=True)  # one copy is enough
    tokenizer.save(folder)
    settings = folder / "tokenizer_config.json"
    values = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "clean_up_tokenization_spaces": False,
        "model_max_length": config.max_length,
        "pad_token": tokenizer.token_text(config.pad_id),
        "bos_token": tokenizer.token_text(config.bos_id),
        "eos_token": tokenizer.token_text(config.eos_id),
        "mask_token": tokenizer.token_text(config.mask_id),
    }
    write_json(settings, (read_object(settings) if settings.is_file() else {}) | values)
