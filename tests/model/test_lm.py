"""The standing equalities of the model: parts sum to the logit, cached = uncached, together = alone."""

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from tests.model.shapes import FLAGS, small_config
from vitrail.model import BlockCache, ConceptLM, Injection, ModelConfig, init_model

SEEDS = st.integers(0, 99)


def _model(config: ModelConfig, seed: int = 0, dtype: torch.dtype = torch.float64) -> ConceptLM:
    model = init_model(config, seed).to(dtype)
    generator = torch.Generator().manual_seed(seed)
    for parameter in model.parameters():
        parameter.data.add_(0.3 * torch.randn(parameter.shape, generator=generator).to(dtype))
    return model


def _ids(batch: int, length: int, seed: int = 0) -> Tensor:
    ids = torch.randint(30, (batch, length), generator=torch.Generator().manual_seed(seed))
    ids[:, ::3] = 33
    return ids


@settings(max_examples=25, deadline=None)
@given(flags=FLAGS, seed=SEEDS, scale=st.sampled_from([0.0, 0.3, 1.0]))
@torch.no_grad()
def test_parts_sum_to_the_logit(flags: dict[str, Any], seed: int, scale: float) -> None:
    config = small_config(**flags)
    for dtype, tolerance in ((torch.float64, 1e-10), (torch.float32, 1e-4)):
        model = _model(config, seed, dtype)
        out = model(_ids(2, 11, seed), residual_scale=scale)
        parts = sum(model.lm_logits(part) for part in (out.known, out.discovered, out.residual))
        assert (parts - out.logits).abs().max() < tolerance
        enters = scale if model.has_residual else 0.0
        assert (out.residual - enters * out.unexplained).abs().max() < tolerance


@torch.no_grad()
def test_parts_sum_to_the_logit_in_bf16() -> None:
    """Four roundings to 8 bits: within 3 % of the largest logit."""
    model = _model(small_config(), dtype=torch.bfloat16)
    out = model(_ids(2, 11))
    parts = sum(model.lm_logits(part).float() for part in (out.known, out.discovered, out.residual))
    assert (parts - out.logits.float()).abs().max() / out.logits.float().abs().max() < 0.03


@torch.no_grad()
def test_with_the_whole_residual_composed_is_hidden() -> None:
    model = _model(small_config())
    out = model(_ids(2, 11))
    torch.testing.assert_close(out.composed, out.hidden, rtol=1e-12, atol=1e-12)
    without = model.decompose(out.hidden, residual_scale=torch.zeros(2, 11, dtype=torch.float64))
    torch.testing.assert_close(without.composed, out.known + out.discovered)
    assert model.decompose(out.hidden, with_logits=False).logits.shape == (2, 11, 0)


