"""Noise levels and masks: ranges, means, and the same draws for the same (seed, step)."""

import math
import random
from dataclasses import fields

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from vitrail.errors import ConfigError
from vitrail.train.masking import (
    BackboneName,
    NoiseSettings,
    block_noise,
    draw_dropped,
    draw_masks,
    expected_noise,
    generator,
    predictable,
)
from vitrail.train.objective import ComposeSettings, draw

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


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"low": 0.6}, "low 0.6 is above the least high, 0.5"),
        ({"high": [[0.0, 1.2]]}, "from 0 to 1"),
        ({"sigma": 0.0}, "sigma"),
    ],
)
def test_levels_that_are_none_are_refused(values: dict[str, object], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        NoiseSettings.parse(values)


def test_low_noise_comes_first() -> None:
    noise = NoiseSettings()
    assert expected_noise(noise, 0.0) < expected_noise(noise, 0.6) <= 0.5


def test_the_moving_gaussian_passes_one_half() -> None:
    noise = NoiseSettings(schedule="moving_gaussian", low=0.0, high=((0.0, 1.0),))
    assert expected_noise(noise, 0.0) < 0.4
    assert expected_noise(noise, 1.0) > 0.6


@pytest.mark.parametrize("share", [0.0, 0.6])
def test_the_moving_gaussian_is_a_normal_cut_to_its_range(share: float) -> None:
    """Against its slow twin: draw from the normal, and again until it lies inside."""
    noise = NoiseSettings(schedule="moving_gaussian", low=0.1, high=((0.0, 0.9),))
    rng, mean = random.Random(0), 0.2 + 0.6 * 0.5 * (1 - math.cos(math.pi * share))
    twin: list[float] = []
    while len(twin) < 20_000:
        level = rng.gauss(mean, 0.3)
        if 0.1 <= level <= 0.9:
            twin.append(level)
    levels = block_noise(noise, (200, 100), share, generator(2)).flatten().double()
    marks = torch.tensor([0.1, 0.25, 0.5, 0.75, 0.9], dtype=torch.float64)
    want = torch.tensor(twin, dtype=torch.float64).quantile(marks)
    torch.testing.assert_close(levels.quantile(marks), want, rtol=0, atol=0.015)


@settings(max_examples=15, deadline=None)
@given(seed=st.integers(0, 10_000), length=st.integers(1, 30))
def test_masks_follow_their_block(seed: int, length: int) -> None:
    num_blocks = -(-length // 5)
    levels = torch.tensor([0.0, 1.0] * num_blocks)[:num_blocks].expand(3, -1)
    per_token, masked = draw_masks(levels, 5, length, generator(seed))
    assert torch.equal(masked, per_token == 1.0), "level 0 masks nothing, level 1 everything"
    assert torch.equal(per_token[:, ::5], levels)


def test_every_block_of_every_sequence_has_its_own_level() -> None:
    levels = block_noise(NoiseSettings(), (7, 5), 0.9, generator(0))
    assert len(set(levels.flatten().tolist())) == 35


@settings(max_examples=15, deadline=None)
@given(
    seed=st.integers(0, 10_000),
    rows=st.integers(1, 7),
    length=st.integers(2, 30),
    start=st.integers(0, 6),
    size=st.integers(1, 7),
    backbone=st.sampled_from(["cdlm", "ar"]),
)
def test_a_sequence_gets_the_same_draws_whoever_draws_them(
    seed: int, rows: int, length: int, start: int, size: int, backbone: BackboneName
) -> None:
    loss_mask = torch.rand((rows, length), generator=generator(seed)) < 0.8
    raw = draw(NoiseSettings(), ComposeSettings(known_dropout=0.3), (rows, length), 4, 0.6, seed, 5, backbone)
    whole, part = raw.over(loss_mask), slice(min(start, rows - 1), min(start + size, rows))
    own, cut = raw.rows(part).over(loss_mask[part]), whole.rows(part)
    for field in fields(whole):
        assert torch.equal(getattr(own, field.name), getattr(cut, field.name)), field.name


@settings(max_examples=15, deadline=None)
@given(seed=st.integers(0, 10_000), length=st.integers(1, 12))
def test_only_what_the_loss_may_ask_for_is_predicted(seed: int, length: int) -> None:
    loss_mask = torch.rand((3, length), generator=generator(seed)) < 0.5
    assert torch.equal(predictable(loss_mask, "cdlm"), loss_mask)
    following = [[p + 1 < length and bool(row[p + 1]) for p in range(length)] for row in loss_mask]
    assert predictable(loss_mask, "ar").tolist() == following
    shape, chosen = (3, length), ComposeSettings()
    masked = draw(NoiseSettings(), chosen, shape, 4, 0.6, seed, 0, "cdlm").over(loss_mask)
    assert not bool((masked.predicted & ~loss_mask).any())
    after = draw(NoiseSettings(), chosen, shape, 4, 0.6, seed, 0, "ar").over(loss_mask)
    assert after.predicted.tolist() == following
    assert not bool(after.noise.any())


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
