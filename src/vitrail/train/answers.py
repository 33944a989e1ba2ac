"""Answers of conversations, as the model will write them: with nothing behind them in their block (§5.2).

A diffusion block is filled in as a whole. While an answer is written, the rest of its last block is [MASK], so a model
that had always seen there what follows (padding, the next conversation) would have learnt an answer's length from it,
and would not know when to stop. So in half of the blocks, drawn anew each step, everything behind the end of the first
answer is hidden, and asked for nothing. In the other half a turn that begins in the same block still sees its prompt.
Blocks see no later ones, and an `ar` model sees nothing behind a token, so there is no more to it.
"""

from dataclasses import replace

import torch
from jaxtyping import Bool
from torch import Tensor

from vitrail.model import ModelConfig
from vitrail.packed import PackedBatch
from vitrail.train.masking import generator

_HIDDEN_SHARE = 0.5
"""Chosen: both ways of reading a block are needed, and neither is the rarer one."""


def open_ended(
    batch: PackedBatch, config: ModelConfig, seed: int, step: int, num_rows: int, rows: slice
) -> PackedBatch:
    """Conversations with what stands behind an answer hidden in half of the blocks; other batches as they are.

    Args:
        batch: a rank's sequences.
        config: block, backbone, mask id.
        seed: the run's seed.
        step: equal (seed, step) draw the same.
        num_rows: sequences of the global batch.
        rows: which of them these are.

    Returns:
        the batch; hidden tokens are [MASK], and no longer in its `loss_mask`.
    """
    if config.backbone == "ar" or batch.num_chunks:
        return batch
    length = batch.tokens.shape[1]
    rng = generator(seed, "open ended", step)
    drawn = torch.rand((num_rows, -(-length // config.block)), generator=rng) < _HIDDEN_SHARE
    is_drawn = drawn[rows].repeat_interleave(config.block, dim=1)[:, :length]
    hidden = behind_answers(batch.loss_mask, config.block) & is_drawn.to(batch.tokens.device)
    return replace(batch, tokens=batch.tokens.masked_fill(hidden, config.mask_id), loss_mask=batch.loss_mask & ~hidden)


def behind_answers(loss_mask: Bool[Tensor, "B T"], block: int) -> Bool[Tensor, "B T"]:
    """Positions behind the end of the first answer in their block, later answers among them.

    Args:
        loss_mask: [B T] True at answers.
        block: tokens in a block.

    Returns:
        [B T]; False in blocks in which no answer ends.
    """
    rows, length = loss_mask.shape
    padded = torch.nn.functional.pad(loss_mask, (0, -length % block)).view(rows, -1, block)
    is_end = (padded.cumsum(-1) > 0) & ~padded
    return (is_end.cumsum(-1) > 0).view(rows, -1)[:, :length]
