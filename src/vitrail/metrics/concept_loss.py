"""The chunk concept loss: one function for training and for the metric (§5.4.1, reported Eq. 9-10).

A label says "this concept is somewhere in the chunk". The *unclamped* logits z of a chunk's tokens are
aggregated into one logit per chunk and concept, and binary cross-entropy is taken against the labels.
Special tokens and padding carry chunk number -1 and take no part. The library is walked in slabs, so
that nothing of size [B, T, C] is held when C exceeds the slab, forward or backward.

Letters: `n` = B·T flat tokens, `J` chunks in the batch, `S` concepts of one slab, `C` all concepts.
"""

from collections.abc import Callable, Iterator
from typing import Literal, Protocol, runtime_checkable

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

Aggregation = Literal["log_mean_exp", "max", "noisy_or"]


@runtime_checkable
class ConceptLogits(Protocol):
    """Anything that gives unclamped concept logits for a slab of the library (a concept head)."""

    num_concepts: int

    def logits(self, hidden: Tensor, slab: slice, /) -> Tensor:
        """[B T S] unclamped logits of the concepts in `slab`."""


def aggregate_chunks(
    logits: Float[Tensor, "n S"], chunk: Int[Tensor, " n"], num_chunks: int, how: Aggregation
) -> Float[Tensor, "J S"]:
    """One logit per chunk and concept from the logits of the chunk's tokens (§5.4.1).

    Args:
        logits: [n S] unclamped token logits.
        chunk: [n] chunk number 0..J-1 of each token; -1 marks tokens that take no part.
        num_chunks: J. Every chunk needs at least one token.
        how: `noisy_or` has log(1 - p) = -sum softplus(z) (the paper's soft OR); `max` takes the largest z;
            `log_mean_exp` takes log mean exp z (chosen: noisy-or over a long chunk starves each token).

    Returns:
        [J S] fp32 (fp64 for fp64 input); its sigmoid is the probability that the chunk carries the concept.
    """
    inside = chunk >= 0
    z = logits[inside]
    z = z if z.dtype == torch.float64 else z.float()
    chunk = chunk[inside]
    if how == "noisy_or":
        absent = z.new_zeros(num_chunks, z.shape[1]).index_add(0, chunk, functional.softplus(z))
        absent = absent.clamp_min(torch.finfo(z.dtype).tiny)
        return absent + torch.log(-torch.expm1(-absent))
    peak = _peak(z, chunk, num_chunks, how)
    if how == "max":
        return peak
    scaled = torch.exp(z - peak[chunk])
    total = z.new_zeros(num_chunks, z.shape[1]).index_add(0, chunk, scaled)
    size = torch.bincount(chunk, minlength=num_chunks).to(z.dtype)
    return peak + torch.log(total) - torch.log(size)[:, None]


def chunk_concept_logits(
    head: ConceptLogits,
    hidden: Float[Tensor, "B T D"],
    chunk: Int[Tensor, "B T"],
    num_chunks: int,
    *,
    how: Aggregation,
    slab_size: int = 4096,
) -> Iterator[tuple[slice, Float[Tensor, "J S"]]]:
    """Aggregated logits of every concept, slab by slab.

    Args:
        head: gives unclamped token logits of a slab.
        hidden: [B T D] final hidden states.
        chunk: [B T] chunk numbers, -1 outside.
        num_chunks: J.
        how: see `aggregate_chunks`.
        slab_size: concepts at a time; with more than one slab the token logits are recomputed in backward.

    Yields:
        the slab and its [J S] logits.
    """
    flat = chunk.flatten()

    def of_slab(states: Tensor, slab: slice) -> Tensor:
        return aggregate_chunks(head.logits(states, slab).flatten(0, 1), flat, num_chunks, how)

    for start in range(0, head.num_concepts, slab_size):
        slab = slice(start, min(start + slab_size, head.num_concepts))
        if head.num_concepts > slab_size:
            yield slab, checkpoint(of_slab, hidden, slab, use_reentrant=False)
        else:
            yield slab, of_slab(hidden, slab)


def chunk_concept_loss(
    head: ConceptLogits,
    hidden: Float[Tensor, "B T D"],
    chunk: Int[Tensor, "B T"],
    num_chunks: int,
    label_chunk: Int[Tensor, " p"],
    label_concept: Int[Tensor, " p"],
    *,
    how: Aggregation,
    slab_size: int = 4096,
) -> tuple[Float[Tensor, ""], int]:
    """Binary cross-entropy of the chunks' labels, summed over chunks and concepts (§5.4.1, §7).

    Args:
        head: gives unclamped token logits of a slab.
        hidden: [B T D] final hidden states.
        chunk: [B T] chunk numbers 0..J-1, -1 for specials and padding.
        num_chunks: J.
        label_chunk: [p] chunk of each positive pair.
        label_concept: [p] concept of each positive pair.
        how: aggregation over the chunk's tokens.
        slab_size: concepts at a time.

    Returns:
        the sum in nats, and its count: chunks (so the mean is per chunk, summed over concepts).
    """
    total = hidden.new_zeros((), dtype=torch.float64 if hidden.dtype == torch.float64 else torch.float32)
    if num_chunks == 0:
        return total, 0
    parts = chunk_concept_logits(head, hidden, chunk, num_chunks, how=how, slab_size=slab_size)
    for slab, logits in parts:
        targets = slab_targets(label_chunk, label_concept, num_chunks, slab).to(logits.dtype)
        total = total + functional.binary_cross_entropy_with_logits(logits, targets, reduction="sum")
    return total, num_chunks


def slab_targets(
    label_row: Int[Tensor, " p"], label_concept: Int[Tensor, " p"], num_rows: int, slab: slice
) -> Float[Tensor, "J S"]:
    """Positive pairs as a dense 0/1 table of one slab of concepts.

    Args:
        label_row: [p] row (chunk or token) of each pair.
        label_concept: [p] concept of each pair.
        num_rows: J.
        slab: concepts of the table.

    Returns:
        [J S] with 1 where the pair exists.
    """
    table = torch.zeros(num_rows, slab.stop - slab.start, device=label_row.device)
    inside = (label_concept >= slab.start) & (label_concept < slab.stop)
    table[label_row[inside], label_concept[inside] - slab.start] = 1.0
    return table


def prior_loss(positives: Float[Tensor, " C"], num_chunks: int) -> float:
    """BCE per chunk of always answering each concept's share of chunks: the price of knowing nothing (§7).

    Args:
        positives: [C] chunks that carry each concept.
        num_chunks: J.

    Returns:
        nats per chunk, summed over concepts.
    """
    share = positives.double() / max(num_chunks, 1)
    entropy = torch.special.entr(share) + torch.special.entr(1 - share)
    return float(entropy.sum())


def _peak(z: Tensor, chunk: Tensor, num_chunks: int, how: Callable[..., Tensor] | str) -> Tensor:
    """[J S] largest logit per chunk; for log-mean-exp only a shift, so outside the gradient."""
    source = z if how == "max" else z.detach()
    peak = source.new_full((num_chunks, z.shape[1]), -torch.inf)
    return peak.scatter_reduce(0, chunk[:, None].expand_as(source), source, "amax")
