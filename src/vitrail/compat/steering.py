"""The reference's steering: a direction, a strength, where and when it is injected, and the ReLU logit mask.

    g = Σ E_c / ‖Σ E_c‖        peak = max_t W_t·g        α = target / peak, or target itself
    s = Σ_c strength_c · max(0, W E_c)

Everything here is computed in at least fp32; only the injected vector is rounded to the model's dtype.
`D` width, `V` vocabulary.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from vitrail.compat.options import ReferenceSteering
from vitrail.errors import ConceptNotFound
from vitrail.model import ConceptLM, Injection, ModelConfig
from vitrail.model.streaming import wide


def amplify(concept_ids: Sequence[int]) -> ReferenceSteering:
    """The reference's preset that turns concepts up for the first 32 tokens.

    Args:
        concept_ids: known concepts.

    Returns:
        the steering.
    """
    return ReferenceSteering(concept_ids=tuple(concept_ids), target=8.0, layer=8, schedule="hard_cutoff")


def suppress(concept_id: int, group: Sequence[int] = ()) -> ReferenceSteering:
    """The reference's preset that turns a concept and its group down, and takes its words away.

    Args:
        concept_id: the known concept in focus.
        group: members of its group; a repetition of the focus is dropped.

    Returns:
        the steering.
    """
    concept_ids = tuple(dict.fromkeys((concept_id, *group)))
    return ReferenceSteering(
        concept_ids=concept_ids, target=-7.0, is_normalized=False, relu_strengths={concept_id: 20.0}
    )


def default_layer(config: ModelConfig) -> int:
    """The layer of an injection that names none.

    Args:
        config: of the model; the released `inject_layer` is not consulted.

    Returns:
        the middle of the layers.
    """
    return config.num_layers // 2


@torch.no_grad()
def steering_direction(model: ConceptLM, concept_ids: Sequence[int]) -> Float[Tensor, " D"]:
    """Unit vector along the sum of known concepts' embedding rows.

    Args:
        model: the network.
        concept_ids: known concepts.

    Returns:
        [D] g, at least fp32.

    Raises:
        ConceptNotFound: an id outside the known head.
    """
    total = known_rows(model, concept_ids).sum(0)
    direction: Tensor = total / (total.norm() + 1e-12)
    return direction


@torch.no_grad()
def peak_alignment(model: ConceptLM, direction: Float[Tensor, " D"]) -> float:
    """The largest logit that one unit of a direction adds at the LM head.

    Args:
        model: the network.
        direction: [D] unit vector.

    Returns:
        the alignment, at least 1e-6.
    """
    lm_head = model.transformer.lm_head.weight
    return max(float((lm_head.to(direction.dtype) @ direction).max()), 1e-6)


def strength(model: ConceptLM, steering: ReferenceSteering) -> float:
    """α, the length of the injected vector.

    Args:
        model: the network.
        steering: with at least one concept.

    Returns:
        α, 0 without a target.
    """
    if not steering.is_normalized:
        return steering.target
    return steering.target / peak_alignment(model, steering_direction(model, steering.concept_ids))


@torch.no_grad()
def relu_suppression(model: ConceptLM, strengths: Mapping[int, float]) -> Float[Tensor, " V"]:
    """What the ReLU logit mask takes from the logits of every candidate position.

    Args:
        model: the network.
        strengths: concept id → strength; embeddings are not normalised.

    Returns:
        [V] s, at least fp32.

    Raises:
        ConceptNotFound: an id outside the known head.
    """
    rows = known_rows(model, list(strengths))
    aligned = (rows @ model.transformer.lm_head.weight.to(rows.dtype).T).relu()
    return torch.tensor(list(strengths.values()), dtype=rows.dtype, device=rows.device) @ aligned


def known_rows(model: ConceptLM, concept_ids: Sequence[int]) -> Float[Tensor, "c D"]:
    """Embedding rows of known concepts.

    Args:
        model: the network.
        concept_ids: known concepts.

    Returns:
        [c D] rows of K, at least fp32.

    Raises:
        ConceptNotFound: an id outside the known head.
    """
    head = model.known_head
    outside = [concept_id for concept_id in concept_ids if not 0 <= concept_id < head.num_concepts]
    if outside:
        raise ConceptNotFound(
            f"the model has no known concept {outside[0]}; its ids are 0 to {head.num_concepts - 1}"
            if head.num_concepts
            else f"known concept {outside[0]}: the model has no concepts (interpretable is false)"
        )
    weight = model.transformer.lm_head.weight
    if not concept_ids:
        return weight.new_zeros((0, weight.shape[1]), dtype=wide(weight.dtype))
    rows = head.rows(torch.tensor(list(concept_ids), device=weight.device)).detach()
    return rows.to(wide(rows.dtype))


@dataclass(frozen=True, eq=False)
class Injector:
    """An injection and its schedule.

    Attributes:
        vector: [D] α·g in the model's dtype.
        layer: after every block n ≥ layer.
        cutoff_tokens: committed tokens at which it ends; None never ends it.
    """

    vector: Float[Tensor, " D"]
    layer: int
    cutoff_tokens: int | None

    @classmethod
    def of(cls, model: ConceptLM, steering: ReferenceSteering | None) -> "Injector | None":
        """Prepare the injection of a run.

        Args:
            model: the network.
            steering: what is wanted, or None.

        Returns:
            the injector; None where nothing is injected.
        """
        if steering is None or not steering.concept_ids or not steering.target:
            return None
        direction = steering_direction(model, steering.concept_ids)
        direction = direction.to(model.transformer.lm_head.weight.dtype)
        layer = default_layer(model.config) if steering.layer is None else steering.layer
        cutoff = steering.cutoff_tokens if steering.schedule == "hard_cutoff" else None
        return cls(strength(model, steering) * direction, layer, cutoff)

    def is_on(self, num_committed: int) -> bool:
        """Whether it is injected at this point of the schedule.

        Args:
            num_committed: tokens committed before this step.

        Returns:
            whether α is not 0.
        """
        return self.cutoff_tokens is None or num_committed < self.cutoff_tokens

    def at_masks(self, input_ids: Int[Tensor, "B T"], mask_id: int) -> Injection:
        """The injection at every masked position of the input, those of the prompt included.

        Args:
            input_ids: [B T] input of the forward.
            mask_id: the mask token in force.

        Returns:
            what the backbone adds.
        """
        return Injection(self.vector.expand(len(input_ids), -1), input_ids == mask_id, self.layer)
