"""What a known concept says: the tokens that its embedding points at (§8.6 of the checkpoint specification)."""

import torch

from vitrail.compat.steering import steering_direction
from vitrail.model import ConceptLM


@torch.no_grad()
def top_tokens(model: ConceptLM, concept_id: int, limit: int = 10) -> list[tuple[int, float]]:
    """The tokens best aligned with a known concept's unit embedding.

    Args:
        model: the network.
        concept_id: row of the known head.
        limit: how many.

    Returns:
        (token id, alignment in logits), highest first.

    Raises:
        ConceptNotFound: an id outside the known head.
    """
    direction = steering_direction(model, [concept_id])
    aligned = model.transformer.lm_head.weight.to(direction.dtype) @ direction
    best = aligned.topk(min(limit, len(aligned)))
    return list(zip(best.indices.tolist(), best.values.tolist(), strict=True))
