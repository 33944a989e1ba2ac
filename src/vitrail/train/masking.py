"""What is hidden and what is dropped in one step: noise levels, masks, residual dropout (§5.4.2).

Every block of every sequence draws its own noise level t, the share of its tokens that become [MASK]. All
draws of a step come from one generator seeded by (seed, step), for the whole batch at once: micro-batches
cut the draws, they do not make them, and a resumed run draws the same again.

Letters: `B` sequences, `T` tokens, `N` blocks of `b` tokens (the last one may be shorter).
"""

import hashlib
import math
from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Bool, Float
from pydantic import model_validator
from torch import Tensor

from vitrail.settings import Settings
from vitrail.train.schedules import Curve, value_at


class NoiseSettings(Settings):
    """How masked a block is.

    `uniform`: t ~ U(low, high). `moving_gaussian`: t ~ N(mean, sigma²) cut to [low, high] (reported:
    mean 0.2 → 0.8, sigma 0.3). `high` and `mean` are curves over training, so that `uniform` with a
    `high` that starts low is "low noise first".
    """

    schedule: Literal["uniform", "moving_gaussian"] = "uniform"
    low: float = 0.05
    high: Curve = ((0.0, 0.5), (0.4, 0.5), (0.6, 0.95))
    mean: Curve = ((0.0, 0.2), (1.0, 0.8))
    sigma: float = 0.3

    @model_validator(mode="after")
    def _are_shares(self) -> "NoiseSettings":
        levels = [self.low, *(level for curve in (self.high, self.mean) for _, level in curve)]
        if not all(0 <= level <= 1 for level in levels):
            raise ValueError(
                f"noise levels are shares of masked tokens, from 0 to 1; got {min(levels)} to {max(levels)}"
            )
        return self


@dataclass(frozen=True)
class Draws:
    """Everything random in one step of one batch.

    Attributes:
        noise: [B T] noise level of each token's block.
        masked: [B T] True where the token becomes [MASK] and is predicted.
        residual_kept: [B T] True where the residual enters (rho = 1).
        discovered_kept: [B T] False only where residual and discovered part are dropped together.
    """

    noise: Float[Tensor, "B T"]
    masked: Bool[Tensor, "B T"]
    residual_kept: Bool[Tensor, "B T"]
    discovered_kept: Bool[Tensor, "B T"]

    def rows(self, rows: slice) -> "Draws":
        """The draws of some sequences of the batch."""
        return Draws(self.noise[rows], self.masked[rows], self.residual_kept[rows], self.discovered_kept[rows])


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
    noise: Float[Tensor, "B N"], block: int, present: Bool[Tensor, "B T"], rng: torch.Generator
) -> tuple[Float[Tensor, "B T"], Bool[Tensor, "B T"]]:
    """Each token of a block is masked with the block's probability.

    Args:
        noise: [B N] level of each block.
        block: tokens in a block.
        present: [B T] False at padding, which is never masked.
        rng: where the draws come from.

    Returns:
        [B T] level of each token's block, and [B T] True where masked.
    """
    length = present.shape[1]
    levels = noise.repeat_interleave(block, dim=1)[:, :length]
    return levels, (torch.rand(levels.shape, generator=rng) < levels) & present


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
