"""What is hidden and what is dropped in one step: noise levels, masks, residual dropout (§5.4.2).

Every block of every sequence draws its own noise level t, the share of its tokens that become [MASK]. All
draws of a step come from one generator seeded by (seed, step), for the whole global batch at once: ranks and
micro-batches cut the draws, they do not make them, and a resumed run draws the same again. Under `ar` nothing
is hidden: every token that has a next one predicts it, and noise levels are 0.

Letters: `B` sequences, `T` tokens, `N` blocks of `b` tokens (the last one may be shorter).
"""

import hashlib
import math
from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Bool, Float
from pydantic import Field, model_validator
from torch import Tensor
from torch.nn import functional

from vitrail.settings import Settings
from vitrail.train.schedules import Curve, value_at

BackboneName = Literal["cdlm", "ar"]


class NoiseSettings(Settings):
    """How masked a block is; without effect under `ar`.

    `uniform`: t ~ U(low, high), stated for mid-training (§10.2). `moving_gaussian`: t ~ N(mean, sigma²) cut to
    [low, high] (§5.4.2; reported: mean 0.2 → 0.8, sigma 0.3). `high` and `mean` are curves over training, so that
    `uniform` with a `high` that starts low is "low noise first" (chosen).
    """

    schedule: Literal["uniform", "moving_gaussian"] = "uniform"
    low: float = 0.05
    high: Curve = ((0.0, 0.5), (0.4, 0.5), (0.6, 0.95))
    mean: Curve = ((0.0, 0.2), (1.0, 0.8))
    sigma: float = Field(default=0.3, gt=0)

    @model_validator(mode="after")
    def _are_shares(self) -> "NoiseSettings":
        levels = [self.low, *(knot[1] for curve in (self.high, self.mean) for knot in curve)]
        if not all(0 <= level <= 1 for level in levels):
            raise ValueError(
                f"noise levels are shares of masked tokens, from 0 to 1; got {min(levels)} to {max(levels)}"
            )
        if self.low > (least := min(knot[1] for knot in self.high)):
            raise ValueError(f"low {self.low:g} is above the least high, {least:g}; lower it, or raise high")
        return self


@dataclass(frozen=True)
class Draws:
    """What a step hides, predicts and drops in some sequences.

    Attributes:
        noise: [B T] noise level of each token's block; 0 under `ar`.
        predicted: [B T] True where the model predicts. `cdlm`: the token there, which becomes [MASK]; `ar`: the
            next token, from clean input.
        residual_kept: [B T] True where the residual enters (rho = 1).
        discovered_kept: [B T] False only where residual and discovered part are dropped together.
        known_kept: [B] False where a whole sequence must do without its known concepts.
    """

    noise: Float[Tensor, "B T"]
    predicted: Bool[Tensor, "B T"]
    residual_kept: Bool[Tensor, "B T"]
    discovered_kept: Bool[Tensor, "B T"]
    known_kept: Bool[Tensor, " B"]

    def rows(self, rows: slice) -> "Draws":
        """The draws of some of these sequences."""
        whole = (self.noise, self.predicted, self.residual_kept, self.discovered_kept, self.known_kept)
        return Draws(*(part[rows] for part in whole))


@dataclass(frozen=True)
class RawDraws:
    """Everything random in one step, drawn for the global batch before any token is looked at.

    Attributes:
        noise: [B T] noise level of each token's block; 0 under `ar`.
        chosen: [B T] True where a token is to be predicted if it may be. `cdlm`: masked; `ar`: everywhere.
        residual_kept: [B T] as in `Draws`.
        discovered_kept: [B T] as in `Draws`.
        known_kept: [B] as in `Draws`.
        backbone: whose predictions these are.
    """

    noise: Float[Tensor, "B T"]
    chosen: Bool[Tensor, "B T"]
    residual_kept: Bool[Tensor, "B T"]
    discovered_kept: Bool[Tensor, "B T"]
    known_kept: Bool[Tensor, " B"]
    backbone: BackboneName

    def rows(self, rows: slice) -> "RawDraws":
        """The draws of some sequences of the global batch: a rank's part."""
        noise, chosen, known_kept = self.noise[rows], self.chosen[rows], self.known_kept[rows]
        return RawDraws(noise, chosen, self.residual_kept[rows], self.discovered_kept[rows], known_kept, self.backbone)

    def over(self, loss_mask: Bool[Tensor, "B T"]) -> Draws:
        """The draws of sequences whose tokens are known.

        Args:
            loss_mask: [B T] True at tokens that the language loss may ask for.

        Returns:
            draws on the device of `loss_mask`.
        """
        device = loss_mask.device
        predicted = self.chosen.to(device) & predictable(loss_mask, self.backbone)
        kept = (part.to(device) for part in (self.residual_kept, self.discovered_kept, self.known_kept))
        return Draws(self.noise.to(device), predicted, *kept)


