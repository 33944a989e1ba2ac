"""The reference's Monte-Carlo likelihood of a continuation, as its evaluation wrapper computes it.

Each draw masks some positions of the continuation (never of the context) and sums cross-entropies over
masked positions, each divided by the row's masking rate. Counts of masked positions are spread evenly over
a batch. It is an estimate, not a bound; `metrics` has the bound. `b` draws of a batch, `c` tokens of the
continuation, `T` of context and continuation, `V` vocabulary.
"""

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor

from vitrail.compat.generation import guided
from vitrail.model import ConceptLM
from vitrail.model.streaming import wide

MAX_LENGTH = 2048
"""Tokens beyond which the wrapper answers −∞."""


def draw_masks(length: int, count: int, generator: torch.Generator) -> Bool[Tensor, "b c"]:
    """Masked positions of one batch of draws.

    Args:
        length: c, tokens of the continuation.
        count: b, draws.
        generator: of the draws, on the CPU.

    Returns:
        [b c] truth values; row i holds ((round(k + i·c/b) − 1) mod c) + 1 of them, k uniform in 1..c.
    """
    first = float(torch.randint(1, length + 1, (), generator=generator))
    spread = torch.linspace(first, first + (count - 1) * (length / count), steps=count)
    num_masked = (spread.round().long() - 1) % length + 1
    is_masked = torch.arange(length) < num_masked[:, None]
    return torch.stack([row[torch.randperm(length, generator=generator)] for row in is_masked])


@torch.no_grad()
def log_likelihood(
    model: ConceptLM,
    context: Int[Tensor, " p"],
    continuation: Int[Tensor, " c"],
    *,
    generator: torch.Generator,
    num_samples: int = 128,
    batch_size: int = 32,
    cfg_scale: float = 0.0,
    max_length: int = MAX_LENGTH,
) -> float:
    """Estimated log-likelihood of a continuation.

    Args:
        model: the network.
        context: [p] token ids, may be empty.
        continuation: [c] token ids.
        generator: of the draws, on the CPU (the reference draws from the global, unseeded stream).
        num_samples: draws in all.
        batch_size: draws at a time; it changes the estimate, since counts are spread over a batch.
        cfg_scale: guidance.
        max_length: tokens beyond which the result is −∞.

    Returns:
        nats: minus the mean over batches of their losses; 0 for an empty continuation.
    """
    if not len(continuation):
        return 0.0
    row = torch.cat((context, continuation)).to(model.transformer.lm_head.weight.device)
    if len(row) > max_length:
        return -float("inf")
    losses = []
    for start in range(0, num_samples, batch_size):
        count = min(batch_size, num_samples - start)
        is_masked = draw_masks(len(continuation), count, generator).to(row.device)
        noisy = row.repeat(count, 1)
        noisy[:, len(context) :] = noisy[:, len(context) :].masked_fill(is_masked, model.config.mask_id)
        losses.append(batch_loss(model, row, noisy, is_masked.float().mean(-1), len(context), cfg_scale))
    return -float(torch.stack(losses).mean())


def rolling_log_likelihood(
    model: ConceptLM,
    tokens: Int[Tensor, " c"],
    *,
    generator: torch.Generator,
    num_samples: int = 128,
    batch_size: int = 32,
    max_length: int = MAX_LENGTH,
) -> float:
    """The same estimate of a whole text, of which only the end counts.

    Args:
        model: the network.
        tokens: [c] token ids; the last `max_length` are taken.
        generator: of the draws.
        num_samples: draws in all.
        batch_size: draws at a time.
        max_length: tokens that count.

    Returns:
        nats.
    """
    return log_likelihood(
        model,
        tokens[:0],
        tokens[-max_length:],
        generator=generator,
        num_samples=num_samples,
        batch_size=batch_size,
        max_length=max_length,
    )


@torch.no_grad()
def batch_loss(
    model: ConceptLM,
    row: Int[Tensor, " T"],
    noisy: Int[Tensor, "b T"],
    mask_rates: Float[Tensor, " b"],
    context_length: int,
    cfg_scale: float = 0.0,
) -> Float[Tensor, ""]:
    """Loss of given draws.

    Args:
        model: the network.
        row: [T] context and continuation.
        noisy: [b T] the row with masks; every mask id in it counts as masked.
        mask_rates: [b] share of the continuation that is masked.
        context_length: tokens of the context, which guidance masks whole.
        cfg_scale: guidance.

    Returns:
        mean over draws of Σ_masked CE / rate, nats.
    """
    logits = model(noisy).logits
    if cfg_scale:
        blind = noisy.clone()
        blind[:, :context_length] = model.config.mask_id
        logits = guided(logits, model(blind).logits, cfg_scale)
    is_masked = noisy == model.config.mask_id
    targets = row.expand_as(noisy)[is_masked]
    nats = F.cross_entropy(logits[is_masked].to(wide(logits.dtype)), targets, reduction="none")
    rates = mask_rates.to(nats)[:, None].expand_as(noisy)[is_masked]
    return (nats / rates).sum() / len(noisy)
