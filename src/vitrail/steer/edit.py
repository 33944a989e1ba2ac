"""Edits of a known concept's activation: the effect is linear, so it can be predicted exactly (§6.2).

With all else held, setting a_c to v moves every logit by (v − a_c) K_c·W_y.
"""

import torch
from jaxtyping import Float
from torch import Tensor

from vitrail.model import ConceptLM, DecomposedOutput
from vitrail.steer.calibration import unit_directions


def known_activation(output: DecomposedOutput, concept_id: int) -> Float[Tensor, "B T"]:
    """Activation a_c of a known concept where it was kept, zero elsewhere.

    Args:
        output: of a forward.
        concept_id: row of the known head.

    Returns:
        [B T] values in [0, 1).
    """
    return (output.known_logits.sigmoid() * (output.known_ids == concept_id)).sum(-1)


def known_edit_effect(
    model: ConceptLM, output: DecomposedOutput, concept_id: int, value: float
) -> Float[Tensor, "B T V"]:
    """Predicted change of all logits when a known activation is set to a value (§6.2).

    Args:
        model: the network.
        output: of the forward that is edited.
        concept_id: row of the known head.
        value: new activation; 0 deletes the concept.

    Returns:
        [B T V] changes in logits.

    Raises:
        ConceptNotFound: an id outside the head.
    """
    per_unit = model.lm_logits(_row(model, concept_id))
    return (value - known_activation(output, concept_id))[..., None] * per_unit


def edit_known(model: ConceptLM, output: DecomposedOutput, concept_id: int, value: float) -> Float[Tensor, "B T V"]:
    """Logits with a known activation set to a value, all other parts held.

    Args:
        model: the network.
        output: of the forward that is edited.
        concept_id: row of the known head.
        value: new activation; 0 deletes the concept.

    Returns:
        [B T V] logits of the edited composed state.

    Raises:
        ConceptNotFound: an id outside the head.
    """
    moved = (value - known_activation(output, concept_id))[..., None] * _row(model, concept_id)
    known = output.known + moved.to(output.known.dtype)
    return model.lm_logits((output.discovered + output.residual) + known)


def _row(model: ConceptLM, concept_id: int) -> Float[Tensor, " D"]:
    unit_directions(model, "known", [concept_id])  # refuses ids outside the head
    return model.known_head.rows(torch.tensor(concept_id, device=model.transformer.lm_head.weight.device))