def test_gradient_of_the_logit_is_that_of_the_function() -> None:
    """Also with the residual left out, where all gradient passes through the heads."""
    model = _model(small_config(use_residual=False, top_k_known=None, apply_top_k_to_discovered=False))
    hidden = torch.randn(1, 2, 12, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    assert torch.autograd.gradcheck(lambda h: model.decompose(h).logits, hidden.requires_grad_())


@settings(max_examples=25, deadline=None)
@given(flags=FLAGS, seed=SEEDS, num_blocks=st.integers(0, 3), length=st.integers(1, 5))
@torch.no_grad()
def test_cached_equals_uncached(flags: dict[str, Any], seed: int, num_blocks: int, length: int) -> None:
    model = _model(small_config(**flags), seed)
    ids = _ids(2, 5 * num_blocks + length, seed)
    prefix, current = ids[:, : 5 * num_blocks], ids[:, 5 * num_blocks :]
    cache = BlockCache()
    starts = [0, 5 * (num_blocks - 1)] if num_blocks > 1 else [0]  # several blocks at once, then one
    stops = [*starts[1:], 5 * num_blocks]
    parts = [prefix[:, start:stop] for start, stop in zip(starts, stops, strict=True) if stop > start]
    clean = [model.extend_cache(part, cache) for part in parts]
    injection = Injection(torch.randn(2, 12, dtype=torch.float64), current == 33, layer=2)
    whole = Injection(injection.vector, torch.cat((prefix < 0, injection.mask), dim=1), layer=2)
    wanted = model.hidden(ids, injection=whole)
    for _attempt in range(2):  # the block may be run again and again before it is finished
        got = model.hidden(current, injection=injection, cache=cache)
        torch.testing.assert_close(got, wanted[:, 5 * num_blocks :], rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(torch.cat([*clean, got], dim=1), wanted, rtol=1e-9, atol=1e-9)
    assert cache.length == 5 * num_blocks


@torch.no_grad()
def test_selected_and_joined_caches_serve_their_rows() -> None:
    model = _model(small_config())
    ids = _ids(3, 13)
    cache = BlockCache()
    model.extend_cache(ids[:, :10], cache)
    wanted = model.hidden(ids)[:, 10:]
    parts = [cache.select(torch.tensor([2])), cache.select(torch.tensor([0, 1]))]
    got = model.hidden(ids[[2, 0, 1], 10:], cache=BlockCache.join(parts))
    torch.testing.assert_close(got, wanted[[2, 0, 1]], rtol=1e-9, atol=1e-9)


def test_a_cache_holds_whole_blocks() -> None:
    model = _model(small_config())
    with pytest.raises(ValueError, match="whole blocks of 5"):
        model.extend_cache(_ids(1, 7), BlockCache())


@torch.no_grad()
def test_later_blocks_do_not_reach_back() -> None:
    ids, changed = _ids(1, 15), _ids(1, 15)
    changed[0, 7] = 29
    hidden, moved = (_model(small_config()).hidden(x) for x in (ids, changed))
    is_moved = (hidden != moved).any(dim=-1)[0]
    assert not is_moved[:5].any(), "block 0 saw block 1"
    assert is_moved[5:].all(), "a position did not see its own block or an earlier one"


@torch.no_grad()
def test_together_equals_alone() -> None:
    model, ids = _model(small_config()), _ids(4, 11)
    together = model(ids).logits
    for row in range(4):
        torch.testing.assert_close(model(ids[row : row + 1]).logits[0], together[row], rtol=1e-10, atol=1e-10)


@torch.no_grad()
@pytest.mark.parametrize("layer", [0, 1, 2, 3])
def test_injection_after_blocks_from_a_layer_on(layer: int) -> None:
    model, ids = _model(small_config()), _ids(2, 10)
    vector = torch.stack((torch.zeros(12), torch.ones(12))).double()
    plain, injected = model.hidden(ids), model.hidden(ids, injection=Injection(vector, ids == 33, layer))
    torch.testing.assert_close(injected[0], plain[0], rtol=1e-12, atol=1e-12)
    is_moved = (injected[1] - plain[1]).abs().amax(dim=-1) > 1e-9
    everywhere, masked, nowhere = (
        torch.ones(10, dtype=torch.bool),
        ids[1] == 33,
        torch.zeros(10, dtype=torch.bool),
    )
    # After the last block only the injected positions move; earlier, attention spreads it.
    assert torch.equal(is_moved, {0: everywhere, 1: everywhere, 2: masked, 3: nowhere}[layer])


@torch.no_grad()
def test_embeddings_stand_in_for_tokens() -> None:
    model, ids = _model(small_config()), _ids(2, 7)
    assert torch.equal(model.hidden(embeddings=model.embed(ids)), model.hidden(ids))
    with pytest.raises(ValueError, match="either"):
        model.hidden(ids, embeddings=model.embed(ids))
    with pytest.raises(ValueError, match="either"):
        model.hidden()


@pytest.mark.parametrize("num_parameters", [8_391_778_304])
def test_parameter_count_of_the_released_base_model(num_parameters: int) -> None:
    with torch.device("meta"):
        model = ConceptLM(ModelConfig())
    assert sum(parameter.numel() for parameter in model.parameters()) == num_parameters
    assert len(set(map(id, model.parameters()))) == 264


def test_autocast_keeps_heads_in_fp32_and_gradients_close() -> None:
    """bf16 keeps 8 bits: gradients agree with fp32 to a few per cent of their norm."""
    model, ids = _model(small_config(norm_order="pre"), dtype=torch.float32), _ids(2, 11)
    grads = []
    for is_enabled in (False, True):
        with torch.autocast("cpu", torch.bfloat16, enabled=is_enabled):
            out = model(ids, residual_scale=0.5)
        assert out.known_logits.dtype == out.known.dtype == torch.float32
        grads.append(torch.autograd.grad(out.logits.float().square().mean(), list(model.parameters())))
    plain, mixed = (torch.cat([grad.flatten() for grad in part]) for part in grads)
    assert (plain - mixed).norm() / plain.norm() < 0.1


@settings(max_examples=25, deadline=None)
@given(flags=FLAGS, seed=SEEDS, blocks=st.lists(st.integers(0, 3), min_size=2, max_size=4), rounds=st.integers(1, 2))
@torch.no_grad()
def test_rows_at_different_blocks_share_a_cache(
    flags: dict[str, Any], seed: int, blocks: list[int], rounds: int
) -> None:
    """Each row as if it were alone: joined, run, finished, and a part of the rows selected, again and again."""
    model = _model(small_config(**flags), seed)
    rows = [_ids(1, 5 * (count + rounds + 1), seed + row) for row, count in enumerate(blocks)]
    caches = []
    for ids, count in zip(rows, blocks, strict=True):
        caches.append(BlockCache(1))
        if count:
            model.extend_cache(ids[:, : 5 * count], caches[-1])
    joined, at = BlockCache.join(caches), list(blocks)
    for _round in range(rounds):
        current = torch.cat([ids[:, 5 * count : 5 * (count + 1)] for ids, count in zip(rows, at, strict=True)])
        got = model.hidden(current, cache=joined)
        for row, (ids, count) in enumerate(zip(rows, at, strict=True)):
            wanted = model.hidden(ids[:, : 5 * (count + 1)])[:, 5 * count :]
            torch.testing.assert_close(got[row : row + 1], wanted, rtol=1e-9, atol=1e-9)
        model.extend_cache(current, joined)
        order = list(range(1, len(rows))) if len(rows) > 2 else list(range(len(rows)))[::-1]
        joined = joined.select(torch.tensor(order))
        rows, at = [rows[row] for row in order], [at[row] + 1 for row in order]
    assert joined.starts is not None
    assert joined.starts.tolist() == [5 * count for count in at]
    assert joined.length == 5 * max(at)
