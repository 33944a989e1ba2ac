"""How independent two parts of a state are: linear HSIC and its scale-free form, CKA (§5.4, appendix H).

Both are differentiable, so that a loss and a metric share one definition. `x` and `y` are two parts of the
same states, for instance discovered and known features. `valid` is True where a token takes part.
"""

import torch
from jaxtyping import Bool, Float
from torch import Tensor

_TINY = 1e-12


def linear_hsic(
    x: Float[Tensor, "B T D"], y: Float[Tensor, "B T E"], valid: Bool[Tensor, "B T"]
) -> Float[Tensor, " B"]:
    """Linear HSIC inside each sequence, ‖X̃ᵀỸ‖_F² / (T−1)², centred over its valid tokens.

    Sum it over sequences and count sequences: the value of a batch is then additive. It grows with the
    norms of both parts: read it beside `linear_cka`.

    Args:
        x: one part.
        y: the other part.
        valid: tokens that take part.

    Returns:
        one value per sequence, ≥ 0; zero where fewer than two tokens take part.
    """
    num_valid = valid.sum(1).to(x.dtype)
    cross = torch.einsum("btd,bte->bde", _centred(x, valid), _centred(y, valid))
    return cross.square().sum((1, 2)) / (num_valid - 1).clamp(min=1).square()


def linear_cka(x: Float[Tensor, "B T D"], y: Float[Tensor, "B T E"], valid: Bool[Tensor, "B T"]) -> Float[Tensor, " B"]:
    """Linear CKA inside each sequence: ‖X̃ᵀỸ‖² / (‖X̃ᵀX̃‖ ‖ỸᵀỸ‖), in [0, 1].

    Args:
        x: one part.
        y: the other part.
        valid: tokens that take part.

    Returns:
        one value per sequence; zero where a part does not vary. Scaling or rotating a part changes nothing.
    """
    x_centred, y_centred = _centred(x, valid), _centred(y, valid)
    cross = torch.einsum("btd,bte->bde", x_centred, y_centred).square().sum((1, 2))
    x_self = torch.einsum("btd,bte->bde", x_centred, x_centred).square().sum((1, 2))
    y_self = torch.einsum("btd,bte->bde", y_centred, y_centred).square().sum((1, 2))
    return cross / (x_self * y_self).sqrt().clamp(min=_TINY)


def _centred(part: Float[Tensor, "B T D"], valid: Bool[Tensor, "B T"]) -> Float[Tensor, "B T D"]:
    weight = valid.unsqueeze(-1).to(part.dtype)
    mean = (part * weight).sum(1, keepdim=True) / weight.sum(1, keepdim=True).clamp(min=1)
    return (part - mean) * weight