def predictable(loss_mask: Bool[Tensor, "B T"], backbone: BackboneName) -> Bool[Tensor, "B T"]:
    """Positions whose logits predict a token of `loss_mask` (§2.2, §2.3).

    Args:
        loss_mask: [B T] True at tokens that the language loss may ask for.
        backbone: `cdlm` predicts the token of the position itself, `ar` the next one.

    Returns:
        [B T]; under `ar` the last position of a sequence predicts nothing.
    """
    return loss_mask if backbone == "cdlm" else functional.pad(loss_mask[:, 1:], (0, 1))


def generator(seed: int, *labels: int | str) -> torch.Generator:
    """A generator that depends only on the seed and the labels (a step, a purpose).

    Args:
        seed: the run's seed.
        labels: what the draws are for.

    Returns:
        a CPU generator; equal arguments give equal streams on every machine.
    """
    digest = hashlib.sha256(repr((seed, *labels)).encode()).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest[:8], "little") >> 1)


def block_noise(
    settings: NoiseSettings, shape: tuple[int, int], share: float, rng: torch.Generator
) -> Float[Tensor, "B N"]:
    """One noise level per block and sequence (§5.4.2).

    Args:
        settings: the schedule.
        shape: sequences and blocks.
        share: share of training done.
        rng: where the draws come from.

    Returns:
        [B N] levels in [low, high].
    """
    low, high = settings.low, value_at(settings.high, share)
    uniform = torch.rand(shape, generator=rng, dtype=torch.float64)
    if settings.schedule == "uniform":
        return (low + (high - low) * uniform).float()
    mean = value_at(settings.mean, share)
    start, stop = (_normal_cdf((edge - mean) / settings.sigma) for edge in (low, high))
    inside: Tensor = torch.special.ndtri(start + (stop - start) * uniform)
    levels: Tensor = (mean + settings.sigma * inside).clamp(low, high).float()
    return levels


def expected_noise(settings: NoiseSettings, share: float) -> float:
    """The mean noise level at this point of training: the monitor of §9.4.1 watches it pass 0.5.

    Args:
        settings: the schedule.
        share: share of training done.

    Returns:
        mean of t.
    """
    low, high = settings.low, value_at(settings.high, share)
    if settings.schedule == "uniform":
        return (low + high) / 2
    mean, sigma = value_at(settings.mean, share), settings.sigma
    a, b = (low - mean) / sigma, (high - mean) / sigma
    density = (math.exp(-a * a / 2) - math.exp(-b * b / 2)) / math.sqrt(2 * math.pi)
    return mean + sigma * density / (_normal_cdf(b) - _normal_cdf(a))


def draw_masks(
    noise: Float[Tensor, "B N"], block: int, length: int, rng: torch.Generator
) -> tuple[Float[Tensor, "B T"], Bool[Tensor, "B T"]]:
    """Each token of a block is masked with the block's probability.

    Args:
        noise: [B N] level of each block.
        block: tokens in a block.
        length: T, tokens in a sequence.
        rng: where the draws come from.

    Returns:
        [B T] level of each token's block, and [B T] True where masked (if the token may be).
    """
    levels = noise.repeat_interleave(block, dim=1)[:, :length]
    return levels, torch.rand(levels.shape, generator=rng) < levels


def draw_dropped(
    shape: tuple[int, int], block: int, unit: Literal["token", "block"], prob: float, rng: torch.Generator
) -> Bool[Tensor, "B T"]:
    """Places where something is dropped, per token or for whole blocks.

    Args:
        shape: sequences and tokens.
        block: tokens in a block.
        unit: what is drawn as one.
        prob: probability of dropping.
        rng: where the draws come from.

    Returns:
        [B T] True where dropped.
    """
    width = shape[1] if unit == "token" else -(-shape[1] // block)
    dropped = torch.rand((shape[0], width), generator=rng) < prob
    return dropped if unit == "token" else dropped.repeat_interleave(block, dim=1)[:, : shape[1]]


def _normal_cdf(x: float) -> float:
    return 0.5 * (1 + math.erf(x / math.sqrt(2)))
