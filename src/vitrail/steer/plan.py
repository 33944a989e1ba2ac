"""From a steering request to what the network adds (§6.2).

Direction: the unit vector g_c = E_c/‖E_c‖ of a concept's embedding row; several concepts add up, each with
its own strength γ_c times its calibrated scale α_c: Σ γ_c α_c g_c. It is injected at masked positions after
every block from `layer` on. Suppression (γ < 0) also subtracts from the logits, gated by a ReLU so that only
words that the concept raises are lowered.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

import torch
from jaxtyping import Float
from torch import Tensor

from vitrail.atlas import Card, ConceptLibrary
from vitrail.errors import ConceptNotFound, ConfigError
from vitrail.model import ConceptHead, ConceptLM
from vitrail.steer.calibration import Calibration, concept_head, unit_directions
from vitrail.steer.spec import Head, Steer, format_steers

OFF_PENALTY = 1.0
"""Largest logit that `off` subtracts, in units of the calibration's target."""


@dataclass(frozen=True, eq=False)
class SteerPlan:
    """What steering adds to one request.

    Attributes:
        direction: [D] vector added to the hidden states at masked positions, already scaled; zeros = none.
        layer: it is added after block n, counting from 1, for every n >= layer.
        logit_penalty: [V] non-negative logits to subtract before sampling, or None.
        text: the request, as `parse_steers` reads it.
    """

    direction: Float[Tensor, " D"]
    layer: int
    logit_penalty: Float[Tensor, " V"] | None
    text: str

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, SteerPlan):
            return NotImplemented
        return (
            (self.layer, self.text) == (other.layer, other.text)
            and torch.equal(self.direction, other.direction)
            and _equal(self.logit_penalty, other.logit_penalty)
        )

    __hash__ = None  # type: ignore[assignment]


def plan_steering(
    model: ConceptLM, steers: Sequence[Steer], library: ConceptLibrary, calibration: Calibration
) -> SteerPlan:
    """The vector and the logit penalty that carry out a request (§6.2).

    Args:
        model: gives embedding rows and LM head; a discovered concept without a scale is calibrated through it.
        steers: the request; several concepts add up.
        library: resolves names.
        calibration: scales that make strength 1.0 mean the same for every concept.

    Returns:
        the plan, on the model's device and in its dtype.

    Raises:
        ArtifactError: the calibration of another model.
        ConfigError: one concept is steered twice, by name and by id.
        ConceptNotFound: a name or id that does not exist; the message suggests the nearest name.
    """
    calibration.require_fit(model.config)
    weight = model.transformer.lm_head.weight
    direction = torch.zeros_like(weight[0])
    penalty: Tensor | None = None
    seen: set[tuple[Head, int]] = set()
    with torch.no_grad():
        for steer in steers:
            concept_id = find_concept(model, steer, library)
            if (steer.head, concept_id) in seen:
                raise ConfigError(f"steer: '{steer}' is {steer.head} concept #{concept_id} again; give it one strength")
            seen.add((steer.head, concept_id))
            scale = calibration.scale(model, steer.head, concept_id)
            direction += steer.strength * scale * unit_directions(model, steer.head, [concept_id])[0]
            if steer.strength < 0:
                pressure = OFF_PENALTY if steer.is_off else -steer.strength
                contrast = concept_contrast(model, steer.head, concept_id)
                lowered = relu_penalty(model, contrast, pressure * calibration.target)
                penalty = lowered if penalty is None else penalty + lowered
    return SteerPlan(direction, calibration.layer, penalty, format_steers(steers))


def find_concept(model: ConceptLM, steer: Steer, library: ConceptLibrary) -> int:
    """The row of the head that a part of a request means.

    Args:
        model: knows how many concepts each head holds.
        steer: names it, or gives its id.
        library: resolves names.

    Returns:
        the concept id within its head.

    Raises:
        ConceptNotFound: no such name (the nearest is suggested) or an id outside the head.
    """
    if isinstance(steer.concept, int):
        concept_id, name = steer.concept, f"#{steer.concept}"
    else:
        card: Card = library.find(steer.concept, head=steer.head)
        concept_id, name = card.concept_id, f"'{steer.concept}' (#{card.concept_id})"
    count = concept_head(model, steer.head).num_concepts
    if not 0 <= concept_id < count:
        raise ConceptNotFound(f"steer: the model has no {steer.head} concept {name}; its ids are 0 to {count - 1}")
    return concept_id


def relu_penalty(model: ConceptLM, vector: Float[Tensor, " D"], largest: float) -> Float[Tensor, " V"]:
    """ReLU-gated logits to subtract: proportional to max(0, W·vector), at most `largest`.

    Args:
        model: its LM head W.
        vector: [D] embedding of what is suppressed; only its direction matters.
        largest: logit subtracted from the token that the vector raises most.

    Returns:
        [V] penalties in 0..largest; all 0 for a vector that raises no token at all.
    """
    raised = torch.relu(model.transformer.lm_head.weight.detach() @ vector)
    share = raised / raised.max().clamp_min(torch.finfo(raised.dtype).tiny)
    return share * largest


def concept_contrast(model: ConceptLM, head: Head, concept_id: int) -> Float[Tensor, " D"]:
    """A concept's embedding minus the mean over its head: what it raises more than other concepts do.

    The rows share a component that raises frequent words; gating by it would punish the language itself.

    Args:
        model: the network.
        head: `known` or `discovered`.
        concept_id: row of the head.

    Returns:
        [D] vector.
    """
    concepts = concept_head(model, head)
    row = concepts.rows(torch.tensor([concept_id], device=model.transformer.lm_head.weight.device))[0]
    return (row - mean_row(concepts)).detach()


def mean_row(concepts: ConceptHead, slab: int = 4096) -> Float[Tensor, " D"]:
    """Mean embedding of a head: what its rows share.

    Args:
        concepts: the head.
        slab: rows read at once.

    Returns:
        [D] mean row.
    """
    count = concepts.num_concepts
    starts = range(0, count, slab)
    total = sum(concepts.embedding(slice(at, min(at + slab, count))).sum(0) for at in starts)
    return cast(Tensor, total) / count


def _equal(left: Tensor | None, right: Tensor | None) -> bool:
    if left is None or right is None:
        return left is right
    return torch.equal(left, right)
