"""The exact decomposition of every generated token's logit into concepts (§5.3, §6.1.2).

    logit_y = Σ_c a_c K_c·W_y + Σ_j a'_j U_j·W_y + ρ ε·W_y

computed from the hidden state of the snapshot in which the token was chosen. A *centred* contribution is
minus its mean over the vocabulary: softmax ignores what lifts all tokens alike. `Q` tokens explained, `k`
concepts kept per token in one head.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from vitrail.model import ConceptHead, ConceptLM

NUM_LISTED = 64
"""Concepts listed of a head without top-k, which sums all of them."""


@dataclass(frozen=True)
class HeadShare:
    """What one head adds to Q logits.

    Attributes:
        ids: [Q k] concepts that make up the part, by activation (the best 64 of a head without top-k).
        weights: [Q k] activations a_c, fp32.
        alignment: [Q k] K_c·W_y.
        common: [Q k] K_c·W averaged over the vocabulary.
        total: [Q] the whole head's part k̂·W_y, listed concepts or not.
        total_common: [Q] k̂·W averaged over the vocabulary.
    """

    ids: Int[Tensor, "Q k"]
    weights: Float[Tensor, "Q k"]
    alignment: Float[Tensor, "Q k"]
    common: Float[Tensor, "Q k"]
    total: Float[Tensor, " Q"]
    total_common: Float[Tensor, " Q"]

    @property
    def contribution(self) -> Float[Tensor, "Q k"]:
        """[Q k] signed contributions in logits."""
        return self.weights * self.alignment

    @property
    def centred(self) -> Float[Tensor, "Q k"]:
        """[Q k] contributions minus their mean over the vocabulary."""
        return self.weights * (self.alignment - self.common)


@dataclass(frozen=True)
class Decomposition:
    """The parts of Q logits; `known.total + discovered.total + residual` is the logit.

    Attributes:
        token_ids: [Q] the tokens y.
        logit: [Q] composed·W_y.
        known: the named concepts.
        discovered: the unnamed ones; without slots where the model has none.
        residual: [Q] what entered the logit from outside the concepts.
        residual_common: [Q] its mean over the vocabulary.
    """

    token_ids: Int[Tensor, " Q"]
    logit: Float[Tensor, " Q"]
    known: HeadShare
    discovered: HeadShare
    residual: Float[Tensor, " Q"]
    residual_common: Float[Tensor, " Q"]


def decompose_tokens(model: ConceptLM, hidden: Float[Tensor, "Q D"], token_ids: Int[Tensor, " Q"]) -> Decomposition:
    """Decompose the logits of chosen tokens.

    Args:
        model: the network.
        hidden: [Q D] states after the final norm, at the snapshots of commitment.
        token_ids: [Q] the tokens that were chosen there.

    Returns:
        the parts, fp32 (fp64 for an fp64 model).

    Cost: O(Q·(C + M)·D), streamed over the concepts.
    """
    with torch.no_grad():
        out = model.decompose(hidden[None], with_logits=False)
        words = model.transformer.lm_head.weight
        share = _Shares(hidden, _exact(words[token_ids]), _exact(words).mean(0))
        residual, residual_common = share.of(out.residual[0])
        return Decomposition(
            token_ids=token_ids,
            logit=share.of(out.composed[0])[0],
            known=share.of_head(model.known_head, out.known[0]),
            discovered=share.of_head(model.unknown_head, out.discovered[0]),
            residual=residual,
            residual_common=residual_common,
        )


@dataclass(frozen=True)
class _Shares:
    """Reads parts of composed states off against the tokens' rows of W and the mean row."""

    hidden: Float[Tensor, "Q D"]
    targets: Float[Tensor, "Q D"]
    mean: Float[Tensor, " D"]

    def of(self, part: Float[Tensor, "Q D"]) -> tuple[Float[Tensor, " Q"], Float[Tensor, " Q"]]:
        part = _exact(part)
        return (part * self.targets).sum(-1), part @ self.mean

    def of_head(self, head: ConceptHead, part: Float[Tensor, "Q D"]) -> HeadShare:
        total, total_common = self.of(part)
        if head.num_concepts == 0:
            none = total.new_zeros(len(total), 0)
            return HeadShare(none.long(), none, none, none, total, total_common)
        kept = head.features(self.hidden, min(head.selection.summed or NUM_LISTED, head.num_concepts))
        return HeadShare(
            ids=kept.ids,
            weights=torch.sigmoid(_exact(kept.logits)),
            alignment=head.dots_for(self.targets, kept.ids),
            common=head.dots_for(self.mean.expand_as(self.targets), kept.ids),
            total=total,
            total_common=total_common,
        )


def _exact(x: Tensor) -> Tensor:
    """At least fp32: contributions are read off, not rounded to the model's dtype."""
    return x if x.dtype == torch.float64 else x.float()
