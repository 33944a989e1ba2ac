"""Likelihoods of text under a causal diffusion model, and the mask losses that are none (§7, appendix H).

`bits_per_byte` is always the clean-prefix block bound. For each block, with all earlier blocks clean,

    -log p(block | earlier blocks)  ≤  E_t [ 1/t · Σ_masked CE ],      t uniform on (0, 1],

summed over blocks: an upper bound on the negative log-likelihood of the text, comparable with
autoregressive and n-gram models on the same tokens. Every token but padding counts, structure tokens
too: the bound covers the text and its layout, hence also the text alone.

Of a block with n tokens exactly m = ⌈t·n⌉ are masked and n/m is the weight. That is the same bound, not
another one: integrating (1/t)·t^m·(1−t)^(n−m) over t, every set of m tokens has the weight 1/(m·(n choose m))
in both; but the estimator's variance is finite, where independent masks weigh 1/t without limit.

Beside it stand the paper's four estimators (H). Of these only `mdlm_nats` is a bound; the others are losses
at given noise and are named so.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from vitrail.metrics.intervals import Interval, bootstrap, plain, ratio
from vitrail.metrics.ngram import NGramModel
from vitrail.metrics.states import decompose, is_present, sample_rows, token_nats
from vitrail.model import BlockCache, ConceptLM
from vitrail.packed import PackedCorpus, PackedSplit

NINE_BINS = tuple(step / 10 for step in range(1, 10))
FIXED_RATE = 0.5
_BATCH_SIZE = 64


@dataclass(frozen=True)
class Losses:
    """Sums of one estimator, per sequence.

    Attributes:
        nats: [B] summed, possibly weighted, cross-entropies.
        count: [B] tokens they are divided by.
    """

    nats: Float[Tensor, " B"]
    count: Float[Tensor, " B"]

    @property
    def mean(self) -> float:
        """Nats per counted token."""
        return float(self.nats.sum() / self.count.sum())


def bits_per_byte(
    model: ConceptLM,
    packed: PackedCorpus,
    split: PackedSplit = "heldout",
    *,
    ngrams: Mapping[str, NGramModel],
    num_sequences: int = 48,
    num_draws: int = 4,
    seed: int = 0,
) -> dict[str, Any]:
    """The clean-prefix block bound in bits per byte, beside n-gram models on the same tokens and bytes.

    An autoregressive model has its exact likelihood there, its first token coded as one of V.

    Args:
        model: the model, in evaluation.
        packed: where the sequences come from.
        split: usually `heldout`.
        ngrams: name → model fitted on the train split.
        num_sequences: sequences sampled.
        num_draws: noise levels per block, one from each equal part of (0, 1].
        seed: of the sample, of levels and masks.

    Returns:
        `model`, one entry per n-gram, `n` (sequences), `num_tokens`, `num_bytes`, `num_draws`,
        `ci95` (of the model, over sequences) and `ci95_<name>`.
    """
    rows = sample_rows(packed, split, num_sequences, seed)
    batches = [packed.batch(split, [row]) for row in rows]
    tokens = torch.cat([batch.tokens for batch in batches])
    num_bytes = np.array([batch.num_bytes for batch in batches], dtype=np.float64)
    present = is_present(model, tokens)
    rng = torch.Generator().manual_seed(seed)
    is_ar = model.config.backbone == "ar"
    bounds = [
        next_token_nats(model, part, kept)
        if is_ar
        else clean_prefix_nats(model, part, kept, num_draws=num_draws, rng=rng)
        for part, kept in zip(torch.split(tokens, _BATCH_SIZE), torch.split(present, _BATCH_SIZE), strict=True)
    ]
    figures = {"model": _per_byte(torch.cat(bounds).double().numpy(), num_bytes)}
    for name, ngram in ngrams.items():
        nats = [-ngram.logprobs(ids[kept].numpy()).sum() for ids, kept in zip(tokens, present, strict=True)]
        figures[name] = _per_byte(np.array(nats), num_bytes)
    table = {
        **{name: figure.value for name, figure in figures.items()},
        "n": len(rows),
        "num_tokens": int(present.sum()),
        "num_bytes": int(num_bytes.sum()),
        "num_draws": num_draws,
        "ci95": figures["model"].ci95,
        **{f"ci95_{name}": figures[name].ci95 for name in ngrams},
    }
    return dict(plain(table))


@torch.no_grad()
def next_token_nats(model: ConceptLM, tokens: Int[Tensor, "B T"], present: Bool[Tensor, "B T"]) -> Float[Tensor, " B"]:
    """What an autoregressive model needs for each sequence, in nats (§2.2).

    Args:
        model: of backbone `ar`.
        tokens: sequences.
        present: False at padding, which is not counted.

    Returns:
        [B] nats of all tokens; the first, which nothing predicts, as one of V with equal chances.
    """
    hidden, asked = model.hidden(tokens), present[:, 1:]
    nats = torch.zeros(asked.shape, dtype=torch.float64)
    nats[asked] = _nats_at(model, hidden[:, :-1][asked], tokens[:, 1:][asked]).double()
    return nats.sum(1) + present[:, 0] * math.log(model.config.vocab_size)


@torch.no_grad()
def clean_prefix_nats(
    model: ConceptLM,
    tokens: Int[Tensor, "B T"],
    present: Bool[Tensor, "B T"],
    *,
    num_draws: int,
    rng: torch.Generator,
) -> Float[Tensor, " B"]:
    """The clean-prefix block bound of each sequence, in nats.

    Args:
        model: the model; earlier blocks are read from its block cache, so each is computed once.
        tokens: sequences.
        present: False at padding, which is never masked and not counted.
        num_draws: noise levels per block, one from each equal part of (0, 1].
        rng: of levels and masks.

    Returns:
        [B] unbiased estimates of the bound.

    Cost: 1 + num_draws forwards of every token.
    """
    block, length = model.config.block, tokens.shape[1]
    nats = torch.zeros(len(tokens), dtype=torch.float64)
    cache = BlockCache()
    for start in range(0, length, block):
        inside = slice(start, min(start + block, length))
        ids, kept = tokens[:, inside], present[:, inside]
        for draw in range(num_draws):
            masked, weight = draw_block_mask(kept, draw, num_draws, rng)
            hidden = model.hidden(torch.where(masked, model.config.mask_id, ids), cache=cache)
            losses = _losses_at(model, hidden, ids, masked)
            nats += weight * losses / num_draws
        if inside.stop < length:
            model.extend_cache(ids, cache)
    return nats


def draw_block_mask(
    present: Bool[Tensor, "B b"], draw: int, num_draws: int, rng: torch.Generator
) -> tuple[Bool[Tensor, "B b"], Float[Tensor, " B"]]:
    """A mask of exactly ⌈t·n⌉ of the n present tokens of each block, and its weight n/⌈t·n⌉.

    Args:
        present: tokens that may be masked.
        draw: which of the equal parts of (0, 1] the level t comes from.
        num_draws: how many parts.
        rng: where the draws come from.

    Returns:
        the mask and [B] weights (zero where a block has no token).
    """
    size = present.sum(1)
    level = (draw + 1 - torch.rand(len(present), generator=rng, dtype=torch.float64)) / num_draws
    num_masked = torch.ceil(level * size).long().clamp(max=size)
    order = torch.rand(present.shape, generator=rng).masked_fill(~present, 2.0).argsort(1).argsort(1)
    return order < num_masked[:, None], size / num_masked.clamp(min=1).double()


def fixed_rate_loss(
    model: ConceptLM, tokens: Int[Tensor, "B T"], rng: torch.Generator, rate: float = FIXED_RATE
) -> Losses:
    """Mask loss at one noise level (τ = 0.5): nats per masked token. No bound on a likelihood (H).

    Args:
        model: the model.
        tokens: sequences.
        rng: of the masks.
        rate: probability of masking a token, in every block.

    Returns:
        sums and masked tokens per sequence.
    """
    return _noisy_losses(model, tokens, torch.full(tokens.shape, rate), rng, lambda t: torch.ones_like(t))


def nine_bin_loss(model: ConceptLM, tokens: Int[Tensor, "B T"], rng: torch.Generator) -> float:
    """Mean of the mask losses at t = 0.1, 0.2, ..., 0.9: nats per masked token. No bound on a likelihood (H).

    Args:
        model: the model.
        tokens: sequences.
        rng: of the masks.

    Returns:
        the mean over the nine levels.
    """
    return float(np.mean([fixed_rate_loss(model, tokens, rng, rate).mean for rate in NINE_BINS]))


def mdlm_nats(model: ConceptLM, tokens: Int[Tensor, "B T"], rng: torch.Generator) -> Losses:
    """The MDLM bound: one level t per sequence, all blocks noisy, cross-entropies weighted 1/t (H).

    A bound on the negative log-likelihood as well, but a loose one for a model that generates block by block,
    because here earlier blocks are noisy too.

    Args:
        model: the model.
        tokens: sequences; their levels are stratified over (0, 1].
        rng: of levels and masks.

    Returns:
        weighted sums and present tokens per sequence: nats per token.
    """
    num = len(tokens)
    level = (torch.arange(num) + 1 - torch.rand(num, generator=rng)) / num
    losses = _noisy_losses(model, tokens, level[:, None].expand(tokens.shape), rng, lambda t: 1 / t)
    return Losses(losses.nats, is_present(model, tokens).sum(1).float())


def per_block_loss(model: ConceptLM, tokens: Int[Tensor, "B T"], rng: torch.Generator) -> Losses:
    """Every block at a level of its own, weighted 1/t, as in training (H). No bound on a likelihood.

    Args:
        model: the model.
        tokens: sequences.
        rng: of levels and masks.

    Returns:
        weighted sums and present tokens per sequence: nats per token.
    """
    block, length = model.config.block, tokens.shape[1]
    num_blocks = math.ceil(length / block)
    drawn = torch.rand(len(tokens), num_blocks, generator=rng)
    level = ((torch.arange(num_blocks) + 1 - drawn) / num_blocks).gather(
        1, torch.rand(drawn.shape, generator=rng).argsort(1)
    )
    levels = level.repeat_interleave(block, dim=1)[:, :length]
    losses = _noisy_losses(model, tokens, levels, rng, lambda t: 1 / t)
    return Losses(losses.nats, is_present(model, tokens).sum(1).float())


@torch.no_grad()
def _noisy_losses(
    model: ConceptLM,
    tokens: Int[Tensor, "B T"],
    level: Float[Tensor, "B T"],
    rng: torch.Generator,
    weight: Callable[[Tensor], Tensor],
) -> Losses:
    masked = (torch.rand(tokens.shape, generator=rng) < level) & is_present(model, tokens)
    hidden = model.hidden(torch.where(masked, model.config.mask_id, tokens))
    nats = torch.zeros(tokens.shape)
    nats[masked] = _nats_at(model, hidden[masked], tokens[masked]) * weight(level[masked])
    return Losses(nats.sum(1), masked.sum(1).float())


def _losses_at(
    model: ConceptLM, hidden: Float[Tensor, "B T D"], tokens: Int[Tensor, "B T"], masked: Bool[Tensor, "B T"]
) -> Float[Tensor, " B"]:
    nats = torch.zeros(tokens.shape, dtype=torch.float64)
    nats[masked] = _nats_at(model, hidden[masked], tokens[masked]).double()
    return nats.sum(1)


def _nats_at(model: ConceptLM, hidden: Float[Tensor, "n D"], targets: Int[Tensor, " n"]) -> Float[Tensor, " n"]:
    """Cross-entropy as deployed: of the composed state, which is h itself unless the residual is left out."""
    composed = hidden if model.has_residual else decompose(model, hidden).composed[0]
    return token_nats(model, composed, targets)


def _per_byte(nats: Float[np.ndarray, " n"], num_bytes: Float[np.ndarray, " n"]) -> Interval:
    return bootstrap(np.stack([nats / math.log(2), num_bytes], axis=1), ratio)
