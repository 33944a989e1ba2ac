"""The reference's choice of one token from the logits of one position.

Entropy sampling: the flatter the distribution, the higher the temperature, between 0.3 and 0.7; else nucleus
sampling at the given temperature; else the most likely token. `V` is the vocabulary.
"""

import math

import torch
from jaxtyping import Float
from torch import Tensor

from vitrail.compat.options import ReferenceOptions

_LOWEST_TEMPERATURE, _TEMPERATURE_RANGE = 0.3, 0.4


def choose_token(logits: Float[Tensor, " V"], options: ReferenceOptions, generator: torch.Generator | None) -> int:
    """Draw, or take, the token of one position.

    Args:
        logits: [V] after penalties, at least fp32.
        options: how tokens are chosen.
        generator: of the draws; None takes torch's global stream.

    Returns:
        the token.
    """
    probs = token_probs(logits, options)
    if probs is None:
        return int(logits.argmax())
    # The draw runs over the sorted nucleus: in another order the same random number gives another token.
    mass, ids = _sorted_nucleus(probs, options.top_p)
    return int(ids[torch.multinomial(mass, 1, generator=generator)])


def token_probs(logits: Float[Tensor, " V"], options: ReferenceOptions) -> Float[Tensor, " V"] | None:
    """The distribution of one position after the temperature, before the nucleus.

    Args:
        logits: [V] after penalties.
        options: how tokens are chosen.

    Returns:
        [V] probabilities, or None where the most likely token is taken.
    """
    if options.use_entropy_sampling:
        return (logits / _entropy_temperature(logits.softmax(-1), options.top_p)).softmax(-1)
    if options.top_p > 0 and options.temperature > 0:
        return (logits / options.temperature).softmax(-1)
    return None


def nucleus(probs: Float[Tensor, " V"], top_p: float) -> Float[Tensor, " V"]:
    """The most likely tokens whose predecessors hold at most `top_p`, renormalised.

    Args:
        probs: [V] probabilities.
        top_p: mass; the most likely token is always kept.

    Returns:
        [V] probabilities, zero outside.
    """
    mass, ids = _sorted_nucleus(probs, top_p)
    return torch.zeros_like(probs).scatter(0, ids, mass)


def _sorted_nucleus(probs: Tensor, top_p: float) -> tuple[Tensor, Tensor]:
    mass, ids = probs.sort(descending=True)
    is_kept = mass.cumsum(0) - mass <= top_p
    is_kept[0] = True
    mass = mass * is_kept
    return mass / mass.sum(), ids


def _entropy_temperature(probs: Tensor, top_p: float) -> float:
    num_likely = max(1 + int((probs.sort(descending=True).values.cumsum(0) <= top_p).sum()), 2)
    entropy = float(-(probs * (probs + 1e-10).log()).sum())
    return _LOWEST_TEMPERATURE + _TEMPERATURE_RANGE * min(1.0, entropy / math.log(num_likely))
