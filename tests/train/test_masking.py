"""Noise levels and masks: ranges, means, and the same draws for the same (seed, step)."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from vitrail.train.masking import (
    NoiseSettings,
    block_noise,
    draw_dropped,
    draw_masks,
    expected_noise,
    generator,
)

SCHEDULES = [
    NoiseSettings(),
    NoiseSettings(schedule="uniform", low=0.3, high=((0.0, 0.9),)),
    NoiseSettings(schedule="moving_gaussian", low=0.01, high=((0.0, 1.0),)),
]


@pytest.mark.parametrize("noise", SCHEDULES)
@pytest.mark.parametrize("share", [0.0, 0.5, 1.0])
def test_levels_lie_in_range_and_have_the_expected_mean(noise: NoiseSettings, share: float) -> None:
    levels = block_noise(noise, (400, 100), share, generator(1, "test"))
    assert noise.low <= float(levels.min())
    assert float(levels.max()) <= 1.0
    expected = expected_noise(noise, share)
    assert float(levels.mean()) == pytest.approx(expected, abs=0.005), "5 standard errors of 40,000 draws"


def test_low_noise_comes_first() -> None:
    noise = NoiseSettings()
    assert expected_noise(noise, 0.0) < expected_noise(noise, 0.6) <= 0.5


def test_the_moving_gaussian_passes_one_half() -> None:
    noise = NoiseSettings(schedule="moving_gaussian", low=0.0, high=((0.0, 1.0),))
    assert expected_noise(noise, 0.0) < 0.4
    assert expected_noise(noise, 1.0) > 0.6


@settings(max_examples=15, deadline=None)
@given(seed=st.integers(0, 10_000), length=st.integers(1, 30))
def test_masks_follow_their_block_and_spare_padding(seed: int, length: int) -> None:
    present = torch.ones(3, length, dtype=torch.bool)
    present[:, length // 2 :] = False
    num_blocks = -(-length // 5)
    levels = torch.tensor([0.0, 1.0] * num_blocks)[:num_blocks].expand(3, -1)
    per_token, masked = draw_masks(levels, 5, present, generator(seed))
    assert torch.equal(masked, (per_token == 1.0) & present), "level 0 masks nothing, level 1 everything present"
    assert torch.equal(per_token[:, ::5], levels)


@pytest.mark.parametrize("unit", ["token", "block"])
def test_dropping_has_its_rate_and_unit(unit: str) -> None:
    dropped = draw_dropped((500, 41), 4, "block" if unit == "block" else "token", 0.3, generator(0))
    assert float(dropped.float().mean()) == pytest.approx(0.3, abs=0.02)
    whole = dropped[:, :40].reshape(500, 10, 4)
    assert bool((whole.all(2) == whole.any(2)).all()) == (unit == "block")


def test_draws_depend_on_seed_and_labels_only() -> None:
    first = torch.rand(5, generator=generator(3, "step", 7))
    assert torch.equal(first, torch.rand(5, generator=generator(3, "step", 7)))
    assert not torch.equal(first, torch.rand(5, generator=generator(3, "step", 8)))
    assert not torch.equal(first, torch.rand(5, generator=generator(4, "step", 7)))
