"""All activations of a head at once: the reference's analysis mode, and its rule for interventions.

Ordinary forwards never hold them. With `topk_on_logits` the reference sets unselected *logits* to zero
before the sigmoid, so that their weights are 0.5 instead of 0; that is kept here, and only here.

`C` concepts of the head, `D` width.
"""

import torch
from jaxtyping import Float
from torch import Tensor

from vitrail.errors import ConfigError
from vitrail.model import ConceptHead
from vitrail.model.streaming import CLAMP

DENSE_LIMIT = 50_000
"""Concepts of a head above which the reference gives no dense outputs and edits by the sparse rule."""


def dense_logits(head: ConceptHead, hidden: Float[Tensor, "... D"]) -> Float[Tensor, "... C"]:
    """Clamped logits of all concepts.

    Args:
        head: known or discovered.
        hidden: final hidden states.

    Returns:
        logits in [−15, 15], at least fp32.

    Raises:
        ConfigError: a head of more than 50,000 concepts.
    """
    if head.num_concepts > DENSE_LIMIT:
        raise ConfigError(f"dense outputs of {head.num_concepts} concepts are refused; the limit is {DENSE_LIMIT}")
    if not head.num_concepts:
        return hidden.new_zeros((*hidden.shape[:-1], 0))
    return head.logits(hidden, slice(0, head.num_concepts)).clamp(-CLAMP, CLAMP)


def dense_weights(
    head: ConceptHead, logits: Float[Tensor, "... C"], *, top_k_on_logits: bool
) -> Float[Tensor, "... C"]:
    """Weights of all concepts, zero outside the reported top-k.

    Args:
        head: known or discovered.
        logits: its dense logits.
        top_k_on_logits: the flag of the configuration, with its defect.

    Returns:
        sigmoids of the best k (not k_f) concepts, of all where the head has no top-k; the rest is 0, or
        0.5 with the defect.
    """
    weights = logits.sigmoid()
    if head.selection.summed is None or head.selection.reported is None:
        return weights
    rank = logits if head.selection.by_logit else weights
    kept = rank.topk(min(head.selection.reported, head.num_concepts)).indices
    rest = torch.full_like(weights, 0.5 if top_k_on_logits else 0.0)
    return rest.scatter(-1, kept, weights.gather(-1, kept))


def dense_features(head: ConceptHead, weights: Float[Tensor, "... C"]) -> Float[Tensor, "... D"]:
    """The sum of embeddings under given weights.

    Args:
        head: known or discovered.
        weights: of all concepts.

    Returns:
        Σ_c w_c E_c in the model's dtype.
    """
    values = head.table.values[: head.num_concepts]
    return head.expand(weights.to(values.dtype) @ values)
