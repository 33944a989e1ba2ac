"""The certificate: reported parts against a second computation in fp64 (design §5).

The residual is a difference, so parts that sum to the logit prove nothing. Here every reported part
(a_c, K_c·W_y, k̂·W_y, û·W_y, ε·W_y, and the logit that the generation pass recorded) is compared with a
dense twin: fp64, no slabs, straight from the hidden state and the stored weights. Then the largest
concepts are deleted one by one with all else held: the twin's logit must move by minus what was reported.
`Q` tokens, `C` concepts of a head, `k` of them reported per token.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from vitrail.explain.concepts import Decomposition, HeadShare
from vitrail.explain.document import Certificate
from vitrail.model import ConceptHead, ConceptLM

ROUNDING = {torch.float64: 1e-9, torch.float32: 2e-5, torch.bfloat16: 0.02, torch.float16: 0.004}
"""What rounding may cost in each dtype, relative to the largest part of a logit (at least 1)."""

LOGIT_CLAMP = 15.0
"""Logits are cut to ±15 before the sigmoid (released format)."""


@dataclass(frozen=True)
class _DenseHead:
    """One head recomputed.

    Attributes:
        embedding: [C D] all rows.
        weights: [Q C] activations, zero where a concept is not kept.
        selection_error: [Q] how far the strongest concept left out lies above the weakest one kept.
    """

    embedding: Float[Tensor, "C D"]
    weights: Float[Tensor, "Q C"]
    selection_error: Float[Tensor, " Q"]

    @property
    def features(self) -> Float[Tensor, "Q D"]:
        return self.weights @ self.embedding


@dataclass(frozen=True)
class _Twin:
    """All parts recomputed: known, discovered, residual [Q D], rows of W [Q D], logit [Q]."""

    known: _DenseHead
    discovered: _DenseHead
    residual: Float[Tensor, "Q D"]
    targets: Float[Tensor, "Q D"]

    @property
    def logit(self) -> Float[Tensor, " Q"]:
        return self.read(self.known.features + self.discovered.features + self.residual)

    def read(self, part: Float[Tensor, "Q D"]) -> Float[Tensor, " Q"]:
        return (part * self.targets).sum(-1)


def certify(
    model: ConceptLM,
    hidden: Float[Tensor, "Q D"],
    reported: Decomposition,
    generated_logits: Float[Tensor, " Q"],
    num_deletions: int = 4,
) -> Certificate:
    """Check a decomposition against a dense fp64 twin and by deletion.

    Args:
        model: the network whose weights are stored.
        hidden: [Q D] the states that were decomposed.
        reported: what is claimed.
        generated_logits: [Q] logits that the generation pass recorded, before any penalty.
        num_deletions: how many concepts of each token to delete, largest |contribution| first.

    Returns:
        the certificate; it passes where every error is within the tolerance.

    Cost: O(Q·(C + M)·D) in fp64.
    """
    with torch.no_grad():
        twin = _recompute(model, hidden, reported)
        errors = {
            "generated_logit": generated_logits - twin.logit,
            "logit": reported.logit - twin.logit,
            "residual": reported.residual - twin.read(twin.residual),
            **_head_errors("known", reported.known, twin.known, twin),
            **_head_errors("discovered", reported.discovered, twin.discovered, twin),
        }
        deletions = _deletion_errors(reported, twin, num_deletions)
    parts = {name: _largest(error) for name, error in errors.items()}
    sizes = (twin.logit, reported.known.total, reported.discovered.total, reported.residual)
    tolerance = ROUNDING[hidden.dtype] * max(1.0, *(_largest(size) for size in sizes))
    return Certificate(
        passed=max(*parts.values(), _largest(deletions)) <= tolerance,
        dtype=str(hidden.dtype).removeprefix("torch."),
        max_abs_error=max(parts.values()),
        tolerance=tolerance,
        num_tokens=len(hidden),
        deletion_max_abs_error=_largest(deletions),
        num_deletions=deletions.numel(),
        parts=parts,
    )


def _recompute(model: ConceptLM, hidden: Float[Tensor, "Q D"], reported: Decomposition) -> _Twin:
    state = hidden.double()
    known = _dense(model.known_head, state, reported.known)
    discovered = _dense(model.unknown_head, state, reported.discovered)
    residual = state - known.features - discovered.features
    if not model.has_residual:
        residual = torch.zeros_like(residual)
    targets = model.transformer.lm_head.weight[reported.token_ids].double()
    return _Twin(known, discovered, residual, targets)


def _dense(head: ConceptHead, state: Float[Tensor, "Q D"], reported: HeadShare) -> _DenseHead:
    """The head from its stored weights, all concepts at once, in fp64.

    The concepts reported are kept, then the strongest of the rest; that the choice was right is an error
    of its own, so that a tie within rounding can fall either way.
    """
    count = head.num_concepts
    if count == 0:
        return _DenseHead(
            state.new_zeros(0, state.shape[1]), state.new_zeros(len(state), 0), state.new_zeros(len(state))
        )
    stored = {name: weight.double() for name, weight in head.named_parameters()}
    embedding = _embedding(stored)[:count]
    activations = _logits(stored, state, embedding)[:, :count].clamp(-LOGIT_CLAMP, LOGIT_CLAMP).sigmoid()
    is_reported = torch.zeros_like(activations).scatter(1, reported.ids, 1.0)
    order = (activations + is_reported).argsort(1, descending=True)
    num_kept = min(head.selection.summed or count, count)
    is_kept = torch.zeros_like(activations).scatter(1, order[:, :num_kept], 1.0).bool()
    weakest = activations.masked_fill(~is_kept, torch.inf).amin(1)
    strongest = activations.masked_fill(is_kept, 0.0).amax(1)
    return _DenseHead(embedding, activations * is_kept, (strongest - weakest).clamp(min=0.0))


def _embedding(stored: dict[str, Tensor]) -> Tensor:
    if "embedding_coef.weight" in stored:
        return stored["embedding_coef.weight"] @ stored["embedding_basis.weight"].T
    return stored["concept_embedding.weight"]


def _logits(stored: dict[str, Tensor], state: Tensor, embedding: Tensor) -> Tensor:
    if "concept_query_projection.weight" in stored:
        query = state @ stored["concept_query_projection.weight"].T
        scale: float = embedding.shape[1] ** -0.5
        return scale * (query @ embedding.T)
    if "predictor_up.weight" in stored:
        return state @ stored["predictor_down.weight"].T @ stored["predictor_up.weight"].T
    return state @ stored["concept_predictor.weight"].T


def _head_errors(name: str, reported: HeadShare, dense: _DenseHead, twin: _Twin) -> dict[str, Tensor]:
    """Errors of one head: its part, its activations, its alignments, and its choice of concepts."""
    alignment = torch.einsum("qkd,qd->qk", dense.embedding[reported.ids], twin.targets)
    return {
        name: reported.total - twin.read(dense.features),
        f"{name}_weight": reported.weights - dense.weights.gather(1, reported.ids),
        f"{name}_alignment": reported.alignment - alignment,
        f"{name}_selection": dense.selection_error,
    }


def _deletion_errors(reported: Decomposition, twin: _Twin, num_deletions: int) -> Float[Tensor, "Q n"]:
    """Measured movement of each logit plus the contribution that was reported for the deleted concept."""
    shares = (reported.known, reported.discovered)
    heads = (twin.known, twin.discovered)
    contribution = torch.cat([share.contribution.double() for share in shares], dim=1)
    ids = torch.cat([share.ids for share in shares], dim=1)
    num_known = reported.known.ids.shape[1]
    chosen = contribution.abs().topk(min(num_deletions, contribution.shape[1]), dim=1).indices
    errors = torch.zeros(chosen.shape, dtype=torch.float64, device=contribution.device)
    logit, features = twin.logit, [head.features for head in heads]
    for q in range(len(chosen)):
        for number, slot in enumerate(chosen[q].tolist()):
            of = 0 if slot < num_known else 1
            weights = heads[of].weights[q].clone()
            weights[ids[q, slot]] = 0.0
            edited = weights @ heads[of].embedding + features[1 - of][q] + twin.residual[q]
            errors[q, number] = edited @ twin.targets[q] - logit[q] + contribution[q, slot]
    return errors


def _largest(values: Tensor) -> float:
    return float(values.abs().max()) if values.numel() else 0.0
