"""Sums over concepts that never hold all activations at once.

One kernel serves dense and factorised heads, because both give, for concept c, a logit `query · keys_c` and
add `sigmoid(clamp(logit)) · values_c`. Concepts come in slabs of rows; the backward recomputes each slab.

`query` may be wider than `keys`; products then run in its dtype.

Letters: n positions (flat), C concepts, p width of query and keys, q width of values, k kept per position.
Where C fits one slab, `plain_*` does the same with ordinary operations, which is faster.
"""

from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor
from torch.autograd.function import once_differentiable

CLAMP = 15.0
Rank = Callable[[Tensor], Tensor]


def wide(dtype: torch.dtype) -> torch.dtype:
    """The dtype in which logits and sigmoids are computed: at least fp32.

    Args:
        dtype: dtype of the parameters.

    Returns:
        `dtype` or fp32, whichever is wider.
    """
    return torch.promote_types(dtype, torch.float32)


def clamped_logits(query: Float[Tensor, "n p"], keys: Float[Tensor, "S p"]) -> Float[Tensor, "n S"]:
    """Logits in [−15, 15], at least fp32.

    Args:
        query: positions.
        keys: rows of concepts.

    Returns:
        clamp(query · keys).
    """
    return (query @ keys.T.to(query.dtype)).to(wide(query.dtype)).clamp(-CLAMP, CLAMP)


def slabs(num_rows: int, slab: int) -> Iterator[slice]:
    """Consecutive stretches of at most `slab` rows.

    Args:
        num_rows: rows in all.
        slab: rows at a time.

    Yields:
        slices that cover 0..num_rows-1 in order.
    """
    for start in range(0, num_rows, slab):
        yield slice(start, min(start + slab, num_rows))


@torch.no_grad()
def best_concepts(
    query: Float[Tensor, "n p"], keys: Float[Tensor, "C p"], k: int, slab: int, rank: Rank
) -> Int[Tensor, "n k2"]:
    """The k best concepts of each position, best first.

    Args:
        query: positions.
        keys: rows of concepts.
        k: how many to keep; fewer where C < k.
        slab: concepts at a time.
        rank: ranking value of clamped logits (they themselves, or their sigmoids).

    Returns:
        concept ids, descending by ranking value; the order of ties is unspecified.
    """
    best = query.new_empty((len(query), 0), dtype=wide(query.dtype))
    ids = query.new_empty((len(query), 0), dtype=torch.int64)
    for rows in slabs(len(keys), slab):
        value = rank(clamped_logits(query, keys[rows]))
        value, index = value.topk(min(k, value.shape[1]))
        best, ids = torch.cat((best, value), dim=1), torch.cat((ids, index + rows.start), dim=1)
        best, order = best.topk(min(k, best.shape[1]))
        ids = ids.gather(1, order)
    return ids


def selected_logits(
    query: Float[Tensor, "n p"], keys: Float[Tensor, "C p"], ids: Int[Tensor, "n k"], slab: int
) -> Float[Tensor, "n k"]:
    """Clamped logits of chosen concepts, recomputed in at least fp32 from the stored operands.

    Args:
        query: positions.
        keys: rows of concepts.
        ids: chosen concepts of each position.
        slab: rows of `keys` gathered at a time.

    Returns:
        clamp(query · keys[ids]).
    """
    picked: Tensor = _SelectedDot.apply(query, keys, ids, slab)  # type: ignore[no-untyped-call]
    return picked.clamp(-CLAMP, CLAMP)


def selected_sum(
    weights: Float[Tensor, "n k"], values: Float[Tensor, "C q"], ids: Int[Tensor, "n k"]
) -> Float[Tensor, "n q"]:
    """Weighted sum of chosen rows, without gathering [n k q].

    Args:
        weights: weight of each chosen concept; rounded to the dtype of `values`.
        values: rows of concepts.
        ids: chosen concepts of each position.

    Returns:
        Σ_k weights · values[ids].
    """
    return F.embedding_bag(ids, values, per_sample_weights=weights.to(values.dtype), mode="sum")


