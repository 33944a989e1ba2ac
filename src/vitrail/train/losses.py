"""Terms of the training loss: language, token concepts, reconstruction, independence (§5.4.1, §10.2.2).

Each term is a sum; its count is in `terms`. The step divides once by the count of the whole batch, so neither
micro-batches nor ranks can change the result. The chunk concept loss is in `metrics/concept_loss.py`.

(S) is stated by the paper, (R) reported by others, (C) chosen by us.

Letters: `B` sequences, `T` tokens, `D` width, `V` vocabulary, `n` flat tokens.
"""

from typing import Literal

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn import functional

Weight = Literal["none", "elbo"]


def language_sum(
    logits: Float[Tensor, "n V"], targets: Int[Tensor, " n"], noise: Float[Tensor, " n"], weight: Weight
) -> Float[Tensor, ""]:
    """Cross-entropy of what is predicted: Σ -log p(y), over masked tokens (§2.3, S) or next tokens (§2.2, S).

    `elbo` divides each masked token's by its noise level t and counts all tokens: the bound on the likelihood.

    Args:
        logits: [n V] at predicted positions.
        targets: [n] the tokens asked for: hidden there, or next.
        noise: [n] noise level of each token's block, read for `elbo` alone.
        weight: `none` or `elbo`.

    Returns:
        the sum in nats.
    """
    losses = functional.cross_entropy(_full(logits), targets, reduction="none")
    return (losses / noise.to(losses.dtype) if weight == "elbo" else losses).sum()


def token_concept_sum(
    logits: Float[Tensor, "n S"],
    span_row: Int[Tensor, " p"],
    span_concept: Int[Tensor, " p"],
    num_concepts: int,
) -> Float[Tensor, ""]:
    """Binary cross-entropy of token-level labels, at the tokens that lie in some span: Σ_n Σ_c BCE(z_nc, y_nc) (C).

    Args:
        logits: [n S] unclamped logits of S = `num_concepts` concepts at the span tokens.
        span_row: [p] row of `logits` of each positive pair.
        span_concept: [p] concept of each positive pair.
        num_concepts: S.

    Returns:
        the sum in nats over tokens and concepts.
    """
    z = _full(logits)
    targets = z.new_zeros(z.shape[0], num_concepts)
    targets[span_row, span_concept] = 1.0
    return functional.binary_cross_entropy_with_logits(z, targets, reduction="sum")


def reconstruction_sum(
    discovered: Float[Tensor, "n D"], hidden: Float[Tensor, "n D"], known: Float[Tensor, "n D"]
) -> Float[Tensor, ""]:
    """Squared error of û against stop_grad(h - k): Σ_n ‖û - (h - k)‖² / D (§5.4.1; R, Eq. 12).

    Args:
        discovered: [n D] û, predicted from a detached h.
        hidden: [n D] h.
        known: [n D] k̂_GT from the labels (reported form), or the predicted k̂.

    Returns:
        the sum over tokens; it trains the discovered head alone.
    """
    return (_full(discovered) - _full(hidden - known).detach()).square().mean(-1).sum()


def independence_sum(
    first: Float[Tensor, "B T D"],
    second: Float[Tensor, "B T D"],
    present: Bool[Tensor, "B T"],
    form: Literal["hsic", "cka"],
) -> Float[Tensor, ""]:
    """Linear dependence of two parts inside each sequence, summed over sequences (§5.4.1; R, Eq. 13-14).

    Centred over the sequence's T present tokens. `hsic` is ‖X̃ᵀỸ‖_F² / (T - 1)² (S; C: inside sequences, so that it
    is additive); it grows with the norms. `cka` divides ‖X̃ᵀỸ‖_F² by ‖X̃ᵀX̃‖_F ‖ỸᵀỸ‖_F instead and lies in [0, 1] (C).

    Args:
        first: [B T D] one part; gradients flow here.
        second: [B T D] the other; pass it detached where only the first shall learn.
        present: [B T] False at padding.
        form: `hsic` or `cka`.

    Returns:
        the sum over sequences.
    """
    x, y = _centred(_full(first), present), _centred(_full(second), present)
    cross = (x.mT @ y).square().sum((1, 2))
    if form == "hsic":
        tokens = present.sum(1).clamp_min(2).to(cross.dtype)
        return (cross / (tokens - 1).square()).sum()
    own = (x.mT @ x).square().sum((1, 2)) * (y.mT @ y).square().sum((1, 2))
    return (cross / (own + torch.finfo(own.dtype).tiny).sqrt().clamp_min(1e-12)).sum()


def _centred(x: Tensor, present: Tensor) -> Tensor:
    weight = present[..., None].to(x.dtype)
    mean = (x * weight).sum(1, keepdim=True) / weight.sum(1, keepdim=True).clamp_min(1)
    return (x - mean) * weight


def _full(x: Tensor) -> Tensor:
    """fp32 for half-precision input (sums over many tokens), fp64 stays."""
    return x if x.dtype == torch.float64 else x.float()
