"""The certificate: reported parts against a second computation in fp64 (design §5).

The residual is a difference, so parts that sum to the logit prove nothing. Here every reported part
(a_c, K_c·W_y, k̂·W_y, û·W_y, ε·W_y, and the logit that the generation pass recorded) is compared with a
dense twin: fp64, straight from the hidden state and the stored weights, through none of the heads' own code. Then
the largest concepts are deleted one by one with all else held: the twin's logit must move by minus what was reported.

Every concept's activation is recomputed; embedding rows are made in fp64 only where they are summed or reported.
`Q` tokens, `C` concepts of a head, `k` of them reported per token, `n` kept, `m` deleted one at a time, `s` at once.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional

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
        features: [Q D] its part of the state.
        edited: [Q m D] the same, each time with the activation of one deleted concept zero.
        weights: [Q k] activations of the reported concepts, zero where a concept is not kept.
        alignment: [Q k] their rows' products with the token's row of W.
        selection_error: [Q] how far the strongest concept left out lies above the weakest one kept.
    """

    features: Float[Tensor, "Q D"]
    edited: Float[Tensor, "Q m D"]
    weights: Float[Tensor, "Q k"]
    alignment: Float[Tensor, "Q k"]
    selection_error: Float[Tensor, " Q"]


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

    def read_edited(self) -> Float[Tensor, "Q m"]:
        """Logits after each deletion, which leaves the other head and the residual as they were."""
        edited = self.known.edited + self.discovered.edited + self.residual[:, None]
        return torch.einsum("qmd,qd->qm", edited, self.targets)


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

    Cost: O(Q·(C + M)·D) in fp64; memory for a slab of logits and of rows, never for all concepts.
    """
    with torch.no_grad():
        deleted = _largest_contributions(reported, num_deletions)
        twin = _recompute(model, hidden, reported, deleted)
        errors = {
            "generated_logit": generated_logits - twin.logit,
            "logit": reported.logit - twin.logit,
            "residual": reported.residual - twin.read(twin.residual),
            **_head_errors("known", reported.known, twin.known, twin),
            **_head_errors("discovered", reported.discovered, twin.discovered, twin),
        }
        deletions = twin.read_edited() - twin.logit[:, None] + deleted.contribution
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


@dataclass(frozen=True)
class _Deletions:
    """What is deleted, one concept at a time: its id in the head that it belongs to, -1 in the other."""

    known: Int[Tensor, "Q m"]
    discovered: Int[Tensor, "Q m"]
    contribution: Float[Tensor, "Q m"]


def _largest_contributions(reported: Decomposition, count: int) -> _Deletions:
    known, discovered = reported.known, reported.discovered
    contribution = torch.cat((known.contribution, discovered.contribution), dim=1).double()
    chosen = contribution.abs().topk(min(count, contribution.shape[1]), dim=1).indices
    no_known, no_discovered = torch.full_like(known.ids, -1), torch.full_like(discovered.ids, -1)
    return _Deletions(
        known=torch.cat((known.ids, no_discovered), dim=1).gather(1, chosen),
        discovered=torch.cat((no_known, discovered.ids), dim=1).gather(1, chosen),
        contribution=contribution.gather(1, chosen),
    )


def _recompute(model: ConceptLM, hidden: Float[Tensor, "Q D"], reported: Decomposition, deleted: _Deletions) -> _Twin:
    state = hidden.double()
    targets = model.transformer.lm_head.weight[reported.token_ids].double()
    known = _dense(model.known_head, state, targets, reported.known, deleted.known)
    discovered = _dense(model.unknown_head, state, targets, reported.discovered, deleted.discovered)
    residual = state - known.features - discovered.features
    if not model.has_residual:
        residual = torch.zeros_like(residual)
    return _Twin(known, discovered, residual, targets)


def _dense(
    head: ConceptHead,
    state: Float[Tensor, "Q D"],
    targets: Float[Tensor, "Q D"],
    reported: HeadShare,
    deleted: Int[Tensor, "Q m"],
) -> _DenseHead:
    """The head from its stored weights in fp64; a head without top-k keeps every concept."""
    rows = _StoredRows.of(head, state)
    num_kept = min(head.selection.summed or rows.count, rows.count)
    if num_kept < rows.count:
        kept, activations, selection_error = _choose(rows, reported.ids, num_kept)
        is_kept = (reported.ids[:, :, None] == kept[:, None]).any(-1)
        pieces = _rows_of_each_token(rows, kept, activations)
    else:
        is_kept, selection_error = torch.ones_like(reported.ids, dtype=torch.bool), state.new_zeros(len(state))
        pieces = _all_rows(rows)
    weights, alignment = torch.zeros_like(is_kept, dtype=state.dtype), torch.zeros_like(is_kept, dtype=state.dtype)
    for q, ids in enumerate(reported.ids):
        weights[q] = rows.activations(ids, slice(q, q + 1))[0]
        alignment[q] = rows.embedding(ids) @ targets[q]
    nothing_then_each = functional.pad(deleted, (1, 0), value=-1)
    sums = state.new_zeros(*nothing_then_each.shape, state.shape[1])
    for tokens, ids, activations, embedding in pieces:
        is_left = nothing_then_each[tokens, :, None] != ids
        sums[tokens] += (activations[:, None] * is_left) @ embedding
    return _DenseHead(sums[:, 0], sums[:, 1:], weights * is_kept, alignment, selection_error)


@dataclass(frozen=True)
class _StoredRows:
    """One head's concepts, turned to fp64 as they are read.

    Attributes:
        count: C; rows beyond it are padding.
        slab: concepts at a time where all are read.
        query: [Q p] what keys are multiplied with.
        keys: [R p] as stored.
        values: [R q] as stored: rows of the embedding, or their coefficients.
        basis: [D q] what coefficients are multiplied with.
    """

    count: int
    slab: int
    query: Float[Tensor, "Q p"]
    keys: Tensor
    values: Tensor
    basis: Float[Tensor, "D q"] | None

    @classmethod
    def of(cls, head: ConceptHead, state: Float[Tensor, "Q D"]) -> "_StoredRows":
        stored = dict(head.named_parameters())
        none = state.new_zeros(0, state.shape[1])
        query, basis = state, None
        values = keys = stored.get("concept_embedding.weight", none)
        if "embedding_coef.weight" in stored:
            values = keys = stored["embedding_coef.weight"]
            basis = stored["embedding_basis.weight"].double()
        if "concept_query_projection.weight" in stored:
            query = state @ stored["concept_query_projection.weight"].double().T * state.shape[1] ** -0.5
            query = query if basis is None else query @ basis
        elif "predictor_up.weight" in stored:
            query, keys = state @ stored["predictor_down.weight"].double().T, stored["predictor_up.weight"]
        else:
            keys = stored.get("concept_predictor.weight", none)
        return cls(head.num_concepts, head.slab, query, keys, values, basis)

    def activations(self, ids: Int[Tensor, " s"], tokens: slice = slice(None)) -> Float[Tensor, "Q s"]:
        logits = self.query[tokens] @ self.keys[ids].double().T
        return logits.clamp(-LOGIT_CLAMP, LOGIT_CLAMP).sigmoid()

    def embedding(self, ids: Int[Tensor, " s"]) -> Float[Tensor, "s D"]:
        rows = self.values[ids].double()
        return rows if self.basis is None else rows @ self.basis.T

    def slabs(self) -> Iterator[Int[Tensor, " s"]]:
        for start in range(0, self.count, self.slab):
            yield torch.arange(start, min(start + self.slab, self.count), device=self.query.device)


def _choose(
    rows: _StoredRows, reported: Int[Tensor, "Q k"], num_kept: int
) -> tuple[Int[Tensor, "Q n"], Float[Tensor, "Q n"], Float[Tensor, " Q"]]:
    """The concepts kept, their activations, and the error of the choice.

    The concepts reported are kept, then the strongest of the rest; that the choice was right is an error
    of its own, so that a tie within rounding can fall either way.
    """
    num_tokens = len(reported)
    # An activation lies below 1, so that plus 1 puts a reported concept before all others, and can be told.
    best = rows.query.new_empty(num_tokens, 0)
    kept = reported.new_empty(num_tokens, 0)
    strongest = rows.query.new_zeros(num_tokens)
    for ids in rows.slabs():
        slot = reported - ids[0]
        slot = torch.where((slot >= 0) & (slot < len(ids)), slot, len(ids))
        is_reported = best.new_zeros(num_tokens, len(ids) + 1).scatter(1, slot, 1.0)[:, :-1]
        found = torch.cat((best, rows.activations(ids) + is_reported), dim=1)
        index = found.topk(min(num_kept, found.shape[1]), dim=1).indices
        strongest = torch.maximum(strongest, _activation(found).scatter(1, index, 0.0).amax(1))
        best, kept = found.gather(1, index), torch.cat((kept, ids.expand(num_tokens, -1)), dim=1).gather(1, index)
    activations = _activation(best)
    return kept, activations, (strongest - activations.amin(1)).clamp(min=0.0)


def _activation(rank: Tensor) -> Tensor:
    return torch.where(rank >= 1, rank - 1, rank)


_Piece = tuple[slice, Int[Tensor, " s"], Float[Tensor, "t s"], Float[Tensor, "s D"]]
"""Some tokens, concepts that all of them keep, their activations and embedding rows."""


def _rows_of_each_token(
    rows: _StoredRows, kept: Int[Tensor, "Q n"], activations: Float[Tensor, "Q n"]
) -> Iterator[_Piece]:
    for q, ids in enumerate(kept):
        yield slice(q, q + 1), ids, activations[q, None], rows.embedding(ids)


def _all_rows(rows: _StoredRows) -> Iterator[_Piece]:
    for ids in rows.slabs():
        yield slice(None), ids, rows.activations(ids), rows.embedding(ids)


def _head_errors(name: str, reported: HeadShare, dense: _DenseHead, twin: _Twin) -> dict[str, Tensor]:
    """Errors of one head: its part, its activations, its alignments, and its choice of concepts."""
    return {
        name: reported.total - twin.read(dense.features),
        f"{name}_weight": reported.weights - dense.weights,
        f"{name}_alignment": reported.alignment - dense.alignment,
        f"{name}_selection": dense.selection_error,
    }


def _largest(values: Tensor) -> float:
    return float(values.abs().max()) if values.numel() else 0.0
