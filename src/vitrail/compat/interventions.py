"""Interventions on concept weights, by the reference's two rules.

Dense (at most 50,000 concepts): weights with top-k sparsity, then the weight of each named concept is set.
Sparse (larger heads): the ordinary features plus Σ (value − σ(logit)) E_c; the weight is taken away even
where the concept was not active, so the result is then not "weight set to value".

`B` rows, `T` tokens, `e` edits per position, `D` width.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from vitrail.compat.dense import DENSE_LIMIT, dense_features, dense_logits, dense_weights
from vitrail.errors import ConceptNotFound
from vitrail.model import ConceptHead, HeadOutput

Rule = Literal["dense", "sparse"]
EMPTY = -1


@dataclass(frozen=True, eq=False)
class Intervention:
    """New weights of concepts of one head, position by position.

    Attributes:
        ids: [B T e] concepts; −1 marks an empty slot.
        values: [B T e] weights, not limited to [0, 1]; the same concept given twice at a position is summed.
    """

    ids: Int[Tensor, "B T e"]
    values: Float[Tensor, "B T e"]

    @classmethod
    def of(
        cls,
        changes: Mapping[int, float],
        like: Int[Tensor, "B T"],
        positions: Bool[Tensor, "#B T"] | None = None,
    ) -> "Intervention | None":
        """The same changes at all positions, or at some.

        Args:
            changes: concept id → weight.
            like: [B T] input ids, for shape and device.
            positions: where they apply; None is everywhere.

        Returns:
            the intervention; None without changes.
        """
        if not changes:
            return None
        ids = torch.tensor(list(changes), device=like.device).expand(*like.shape, -1)
        values = torch.tensor(list(changes.values()), dtype=torch.float64, device=like.device).expand(*like.shape, -1)
        if positions is not None:
            ids = ids.masked_fill(~positions.to(like.device)[..., None], EMPTY)
        return cls(ids, values)


def rule_of(head: ConceptHead) -> Rule:
    """The rule that the reference uses for a head.

    Args:
        head: known or discovered.

    Returns:
        `dense` up to 50,000 concepts.
    """
    return "dense" if head.num_concepts <= DENSE_LIMIT else "sparse"


def edited(
    head: ConceptHead,
    hidden: Float[Tensor, "B T D"],
    intervention: Intervention,
    *,
    rule: Rule | None = None,
    top_k_on_logits: bool = False,
) -> HeadOutput:
    """What a head gives under an intervention.

    Args:
        head: known or discovered.
        hidden: final hidden states.
        intervention: new weights.
        rule: None takes that of the head's size.
        top_k_on_logits: the flag of the configuration (see `dense_weights`).

    Returns:
        features; the dense rule reports no concepts.

    Raises:
        ConceptNotFound: an id that the head does not have.
    """
    ids = intervention.ids
    outside = ids[(ids < EMPTY) | (ids >= head.num_concepts)]
    if len(outside):
        raise ConceptNotFound(f"intervention: the head has no concept {int(outside[0])}; it has {head.num_concepts}")
    if (rule or rule_of(head)) == "dense":
        return _set(head, hidden, intervention, top_k_on_logits)
    return _corrected(head, hidden, intervention)


def _set(head: ConceptHead, hidden: Tensor, intervention: Intervention, top_k_on_logits: bool) -> HeadOutput:
    logits = dense_logits(head, hidden)
    weights = dense_weights(head, logits, top_k_on_logits=top_k_on_logits)
    # One column more than concepts, where empty slots go.
    slots = intervention.ids.where(intervention.ids != EMPTY, head.num_concepts)
    wide_shape = (*weights.shape[:-1], head.num_concepts + 1)
    values = weights.new_zeros(wide_shape).scatter_add(-1, slots, intervention.values.to(weights.dtype))
    is_set = torch.zeros(wide_shape, dtype=torch.bool, device=weights.device).scatter(-1, slots, True)
    weights = torch.where(is_set[..., :-1], values[..., :-1], weights)
    nothing = intervention.ids[..., :0]
    return HeadOutput(dense_features(head, weights), nothing, logits[..., :0])


def _corrected(head: ConceptHead, hidden: Tensor, intervention: Intervention) -> HeadOutput:
    output: HeadOutput = head(hidden)
    is_given = intervention.ids != EMPTY
    slots = intervention.ids.clamp_min(0)
    current = head.logits_for(hidden, slots).sigmoid()
    change = torch.where(is_given, intervention.values.to(current.dtype) - current, 0.0)
    return HeadOutput(output.features + head.sum_for(change, slots), output.ids, output.logits)
