"""Draws and edge cases of the reference's Monte-Carlo likelihood."""

from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.compat.checkpoints import MASK, checkpoint
from vitrail.compat import batch_loss, draw_masks, log_likelihood, rolling_log_likelihood
from vitrail.model import ConceptLM

CONTEXT, CONTINUATION = torch.tensor([1, 2, 3]), torch.tensor([4, 5, 6, 7])


@pytest.fixture
def model(tmp_path: Path) -> ConceptLM:
    return checkpoint(tmp_path, seed=1)[0]


def _seeded() -> torch.Generator:
    return torch.Generator().manual_seed(3)


@given(length=st.integers(1, 23), count=st.integers(1, 17), seed=st.integers(0, 99))
def test_counts_of_masks_are_spread_evenly_over_a_batch(length: int, count: int, seed: int) -> None:
    is_masked = draw_masks(length, count, torch.Generator().manual_seed(seed))
    num_masked = is_masked.sum(1)
    assert num_masked.min() >= 1
    first = int(torch.randint(1, length + 1, (), generator=torch.Generator().manual_seed(seed)))
    for row, found in enumerate(num_masked.tolist()):
        # Within rounding of k + i·c/b, around the circle of 1..c.
        distance = (found - (first + row * length / count)) % length
        assert min(distance, length - distance) <= 0.5 + 1e-4


def test_an_empty_continuation_is_certain(model: ConceptLM) -> None:
    assert log_likelihood(model, CONTEXT, CONTINUATION[:0], generator=_seeded()) == 0


def test_a_row_longer_than_the_context_is_impossible(model: ConceptLM) -> None:
    found = [
        log_likelihood(model, CONTEXT, CONTINUATION, generator=_seeded(), num_samples=2, max_length=longest)
        for longest in (6, 7)
    ]
    assert found[0] == -float("inf")
    assert -1e3 < found[1] < 0


def test_batches_weigh_the_same_whatever_their_size(model: ConceptLM) -> None:
    generator, row = _seeded(), torch.cat((CONTEXT, CONTINUATION))
    losses = []
    for count in (3, 2):
        is_masked = torch.cat((torch.zeros(count, 3, dtype=torch.bool), draw_masks(4, count, generator)), dim=1)
        noisy = row.expand(count, -1).masked_fill(is_masked, MASK)
        losses.append(float(batch_loss(model, row, noisy, is_masked.sum(1) / 4, 3)))
    found = log_likelihood(model, CONTEXT, CONTINUATION, generator=_seeded(), num_samples=5, batch_size=3)
    assert found == pytest.approx(-sum(losses) / 2)


def test_guidance_without_a_context_changes_nothing(model: ConceptLM) -> None:
    plain, guided = (
        log_likelihood(model, CONTEXT[:0], CONTINUATION, generator=_seeded(), num_samples=4, cfg_scale=scale)
        for scale in (0.0, 1.5)
    )
    assert guided == pytest.approx(plain)


def test_a_mask_in_the_context_counts_as_masked(model: ConceptLM) -> None:
    """Masked positions are found by their id, so its cross-entropy is added to every draw."""
    context = torch.tensor([1, MASK, 3])
    row = torch.cat((context, CONTINUATION))
    noisy = row[None].clone()
    noisy[0, 5] = MASK
    nats = -model(noisy).logits[0].log_softmax(-1)
    wanted = (nats[1, MASK] + nats[5, row[5]]) / 0.25
    torch.testing.assert_close(batch_loss(model, row, noisy, torch.tensor([0.25]), 3), wanted)


def test_the_rolling_likelihood_is_that_of_the_end(model: ConceptLM) -> None:
    whole = torch.cat((CONTEXT, CONTINUATION))
    rolling = rolling_log_likelihood(model, whole, generator=_seeded(), num_samples=4, max_length=4)
    assert rolling == log_likelihood(model, whole[:0], CONTINUATION, generator=_seeded(), num_samples=4)
