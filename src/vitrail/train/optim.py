"""Optimisers: Muon for the backbone's matrices, AdamW for everything else; clipping; named state.

Muon orthogonalises the momentum of a matrix; its update is scaled by 0.2·sqrt(max(rows, columns)) so that
rates and decay compare with AdamW's. Embedding (tied LM head), concept heads and norms take AdamW, each with
its own peak rate. Peak rates are multiplied by one factor a step (`schedules.rate_at`).

The concept heads may take Muon too. Final states share a large mean, and AdamW moves all rows of a predictor
along it at once; an orthogonal update gives that one direction no more than any other. Known concepts then
hold more of the logits, and the language loss falls more slowly (`docs/lab.md`).
"""

import math
from collections.abc import Iterable, Iterator
from typing import Annotated, Any, Literal

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.optim import AdamW, Muon, Optimizer

from vitrail.settings import Settings
from vitrail.train.distributed import whole
from vitrail.train.schedules import RateSettings

_Decay = Annotated[float, Field(ge=0, lt=1)]


class OptimSettings(Settings):
    """Peak rates by group; `matrices` and `heads` choose the optimiser of 2-D weights in backbone and concept heads."""

    matrices: Literal["muon", "adamw"] = "muon"
    heads: Literal["muon", "adamw"] = "adamw"
    matrix_rate: float = Field(default=0.03, ge=0)
    embedding_rate: float = Field(default=0.005, ge=0)
    head_rate: float = Field(default=0.003, ge=0)
    norm_rate: float = Field(default=0.003, ge=0)
    momentum: float = Field(default=0.95, ge=0, lt=1)
    betas: tuple[_Decay, _Decay] = (0.9, 0.95)
    weight_decay: float = Field(default=0.1, ge=0)
    clip_norm: float = Field(default=1.0, gt=0)
    rate: RateSettings = RateSettings()

    def scaled(self, factor: float) -> "OptimSettings":
        """The same with all peak rates multiplied.

        Args:
            factor: of every group's rate.

        Returns:
            new settings.
        """
        names = ("matrix_rate", "embedding_rate", "head_rate", "norm_rate")
        return self.model_copy(update={name: getattr(self, name) * factor for name in names})


class Optimisers:
    """The optimisers of one model, stepped together, with state by parameter name."""

    def __init__(self, model: nn.Module, settings: OptimSettings) -> None:
        """Sort the parameters into groups.

        Args:
            model: its parameters are updated in place.
            settings: rates, decay, clipping.
        """
        self._settings = settings
        self._names = {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}
        self._own_name: dict[Tensor, str] = {parameter: name for name, parameter in self._names.items()}
        self._parts: dict[str, list[nn.Parameter]] = {}
        groups: dict[str, list[nn.Parameter]] = {"matrix": [], "embedding": [], "head": [], "norm": []}
        for name, parameter in self._names.items():
            groups[_group_of(name, parameter)].append(parameter)
            self._parts.setdefault(_part_of(name), []).append(parameter)
        peak = {
            "matrix": settings.matrix_rate,
            "embedding": settings.embedding_rate,
            "head": settings.head_rate,
            "norm": settings.norm_rate,
        }
        chosen = {"matrix": settings.matrices, "head": settings.heads, "embedding": "adamw", "norm": "adamw"}
        by_optimiser: dict[str, list[dict[str, Any]]] = {"adamw": [], "muon": []}
        for name, parameters in groups.items():
            if parameters:
                decay = 0.0 if name == "norm" else settings.weight_decay
                group = {"params": parameters, "lr": peak[name], "weight_decay": decay}
                by_optimiser[chosen[name]].append(group)
        self._all: list[Optimizer] = []
        if by_optimiser["adamw"]:
            self._all.append(AdamW(by_optimiser["adamw"], betas=settings.betas))
        if by_optimiser["muon"]:
            muon = Muon(by_optimiser["muon"], momentum=settings.momentum, adjust_lr_fn="match_rms_adamw")
            self._all.append(muon)
        for optimiser in self._all:
            for group in optimiser.param_groups:
                group["peak_lr"] = group["lr"]

    def step(self, factor: float) -> dict[str, float]:
        """Clip, update with `factor` times the peak rates, and forget the gradients.

        Args:
            factor: of the schedule.

        Returns:
            norms of the gradient before clipping: of each part (`embedding`, `backbone`, `known`, `discovered`), and
            of `all`.
        """
        norms = {part: total_norm(parameters) for part, parameters in self._parts.items()}
        norms["all"] = math.hypot(*norms.values())
        scale = min(1.0, self._settings.clip_norm / (norms["all"] + 1e-6))
        for parameter in self._names.values():
            if parameter.grad is not None:
                parameter.grad.mul_(scale)
        for optimiser in self._all:
            for group in optimiser.param_groups:
                group["lr"] = group["peak_lr"] * factor
            optimiser.step()
            optimiser.zero_grad(set_to_none=True)
        return norms

    def state(self) -> dict[str, Tensor]:
        """Every state tensor, as `<parameter>/<key>`."""
        return {
            f"{self._own_name[parameter]}/{key}": value
            for optimiser in self._all
            for parameter, values in optimiser.state.items()
            for key, value in values.items()
        }

    def make_state(self, wanted: Iterable[str]) -> None:
        """Room for state that will be read.

        Args:
            wanted: its names, as of `state`; parameters without any, or with that of another optimiser, start afresh.
        """
        keys: dict[str, list[str]] = {}
        for name in wanted:
            owner, _, key = name.rpartition("/")
            keys.setdefault(owner, []).append(key)
        for optimiser in self._all:
            optimiser.state.clear()
            for parameter in _parameters(optimiser):
                own = keys.get(self._own_name[parameter], [])
                if ("momentum_buffer" in own) == isinstance(optimiser, Muon) and own:
                    # A count of steps is one number; all else is shaped, and in shards, like its parameter.
                    optimiser.state[parameter] = {
                        key: torch.zeros(()) if key == "step" else torch.zeros_like(parameter) for key in own
                    }


def total_norm(parameters: Iterable[nn.Parameter]) -> float:
    """The 2-norm of all gradients together, over all ranks.

    Args:
        parameters: those without a gradient count nothing.

    Returns:
        the norm.
    """
    norm = nn.utils.get_total_norm([p.grad for p in parameters if p.grad is not None])
    return float(whole(norm))


def _parameters(optimiser: Optimizer) -> Iterator[nn.Parameter]:
    for group in optimiser.param_groups:
        yield from group["params"]


def _group_of(name: str, parameter: Tensor) -> str:
    if parameter.ndim < 2:
        return "norm"
    if name.startswith("transformer.blocks."):
        return "matrix"
    return "embedding" if name.startswith("transformer.") else "head"


def _part_of(name: str) -> str:
    if name.startswith("known_head."):
        return "known"
    if name.startswith("unknown_head."):
        return "discovered"
    return "backbone" if name.startswith(("transformer.blocks.", "transformer.ln_f.")) else "embedding"
