"""Low-rank adapters (LoRA) for fine-tuning, through `peft`; what is stored afterwards is the merged model.

The matrices of attention and MLP get adapters, W + B·A·alpha/rank; all other weights are frozen, the concept heads too
unless asked for. So embeddings, K and U keep their meaning, and an adapted model is explained and steered like the one
it came from. There is no dropout in adapters: its draws would depend on the number of processes.
"""

import logging
from collections.abc import Iterator
from importlib import import_module
from typing import Any

import torch
from pydantic import Field
from torch import nn

from vitrail.errors import ConfigError
from vitrail.model import ConceptLM
from vitrail.settings import Settings
from vitrail.train.objective import LossSettings
from vitrail.train.optim import OptimSettings

_TARGETS = ["c_attn", "c_proj", "c_fc"]


class LoraSettings(Settings):
    """Low-rank adapters in place of full updates (through `peft`): the stored model is the merged one.

    The matrices of attention and MLP get adapters of rank `rank`, scaled by `alpha / rank`; everything else stays as
    it is, the concept heads too unless `train_heads`. Adapters take `optim.matrix_rate`.
    """

    rank: int = Field(default=16, ge=1)
    alpha: float = Field(default=32.0, gt=0)
    train_heads: bool = False


def check_adapters(lora: LoraSettings, optim: OptimSettings, loss: LossSettings) -> None:
    """Refuse settings that cannot have an effect on adapters.

    Args:
        lora: the adapters.
        optim: rates of groups that are frozen must be left alone.
        loss: terms that train the discovered head alone must be off, or left alone, where it is frozen.

    Raises:
        ConfigError: one was set; the line names it.
    """
    frozen: dict[str, object] = {"optim.embedding_rate": optim.embedding_rate, "optim.norm_rate": optim.norm_rate}
    if not lora.train_heads:
        frozen |= {"optim.head_rate": optim.head_rate, "optim.heads": optim.heads}
        names = ("reconstruction", "reconstruction_target", "independence", "independence_form", "independence_of")
        frozen |= {f"loss.{name}": value for name in names if (value := getattr(loss, name)) != 0}
    usual = {"optim": OptimSettings(), "loss": LossSettings()}
    for name, value in frozen.items():
        group, _, field = name.partition(".")
        if value != getattr(usual[group], field):
            freed = "" if field in ("embedding_rate", "norm_rate") else ", or set lora.train_heads true"
            raise ConfigError(
                f"{name} {value} has no effect with lora, which freezes what it trains; leave it out{freed}"
            )


def add_adapters(model: ConceptLM, settings: LoraSettings, seed: int) -> None:
    """Freeze the model and put adapters into its layers, in place.

    Args:
        model: unsharded; computes the same until the adapters are trained.
        settings: rank, scale, whether the heads learn.
        seed: of the adapters' first factors; the second ones start at zero.

    Raises:
        ConfigError: the package `peft` is not installed, or the heads are to learn and the model has none.
    """
    peft = _peft()
    if settings.train_heads and not model.config.interpretable:
        raise ConfigError("lora.train_heads has no effect on a model without concept heads; leave it out")
    model.requires_grad_(False)
    config = peft.LoraConfig(r=settings.rank, lora_alpha=settings.alpha, target_modules=_TARGETS)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        peft.inject_adapter_in_model(config, model.transformer)
    if settings.train_heads:
        for head in (model.known_head, model.unknown_head):
            head.requires_grad_(True)


def merge_adapters(model: ConceptLM) -> None:
    """Add trained adapters into the weights they adapt, and take them out, in place; all weights are trainable again.

    Args:
        model: with or without adapters; in shards, every rank must call it.
    """
    for parent, name, adapted in list(_adapted(model)):
        base = adapted.base_layer
        with torch.no_grad():
            base.weight += adapted.get_delta_weight("default")
        setattr(parent, name, base)
    model.requires_grad_(True)


def _adapted(model: nn.Module) -> Iterator[tuple[nn.Module, str, Any]]:
    for parent in model.modules():
        for name, child in parent.named_children():
            if isinstance(getattr(child, "base_layer", None), nn.Module):
                yield parent, name, child


def _peft() -> Any:
    muted = logging.root.manager.disable
    logging.disable(logging.WARNING)  # on import it tries torchao, which lists the CUDA extensions it cannot load
    try:
        return import_module("peft")
    except ImportError as error:
        raise ConfigError("lora needs the package peft: pip install 'vitrail[lora]', or leave lora out") from error
    finally:
        logging.disable(muted)
