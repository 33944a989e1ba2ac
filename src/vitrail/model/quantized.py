"""Weights in int8, so that an 8 B model fits 16 GB.

The matrices of the layers, nine tenths of the weights, are kept as int8 with one scale a row (torchao); products
run in the dtype of the activations. The rest stays as it was: embedding and LM head, because a logit is a sum of
concepts through the LM head, and the tables of the concept heads, because explanations and directions of steering
read their rows.
"""

import logging
import re
import warnings
from collections.abc import Callable
from importlib import import_module
from typing import Any

from torch import Tensor, nn

from vitrail.errors import ConfigError

_SLAB = 2**18
"""Numbers rounded at once: torchao makes several fp32 copies, and large ones leave holes in memory."""

_MATRIX = re.compile(r"transformer\.blocks\.\d+\.(attn|mlp)\.c_\w+\.weight")


def is_quantized(name: str) -> bool:
    """Whether a tensor is one of those kept in int8.

    Args:
        name: released name.

    Returns:
        true for the matrices of attention and MLP.
    """
    return _MATRIX.fullmatch(name) is not None


def to_int8(weight: Tensor) -> nn.Parameter:
    """A matrix in int8, with one scale a row.

    Args:
        weight: [out, in] floating point; products with it run in its dtype.

    Returns:
        what a linear layer takes as its weight; it cannot be trained.

    Raises:
        ConfigError: torchao is not installed.
    """
    quantize, config = _torchao()
    num_rows = max(1, _SLAB // weight.shape[1])
    parts: dict[str, Tensor] = {}
    for start in range(0, len(weight), num_rows):
        linear = nn.Linear(weight.shape[1], num_rows, bias=False, device="meta")
        linear.weight = nn.Parameter(weight[start : start + num_rows], requires_grad=False)
        quantize(linear, config)
        slab: Any = linear.weight.data
        names, context = slab.__tensor_flatten__()
        for name in names:
            part = getattr(slab, name)
            whole = parts.setdefault(name, part.new_empty(len(weight), *part.shape[1:]))
            whole[start : start + len(part)] = part
    rounded = type(slab).__tensor_unflatten__(parts, context, weight.shape, weight.stride())
    return nn.Parameter(rounded, requires_grad=False)


def _torchao() -> tuple[Callable[[nn.Module, object], None], object]:
    muted = logging.root.manager.disable
    logging.disable(logging.WARNING)  # on import it lists the CUDA extensions that this machine cannot load
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            quantization = import_module("torchao.quantization")
    except ImportError as error:
        raise ConfigError("int8 weights need the package torchao; run: pip install 'vitrail[int8]'") from error
    finally:
        logging.disable(muted)
    return quantization.quantize_, quantization.Int8WeightOnlyConfig()