def streamed_sum(
    query: Float[Tensor, "n p"], keys: Float[Tensor, "C p"], values: Float[Tensor, "C q"], slab: int
) -> Float[Tensor, "n q"]:
    """Sum over all concepts of sigmoid(clamp(query · keys_c)) · values_c.

    Args:
        query: positions.
        keys: rows of concepts.
        values: rows of concepts.
        slab: concepts at a time.

    Returns:
        the sum. Cost: O(n·C·(p+q)) time, O(n·slab) memory beyond inputs and gradients.
    """
    output: Tensor = _StreamedSum.apply(query, keys, values, slab)  # type: ignore[no-untyped-call]
    return output


def plain_sum(
    query: Float[Tensor, "n p"], keys: Float[Tensor, "C p"], values: Float[Tensor, "C q"]
) -> Float[Tensor, "n q"]:
    """`streamed_sum` with all activations at once.

    Args:
        query: positions.
        keys: rows of concepts.
        values: rows of concepts.

    Returns:
        the same sum.
    """
    return clamped_logits(query, keys).sigmoid().to(values.dtype) @ values


def plain_selected_sum(
    query: Float[Tensor, "n p"], keys: Float[Tensor, "C p"], values: Float[Tensor, "C q"], k: int, rank: Rank
) -> tuple[Float[Tensor, "n q"], Int[Tensor, "n k2"], Float[Tensor, "n k2"]]:
    """The sum over each position's k best concepts, with all activations at once.

    Args:
        query: positions.
        keys: rows of concepts.
        values: rows of concepts.
        k: concepts to keep; fewer where C < k.
        rank: ranking value of clamped logits.

    Returns:
        the sum, the ids and the clamped logits, best first.
    """
    dtype = wide(query.dtype)
    logits = clamped_logits(query.to(dtype), keys.to(dtype))
    ids = rank(logits.detach()).topk(min(k, len(keys))).indices
    picked = logits.gather(1, ids)
    weights = torch.zeros_like(logits).scatter(1, ids, picked.sigmoid())
    return weights.to(values.dtype) @ values, ids, picked


class _StreamedSum(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, query: Tensor, keys: Tensor, values: Tensor, slab: int) -> Tensor:
        ctx.save_for_backward(query, keys, values)
        ctx.slab = slab
        output = values.new_zeros(len(query), values.shape[1])
        for rows in slabs(len(keys), slab):
            output += clamped_logits(query, keys[rows]).sigmoid().to(values.dtype) @ values[rows]
        return output

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor, Tensor, None]:
        query, keys, values = ctx.saved_tensors
        (grad,) = grads
        grad_query = torch.zeros_like(query)
        grad_keys, grad_values = torch.empty_like(keys), torch.empty_like(values)
        for rows in slabs(len(keys), ctx.slab):
            logits = clamped_logits(query, keys[rows])
            weights = logits.sigmoid()
            grad_values[rows] = weights.to(grad.dtype).T @ grad
            # The clamp passes gradient inside its bounds only (logits at the bound are taken as outside).
            slope = weights * (1 - weights) * (logits.abs() < CLAMP)
            grad_logits = (slope * (grad @ values[rows].T)).to(query.dtype)
            grad_query += grad_logits @ keys[rows].to(query.dtype)
            grad_keys[rows] = grad_logits.T @ query
        return grad_query, grad_keys, grad_values, None


class _SelectedDot(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, query: Tensor, keys: Tensor, ids: Tensor, slab: int) -> Tensor:
        ctx.save_for_backward(query, keys, ids)
        ctx.step = max(1, slab // max(1, ids.shape[1]))
        dtype = wide(query.dtype)
        parts = [
            torch.einsum("np,nkp->nk", query[part].to(dtype), keys[ids[part]].to(dtype))
            for part in slabs(len(query), ctx.step)
        ]
        return torch.cat(parts) if parts else ids.new_empty(ids.shape, dtype=dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor, None, None]:
        query, keys, ids = ctx.saved_tensors
        grad = grads[0].to(keys.dtype)
        grad_keys = torch.zeros_like(keys)
        for part in slabs(len(query), ctx.step):
            outer = grad[part, :, None] * query[part, None, :].to(keys.dtype)
            grad_keys.index_add_(0, ids[part].flatten(), outer.flatten(0, 1))
        return selected_sum(grad, keys, ids).to(query.dtype), grad_keys, None, None
