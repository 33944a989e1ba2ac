"""Sums over concepts that never hold all activations at once.

One kernel serves all heads, because each gives a `Table` of rows: for concept c a logit `query · keys_c`, and
`sigmoid(clamp(logit)) · values_c` to be summed. A dense head puts full rows there; a factorised one rows of its
rank, and multiplies query and sum with its shared factors outside. Concepts come in slabs of rows; the backward
recomputes each slab.

`query` may be wider than `keys`; products then run in its dtype.

Letters: n positions (flat), C concepts, R ≥ C rows of a table, p width of query and keys, q width of values,
k kept per position.

Memory beyond inputs, gradients and results: a few times n·slab (logits of a slab) + slab·max(p, q) (rows of a
slab, or as many gathered ones) numbers in at least fp32, whatever C.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor
from torch.autograd.function import once_differentiable

CLAMP = 15.0
Rank = Callable[[Tensor], Tensor]


@dataclass(frozen=True, eq=False)
class Table:
    """A concept embedding as the kernel reads it.

    Attributes:
        keys: [R p] rows that give the logits; those beyond `count` are padding and never read.
        values: [R q] rows that are summed; may be `keys` itself.
        count: C. The padding is not sliced off, since a slice costs a second copy of the gradient.
        slab: concepts at a time.
    """

    keys: Float[Tensor, "R p"]
    values: Float[Tensor, "R q"]
    count: int
    slab: int


def wide(dtype: torch.dtype) -> torch.dtype:
    """The dtype in which logits and sigmoids are computed: at least fp32.

    Args:
        dtype: dtype of the parameters.

    Returns:
        `dtype` or fp32, whichever is wider.
    """
    return torch.promote_types(dtype, torch.float32)


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
    query: Float[Tensor, "n p"], table: Table, k: int, rank: Rank
) -> tuple[Int[Tensor, "n k2"], Float[Tensor, "n k2"]]:
    """The k best concepts of each position, best first.

    Args:
        query: positions.
        table: rows of concepts.
        k: how many to keep; fewer where C < k.
        rank: ranking value of clamped logits (they themselves, or their sigmoids).

    Returns:
        concept ids, descending by ranking value, the order of ties unspecified; and their unclamped logits as
        this search saw them.
    """
    best = query.new_empty((len(query), 0), dtype=wide(query.dtype))
    ids = query.new_empty((len(query), 0), dtype=torch.int64)
    for rows in slabs(table.count, table.slab):
        logits = _logits(query, table.keys[rows])
        index = rank(_clamped(logits)).topk(min(k, logits.shape[1])).indices
        best = torch.cat((best, logits.gather(1, index)), dim=1)
        ids = torch.cat((ids, index + rows.start), dim=1)
        order = rank(_clamped(best)).topk(min(k, best.shape[1])).indices
        best, ids = best.gather(1, order), ids.gather(1, order)
    return ids, best


def selected_logits(
    query: Float[Tensor, "n p"],
    table: Table,
    ids: Int[Tensor, "n k"],
    found: Float[Tensor, "n k"] | None = None,
) -> Float[Tensor, "n k"]:
    """Clamped logits of chosen concepts, in at least fp32 from the stored operands.

    Args:
        query: positions.
        table: rows of concepts.
        ids: chosen concepts of each position.
        found: logits that `best_concepts` saw; taken over where it computed in that precision.

    Returns:
        clamp(query · keys[ids]).
    """
    if found is not None and table.keys.dtype != wide(table.keys.dtype):
        found = None
    picked: Tensor = _SelectedDot.apply(query, table.keys, ids, found, table.slab)  # type: ignore[no-untyped-call]
    return _clamped(picked)


def selected_sum(weights: Float[Tensor, "n k"], table: Table, ids: Int[Tensor, "n k"]) -> Float[Tensor, "n q"]:
    """Weighted sum of chosen rows, without gathering [n k q].

    Args:
        weights: weight of each chosen concept; rounded to the dtype of `values`.
        table: rows of concepts.
        ids: chosen concepts of each position.

    Returns:
        Σ_k weights · values[ids].
    """
    return _bag(weights, table.values, ids)


def selected_dots(vectors: Float[Tensor, "n q"], table: Table, ids: Int[Tensor, "n k"]) -> Float[Tensor, "n k"]:
    """Products of chosen rows with one vector for each position, without gathering [n k q].

    Args:
        vectors: one for each position.
        table: rows of concepts.
        ids: chosen concepts of each position.

    Returns:
        vectors · values[ids], at least fp32.
    """
    dots: Tensor = _SelectedDot.apply(vectors, table.values, ids, None, table.slab)  # type: ignore[no-untyped-call]
    return dots


def streamed_sum(query: Float[Tensor, "n p"], table: Table) -> Float[Tensor, "n q"]:
    """Sum over all concepts of sigmoid(clamp(query · keys_c)) · values_c.

    Args:
        query: positions.
        table: rows of concepts.

    Returns:
        the sum, added up in at least fp32, in the dtype of `values`. Cost: O(n·C·(p+q)) time.
    """
    output: Tensor = _StreamedSum.apply(  # type: ignore[no-untyped-call]
        query, table.keys, table.values, table.count, table.slab
    )
    return output


def _logits(query: Tensor, keys: Tensor) -> Tensor:
    return (query @ keys.T.to(query.dtype)).to(wide(query.dtype))


def _clamped(logits: Tensor) -> Tensor:
    return logits.clamp(-CLAMP, CLAMP)


def _bag(weights: Tensor, rows: Tensor, ids: Tensor) -> Tensor:
    if ids.shape[1] == 0:
        return rows.new_zeros(len(ids), rows.shape[1])
    return F.embedding_bag(ids, rows, per_sample_weights=weights.to(rows.dtype), mode="sum")


class _StreamedSum(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, query: Tensor, keys: Tensor, values: Tensor, count: int, slab: int) -> Tensor:
        ctx.save_for_backward(query, keys, values)
        ctx.count, ctx.slab = count, slab
        output = values.new_zeros(len(query), values.shape[1], dtype=wide(values.dtype))
        for rows in slabs(count, slab):
            output += _clamped(_logits(query, keys[rows])).sigmoid_().to(values.dtype) @ values[rows]
        return output.to(values.dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor, Tensor, None, None]:
        query, keys, values = ctx.saved_tensors
        (grad,) = grads
        grad_query = torch.zeros_like(query, dtype=wide(query.dtype))
        grad_keys, grad_values = torch.empty_like(keys), torch.empty_like(values)
        for rows in slabs(ctx.count, ctx.slab):
            logits = _logits(query, keys[rows])
            weights = _clamped(logits).sigmoid_()
            grad_values[rows] = weights.to(grad.dtype).T @ grad
            # The clamp passes gradient inside its bounds only (logits at the bound are taken as outside).
            slope = weights.mul_(1 - weights).mul_(logits.abs_() < CLAMP)
            grad_logits = slope.mul_(grad @ values[rows].T).to(query.dtype)
            grad_query += grad_logits @ keys[rows].to(query.dtype)
            grad_keys[rows] = (grad_logits.T @ query).to(keys.dtype)
        grad_keys[ctx.count :], grad_values[ctx.count :] = 0, 0
        return grad_query.to(query.dtype), grad_keys, grad_values, None, None


class _SelectedDot(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, query: Tensor, keys: Tensor, ids: Tensor, found: Tensor | None, slab: int) -> Tensor:
        ctx.save_for_backward(query, keys, ids)
        # As many positions at a time as gather one slab of rows.
        ctx.step = max(1, slab // max(1, ids.shape[1]))
        if found is not None:
            return found.clone()
        dtype = wide(query.dtype)
        dots = query.new_empty(ids.shape, dtype=dtype)
        for part in slabs(len(query), ctx.step):
            rows = F.embedding(ids[part], keys).to(dtype)
            dots[part] = (rows @ query[part, :, None].to(dtype))[..., 0]
        return dots

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor, None, None, None]:
        query, keys, ids = ctx.saved_tensors
        grad = grads[0].to(keys.dtype)
        grad_keys = torch.zeros_like(keys)
        for part in slabs(len(query), ctx.step):
            outer = grad[part, :, None] * query[part, None, :].to(keys.dtype)
            grad_keys.index_add_(0, ids[part].flatten(), outer.flatten(0, 1))
        return _bag(grad, keys, ids).to(query.dtype), grad_keys, None, None, None
