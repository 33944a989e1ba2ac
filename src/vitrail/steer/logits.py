"""Logits as the model is deployed, without running heads that cannot change them."""

import torch
from jaxtyping import Float
from torch import Tensor

from vitrail.model import ConceptLM


def deployed_logits(model: ConceptLM, hidden: Float[Tensor, "n D"]) -> Float[Tensor, "n V"]:
    """Logits of final hidden states; with the residual the parts sum to h, so no head is needed (§5.3).

    Args:
        model: the network.
        hidden: [n D] states after the final norm.

    Returns:
        [n V] logits, in at least fp32.
    """
    logits: Tensor = model.lm_logits(hidden) if model.has_residual else model.decompose(hidden[None]).logits[0]
    return logits.to(torch.promote_types(logits.dtype, torch.float32))
