import math
from collections.abc import Callable
from itertools import combinations

import pytest
import torch
from torch import Tensor

from vitrail.metrics.likelihood import (
    clean_prefix_nats,
    draw_block_mask,
    fixed_rate_loss,
    mdlm_nats,
    next_token_nats,
    nine_bin_loss,
    per_block_loss,
)
from vitrail.model import ConceptLM

MakeModel = Callable[..., ConceptLM]


def tokens_of(seed: int, rows: int = 3, length: int = 11) -> Tensor:
    tokens = torch.randint(5, 41, (rows, length), generator=torch.Generator().manual_seed(seed))
    tokens[1, 9:] = 0  # padding
    return tokens


def losses_at(model: ConceptLM, noisy: Tensor, targets: Tensor) -> Tensor:
    logits: Tensor = model(noisy).logits.double()
    return -logits.log_softmax(-1).gather(-1, targets[..., None])[..., 0]


def exhaustive_bound(model: ConceptLM, tokens: Tensor) -> float:
    """The bound of one sequence without any draw: all masks of all blocks, each with its exact weight."""
    block, total = model.config.block, 0.0
    num_present = int((tokens != model.config.pad_id).sum())
    for start in range(0, num_present, block):
        places = range(start, min(start + block, num_present))
        for size in range(1, len(places) + 1):
            subsets = list(combinations(places, size))
            for hidden in subsets:
                noisy = tokens[: start + block].clone()
                noisy[list(hidden)] = model.config.mask_id
                losses = losses_at(model, noisy[None], tokens[None, : start + block])[0]
                total += float(losses[list(hidden)].sum()) / (size * len(subsets))
    return total


def test_agrees_with_all_masks_enumerated(make_model: MakeModel) -> None:
    """Averages over 200 copies meet the exact value within four standard errors (under 2 %)."""
    model, tokens = make_model(), tokens_of(0)
    copies = tokens.repeat(200, 1)
    rng = torch.Generator().manual_seed(1)
    found = clean_prefix_nats(model, copies, copies != model.config.pad_id, num_draws=2, rng=rng).view(200, 3)
    mean, error = found.mean(0), found.std(0) / 200**0.5
    for row in range(3):
        exact = exhaustive_bound(model, tokens[row])
        assert float(error[row]) < 0.02 * exact
        assert float(mean[row]) == pytest.approx(exact, abs=4 * float(error[row]))


def test_is_exact_where_predictions_do_not_depend_on_masks(make_model: MakeModel) -> None:
    """Without embeddings every position predicts the same: the bound is the code length, draw by draw."""
    model = make_model()
    model.get_parameter("transformer.tok_emb.weight").zero_()
    tokens = torch.full((2, 12), 7)
    exact = losses_at(model, tokens, tokens).sum(1)
    found = clean_prefix_nats(model, tokens, tokens > 0, num_draws=3, rng=torch.Generator().manual_seed(0))
    assert torch.allclose(found, exact, rtol=1e-6)
    assert fixed_rate_loss(model, tokens, torch.Generator().manual_seed(0)).mean == pytest.approx(
        float(exact.sum() / 24), rel=1e-5
    )


def test_padding_neither_counts_nor_matters_to_other_rows(make_model: MakeModel) -> None:
    model, tokens = make_model(), tokens_of(2)
    nothing = torch.zeros_like(tokens, dtype=torch.bool)
    assert clean_prefix_nats(model, tokens, nothing, num_draws=2, rng=torch.Generator()).abs().max() == 0


@pytest.mark.parametrize("num_draws", [1, 3, 8])
def test_masks_have_the_levels_they_should(num_draws: int) -> None:
    """One level from each equal part of (0, 1]; never a token that is absent; weight n/m."""
    rng = torch.Generator().manual_seed(0)
    present = torch.rand(200, 8, generator=rng) < 0.8
    size = present.sum(1)
    for draw in range(num_draws):
        masked, weight = draw_block_mask(present, draw, num_draws, rng)
        count = masked.sum(1)
        assert not (masked & ~present).any()
        assert torch.equal(weight * count, torch.where(size > 0, size, 0).double())
        assert (count >= torch.floor(size * draw / num_draws)).all()
        assert (count <= torch.ceil(size * (draw + 1) / num_draws)).all()
        assert (count[size > 0] >= 1).all()


def test_every_number_of_masked_tokens_is_equally_likely() -> None:
    rng = torch.Generator().manual_seed(3)
    present = torch.ones(4000, 5, dtype=torch.bool)
    masked, _ = draw_block_mask(present, 0, 1, rng)
    shares = torch.bincount(masked.sum(1), minlength=6) / 4000
    assert shares[0] == 0
    assert torch.allclose(shares[1:], torch.full((5,), 0.2), atol=0.03)


def test_the_four_estimators_agree_on_a_constant_model(make_model: MakeModel) -> None:
    """With the same loss everywhere, losses equal it, and bounds do so on average."""
    model = make_model()
    model.get_parameter("transformer.tok_emb.weight").zero_()
    tokens = torch.full((64, 12), 9)
    nats = float(losses_at(model, tokens[:1], tokens[:1])[0, 0])
    rng = torch.Generator().manual_seed(5)
    assert nine_bin_loss(model, tokens, rng) == pytest.approx(nats, rel=1e-5)
    # 1/t weights are heavy-tailed: 64 sequences agree to a fifth.
    assert mdlm_nats(model, tokens, rng).mean == pytest.approx(nats, rel=0.2)
    assert per_block_loss(model, tokens, rng).mean == pytest.approx(nats, rel=0.2)


def test_same_seed_same_bound(make_model: MakeModel) -> None:
    model, tokens = make_model(), tokens_of(4)
    one, other = (
        clean_prefix_nats(model, tokens, tokens > 0, num_draws=2, rng=torch.Generator().manual_seed(6))
        for _ in range(2)
    )
    assert torch.equal(one, other)


def test_next_token_nats_are_the_log_probabilities_one_by_one(make_model: MakeModel) -> None:
    model, tokens = make_model(backbone="ar"), tokens_of(3)
    present = tokens != model.config.pad_id
    found = next_token_nats(model, tokens, present)
    for row, ids in enumerate(tokens):
        total = math.log(model.config.vocab_size)
        for place in range(1, int(present[row].sum())):
            total -= float(model(ids[None, :place]).logits[0, -1].double().log_softmax(-1)[ids[place]])
        assert float(found[row]) == pytest.approx(total, rel=1e-5)
