"""A model without memory: shapes on torch's `meta` device, to be filled tensor by tensor."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from vitrail.model.attention import AttentionKernel
from vitrail.model.config import ModelConfig
from vitrail.model.lm import ConceptLM


def empty_model(config: ModelConfig, kernel: AttentionKernel | None = None) -> ConceptLM:
    """A model whose parameters have shapes and no numbers.

    Args:
        config: shape and flags.
        kernel: how attention is computed; scaled dot product by default.

    Returns:
        the model, on the `meta` device.
    """
    with torch.device("meta"), _NoInit():
        return ConceptLM(config, kernel)


class _NoInit(TorchFunctionMode):
    """Leaves out `torch.nn.init`: on `meta` its draws do nothing, and would load torch's compiler (two seconds)."""

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        if getattr(func, "__module__", "") == torch.nn.init.__name__:
            tensor: Tensor = args[0] if args else (kwargs or {})["tensor"]
            return tensor
        return func(*args, **(kwargs or {}))
