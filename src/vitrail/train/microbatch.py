"""Cutting a packed batch into micro-batches of whole sequences, with its labels.

Chunks never straddle sequences, so a micro-batch takes its sequences' chunks along, renumbered from 0.
Letters: `B` sequences, `T` tokens, `J` chunks.
"""

from collections.abc import Iterator

import torch
from jaxtyping import Bool
from torch import Tensor

from vitrail.packed import PackedBatch


def present_tokens(batch: PackedBatch, pad_id: int) -> Bool[Tensor, "B T"]:
    """True where there is a token, False at padding."""
    present: Tensor = batch.tokens != pad_id
    return present


def row_slices(num_rows: int, size: int | None) -> Iterator[slice]:
    """Slices of at most `size` sequences that cover the batch.

    Args:
        num_rows: sequences in the batch.
        size: sequences in a micro-batch, or None for all at once.

    Yields:
        half-open slices, in order.
    """
    size = size or num_rows
    for start in range(0, num_rows, size):
        yield slice(start, min(start + size, num_rows))


def cut(batch: PackedBatch, rows: slice) -> PackedBatch:
    """Some sequences of a batch with their chunks and labels.

    Args:
        batch: the whole batch.
        rows: which sequences.

    Returns:
        a batch with chunks numbered from 0. `num_bytes` is that of the whole batch (chunks' bytes are not
        kept apart).
    """
    num_rows, length = batch.tokens.shape
    if rows.start == 0 and rows.stop == num_rows:
        return batch
    own = batch.chunk[rows]
    inside = torch.unique(own[own >= 0])
    number = torch.full((batch.num_chunks + 1,), -1, device=own.device)
    number[inside] = torch.arange(len(inside), device=own.device)
    label_kept = number[batch.label_chunk] >= 0
    offset, stop = rows.start * length, rows.stop * length
    span_kept = (batch.span_pos >= offset) & (batch.span_pos < stop)
    return PackedBatch(
        tokens=batch.tokens[rows],
        loss_mask=batch.loss_mask[rows],
        chunk=number[torch.where(own >= 0, own, batch.num_chunks)],
        num_chunks=len(inside),
        label_chunk=number[batch.label_chunk[label_kept]],
        label_concept=batch.label_concept[label_kept],
        span_pos=batch.span_pos[span_kept] - offset,
        span_concept=batch.span_concept[span_kept],
        rows=batch.rows[inside],
        num_bytes=batch.num_bytes,
    )
