"""Tiny checkpoints in the released layout and nothing more: `config.json` and safetensors that fit a packed corpus."""

from pathlib import Path

import torch

from vitrail.model import ModelConfig, init_model, save_model
from vitrail.packed import PackedCorpus
from vitrail.train import ModelSettings, TrainSettings, model_config

SHAPE = {"width": 16, "num_layers": 2, "num_heads": 2, "block": 8, "discovered_rank": 4, "intermediate_size": 32}
RATES = ("matrix_rate", "embedding_rate", "head_rate", "norm_rate")


def config_for(packed: PackedCorpus, **changes: object) -> ModelConfig:
    """The configuration of a tiny model for a corpus."""
    tokenizer = packed.tokenizer()
    config = model_config(
        ModelSettings.parse(SHAPE),
        vocab_size=tokenizer.vocab_size,
        num_concepts=packed.num_concepts,
        max_length=packed.length,
        controls=tokenizer.controls,
    )
    return ModelConfig.parse(config.model_dump() | changes)


def write_bare(folder: Path, packed: PackedCorpus, *, dtype: object = torch.bfloat16, **changes: object) -> Path:
    """A checkpoint with random weights; it has neither tokenizer nor names."""
    assert isinstance(dtype, torch.dtype)
    config = config_for(packed, **changes)
    save_model(init_model(config, 3).to(dtype), folder)
    return folder


def short_run(steps: int = 2, **changes: object) -> TrainSettings:
    """A run of a few steps on the themes' corpus."""
    values: dict[str, object] = {
        "total_tokens": steps * 4 * 64,
        "batch_size": 4,
        "precision": "fp32",
        "heldout": {"every_steps": 100, "sequences": 2, "probe_items": 2},
        "optim": {"matrices": "adamw", "matrix_rate": 0.003},
    }
    return TrainSettings.parse(values | changes)


def still_run() -> TrainSettings:
    """A run whose rates are zero: it stores what it read."""
    return short_run(optim={"matrices": "adamw"} | dict.fromkeys(RATES, 0.0))
