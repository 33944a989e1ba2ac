"""Optimisers: Muon for the backbone's matrices, AdamW for everything else; clipping; named state.

Muon orthogonalises the momentum of a matrix; its update is scaled by 0.2·sqrt(max(rows, columns)) so that
rates and decay compare with AdamW's. Embedding (tied LM head), concept heads and norms take AdamW, each with
its own peak rate. Peak rates are multiplied by one factor a step (`schedules.rate_at`).

The concept heads may take Muon too. Final states share a large mean, and AdamW moves all rows of a predictor
along it at once; an orthogonal update gives that one direction no more than any other. Known concepts then
hold more of the logits, and the language loss falls more slowly (`docs/lab.md`).
"""

from collections.abc import Iterator
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.optim import AdamW, Muon, Optimizer

from vitrail.settings import Settings
from vitrail.train.schedules import RateSettings


class OptimSettings(Settings):
    """Peak rates by group; `matrices` and `heads` choose the optimiser of 2-D weights in backbone and concept heads."""

    matrices: Literal["muon", "adamw"] = "muon"
    heads: Literal["muon", "adamw"] = "adamw"
    matrix_rate: float = 0.03
    embedding_rate: float = 0.005
    head_rate: float = 0.003
    norm_rate: float = 0.003
    momentum: float = 0.95
    betas: tuple[float, float] = (0.9, 0.95)
    weight_decay: float = 0.1
    clip_norm: float = 1.0
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
        self._names = dict(model.named_parameters())
        groups: dict[str, list[nn.Parameter]] = {"matrix": [], "embedding": [], "head": [], "norm": []}
        for name, parameter in self._names.items():
            groups[_group_of(name, parameter)].append(parameter)
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
        self._all: list[Optimizer] = [AdamW(by_optimiser["adamw"], betas=settings.betas)]
        if by_optimiser["muon"]:
            muon = Muon(by_optimiser["muon"], momentum=settings.momentum, adjust_lr_fn="match_rms_adamw")
            self._all.append(muon)
        for optimiser in self._all:
            for group in optimiser.param_groups:
                group["peak_lr"] = group["lr"]

    def step(self, factor: float) -> float:
        """Clip, update with `factor` times the peak rates, and forget the gradients.

        Args:
            factor: of the schedule.

        Returns:
            the gradient norm before clipping.
        """
        norm = nn.utils.clip_grad_norm_(self._names.values(), self._settings.clip_norm)
        for optimiser in self._all:
            for group in optimiser.param_groups:
                group["lr"] = group["peak_lr"] * factor
            optimiser.step()
            optimiser.zero_grad(set_to_none=True)
        return float(norm)

    def state(self) -> dict[str, Tensor]:
        """Every state tensor, as `<parameter>/<key>`."""
        names: dict[Tensor, str] = {parameter: name for name, parameter in self._names.items()}
        return {
            f"{names[parameter]}/{key}": value
            for optimiser in self._all
            for parameter, values in optimiser.state.items()
            for key, value in values.items()
        }

    def load(self, state: dict[str, Tensor]) -> None:
        """Put back what `state` gave; parameters it lacks start afresh.

        Args:
            state: tensors by `<parameter>/<key>`.
        """
        for optimiser in self._all:
            for parameter in _parameters(optimiser):
                name = next(name for name, own in self._names.items() if own is parameter)
                found = {key.rsplit("/", 1)[1]: value for key, value in state.items() if key.rsplit("/", 1)[0] == name}
                if found:
                    optimiser.state[parameter] = {key: value.clone() for key, value in found.items()}


def _parameters(optimiser: Optimizer) -> Iterator[nn.Parameter]:
    for group in optimiser.param_groups:
        yield from group["params"]


def _group_of(name: str, parameter: Tensor) -> str:
    if parameter.ndim < 2:
        return "norm"
    if name.startswith("transformer.blocks."):
        return "matrix"
    return "embedding" if name.startswith("transformer.") else "head"


def gradient_is_finite(model: nn.Module) -> bool:
    """Whether every gradient is a number."""
    return all(bool(torch.isfinite(p.grad).all()) for p in model.parameters() if p.grad is not None)
