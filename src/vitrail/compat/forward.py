"""One forward of the reference with all that it reports, and with interventions.

    unk_for_lm = û, or h − k̂ without a discovered head
    ε = h − (unk_for_lm + k̂), only where the configuration wants it and no known concept is intervened on
    composed = (unk_for_lm + ε) + k̂        logits = W composed

So with the correction on, the heads do not influence the logits; a known intervention switches it off for the
whole batch, and without a discovered head changes nothing. `C` known, `M` discovered concepts.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from vitrail.compat.dense import DENSE_LIMIT, dense_logits, dense_weights
from vitrail.compat.interventions import Intervention, Rule, edited
from vitrail.model import ConceptHead, ConceptLM, HeadOutput, Injection


@dataclass(frozen=True, eq=False)
class ReferenceForward:
    """What the reference returns in analysis mode.

    Attributes:
        logits: [B T V] composed through the LM head.
        hidden: [B T D] h.
        known: [B T D] k̂.
        discovered: [B T D] û (the reference's `unk_hat`); zero without that head.
        discovered_for_lm: [B T D] what entered `composed` beside k̂ (`unk_for_lm`), correction included.
        correction: [B T D] ε that was added (`epsilon`); None where none was.
        unexplained: [B T D] h − (k̂ + û), reported only.
        composed: [B T D] what the LM head reads.
        known_ids: [B T k] reported known concepts, best first; none under the dense rule.
        known_logits: [B T k] their logits.
        discovered_ids: [B T m] the same of the discovered head (the best 64 of one without top-k).
        discovered_logits: [B T m] their logits.
    """

    logits: Float[Tensor, "B T V"]
    hidden: Float[Tensor, "B T D"]
    known: Float[Tensor, "B T D"]
    discovered: Float[Tensor, "B T D"]
    discovered_for_lm: Float[Tensor, "B T D"]
    correction: Float[Tensor, "B T D"] | None
    unexplained: Float[Tensor, "B T D"]
    composed: Float[Tensor, "B T D"]
    known_ids: Int[Tensor, "B T k"]
    known_logits: Float[Tensor, "B T k"]
    discovered_ids: Int[Tensor, "B T m"]
    discovered_logits: Float[Tensor, "B T m"]


@dataclass(frozen=True, eq=False)
class DenseActivations:
    """Logits and weights of all concepts of one head, before interventions.

    Attributes:
        logits: [B T C] clamped.
        weights: [B T C] zero outside the reported top-k (but see `dense_weights`).
    """

    logits: Float[Tensor, "B T C"]
    weights: Float[Tensor, "B T C"]


@torch.no_grad()
def reference_forward(
    model: ConceptLM,
    input_ids: Int[Tensor, "B T"],
    *,
    injection: Injection | None = None,
    known: Intervention | None = None,
    discovered: Intervention | None = None,
    discovered_rule: Rule | None = None,
) -> ReferenceForward:
    """Run the model by the reference's rules.

    Args:
        model: the network.
        input_ids: [B T] tokens.
        injection: steering, or None.
        known: new weights of known concepts; switches the correction off.
        discovered: new weights of discovered concepts; without effect on the logits under the correction.
        discovered_rule: rule of `discovered`; None takes that of the head's size.

    Returns:
        logits and parts.

    Raises:
        ConceptNotFound: an intervention on a concept that the model does not have.
    """
    hidden = model.hidden(input_ids, injection=injection)
    k = _head_output(model, model.known_head, hidden, known, None)
    u = _head_output(model, model.unknown_head, hidden, discovered, discovered_rule)
    for_lm = u.features if model.unknown_head.num_concepts else hidden - k.features
    correction = None
    if model.config.interpretable and model.config.use_residual and known is None:
        correction = hidden - (for_lm + k.features)
        for_lm = for_lm + correction
    composed = for_lm + k.features
    return ReferenceForward(
        logits=model.lm_logits(composed),
        hidden=hidden,
        known=k.features,
        discovered=u.features,
        discovered_for_lm=for_lm,
        correction=correction,
        unexplained=hidden - (k.features + u.features),
        composed=composed,
        known_ids=k.ids,
        known_logits=k.logits,
        discovered_ids=u.ids,
        discovered_logits=u.logits,
    )


@torch.no_grad()
def dense_activations(
    model: ConceptLM, hidden: Float[Tensor, "B T D"]
) -> tuple[DenseActivations, DenseActivations | None]:
    """All activations of both heads, as analysis mode reports them.

    Args:
        model: the network.
        hidden: [B T D] final hidden states.

    Returns:
        those of the known and of the discovered head; None in place of the latter where it has more than
        50,000 concepts, which the reference refuses.

    Raises:
        ConfigError: more than 50,000 known concepts.
    """
    known = _dense(model, model.known_head, hidden)
    is_refused = model.unknown_head.num_concepts > DENSE_LIMIT
    return known, None if is_refused else _dense(model, model.unknown_head, hidden)


def _dense(model: ConceptLM, head: ConceptHead, hidden: Tensor) -> DenseActivations:
    logits = dense_logits(head, hidden)
    return DenseActivations(logits, dense_weights(head, logits, top_k_on_logits=model.config.top_k_on_logits))


def _head_output(
    model: ConceptLM, head: ConceptHead, hidden: Tensor, intervention: Intervention | None, rule: Rule | None
) -> HeadOutput:
    if intervention is None:
        output: HeadOutput = head(hidden)
        return output
    return edited(head, hidden, intervention, rule=rule, top_k_on_logits=model.config.top_k_on_logits)
