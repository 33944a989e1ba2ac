"""Tokens run through a cache in any pieces give what one forward gives; both backbones look back only."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from tests.model.shapes import small_config
from vitrail.model import BlockCache, ConceptLM, Injection, init_model

SEEDS = st.integers(0, 99)
PIECES = st.lists(st.integers(1, 6), min_size=1, max_size=5)


def _model(backbone: str, seed: int = 0) -> ConceptLM:
    model = init_model(small_config(backbone=backbone), seed).double()
    generator = torch.Generator().manual_seed(seed)
    for parameter in model.parameters():
        parameter.data.add_(0.3 * torch.randn(parameter.shape, generator=generator, dtype=torch.float64))
    return model


def _ids(batch: int, length: int, seed: int = 0) -> Tensor:
    return torch.randint(30, (batch, length), generator=torch.Generator().manual_seed(seed))


def _injection(mask: Tensor, seed: int) -> Injection:
    generator = torch.Generator().manual_seed(seed)
    return Injection(torch.randn(len(mask), 12, generator=generator, dtype=torch.float64), mask, layer=1)


@settings(max_examples=25, deadline=None)
@given(seed=SEEDS, pieces=PIECES, injected_from=st.integers(0, 20))
@torch.no_grad()
def test_any_pieces_equal_one_forward(seed: int, pieces: list[int], injected_from: int) -> None:
    """`ar`, steered from a position on: what a continuation is, one forward for each new token included."""
    model, length = _model("ar", seed), sum(pieces)
    ids = _ids(2, length, seed)
    injection = _injection((torch.arange(length) >= injected_from).repeat(2, 1), seed)
    wanted = model.hidden(ids, injection=injection)
    cache, got = BlockCache(), []
    for piece in pieces:
        part = slice(cache.length, cache.length + piece)
        here = Injection(injection.vector, injection.mask[:, part], injection.layer)
        got.append(model.extend_cache(ids[:, part], cache, here))
    torch.testing.assert_close(torch.cat(got, dim=1), wanted, rtol=1e-9, atol=1e-9)
    assert cache.length == length


@settings(max_examples=25, deadline=None)
@given(seed=SEEDS, starts=st.lists(st.integers(0, 9), min_size=2, max_size=4), pieces=PIECES)
@torch.no_grad()
def test_rows_at_different_positions_share_a_cache(seed: int, starts: list[int], pieces: list[int]) -> None:
    """`ar`: each row as if it were alone, prompts of any length joined and then continued together, steered."""
    model, new = _model("ar", seed), sum(pieces)
    rows = [_ids(1, start + new, seed + row) for row, start in enumerate(starts)]
    caches = []
    for ids, start in zip(rows, starts, strict=True):
        caches.append(BlockCache(1))
        if start:
            model.extend_cache(ids[:, :start], caches[-1])
    cache, got = BlockCache.join(caches), []
    injection, at = _injection(torch.ones(len(rows), new, dtype=torch.bool), seed), 0
    for piece in pieces:
        current = torch.cat([ids[:, start + at : start + at + piece] for ids, start in zip(rows, starts, strict=True)])
        here = Injection(injection.vector, injection.mask[:, at : at + piece], injection.layer)
        got.append(model.extend_cache(current, cache, here))
        at += piece
    together = torch.cat(got, dim=1)
    for row, (ids, start) in enumerate(zip(rows, starts, strict=True)):
        whole = Injection(injection.vector[row : row + 1], torch.arange(start + new)[None] >= start, injection.layer)
        wanted = model.hidden(ids, injection=whole)[:, start:]
        torch.testing.assert_close(together[row : row + 1], wanted, rtol=1e-9, atol=1e-9)
    assert cache.starts is not None
    assert cache.starts.tolist() == [start + new for start in starts]


@settings(max_examples=25, deadline=None)
@given(seed=SEEDS, changed=st.integers(0, 12))
@torch.no_grad()
def test_a_token_moves_its_own_logits_and_later_ones_only(seed: int, changed: int) -> None:
    """`ar`: logits at i know tokens up to i, so that they may predict token i+1."""
    model, ids = _model("ar", seed), _ids(1, 13, seed)
    other = ids.clone()
    other[0, changed] = (ids[0, changed] + 1) % 30
    is_moved = (model(ids).logits - model(other).logits).abs().amax(dim=-1)[0] > 1e-9
    assert is_moved.tolist() == [pos >= changed for pos in range(13)]


@torch.no_grad()
def test_a_step_that_is_not_finished_leaves_no_trace() -> None:
    model, ids = _model("cdlm"), _ids(3, 10)
    cache = BlockCache.join([BlockCache(1), BlockCache(2)])
    model.hidden(ids[:, 5:], cache=cache)
    model.extend_cache(ids[:, :5], cache)
    got = model.hidden(ids[:, 5:], cache=cache)
    torch.testing.assert_close(got, model.hidden(ids)[:, 5:], rtol=1e-9, atol=1e-9)


def test_a_cache_takes_no_gradient() -> None:
    model = _model("ar")
    with pytest.raises(AssertionError, match="no_grad"):
        model.hidden(_ids(1, 3), cache=BlockCache())
