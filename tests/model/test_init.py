"""Starting weights: a function of the seed, known concepts nearly off, gradients everywhere."""

import pytest
import torch

from tests.model.shapes import small_config
from vitrail.errors import ConfigError
from vitrail.model import init_model


def test_same_seed_same_bytes() -> None:
    first, second, other = (init_model(small_config(), seed, known_bias=-4.0) for seed in (1, 1, 2))
    weights = [dict(model.state_dict()) for model in (first, second, other)]
    assert all(torch.equal(weights[0][name], weights[1][name]) for name in weights[0])
    assert not torch.equal(weights[0]["transformer.tok_emb.weight"], weights[2]["transformer.tok_emb.weight"])


@pytest.mark.parametrize("norm_order", ["pre", "post"])
@pytest.mark.parametrize("use_rms_norm", [True, False])
@torch.no_grad()
def test_known_concepts_start_at_the_bias(norm_order: str, use_rms_norm: bool) -> None:
    config = small_config(
        norm_order=norm_order, use_rms_norm=use_rms_norm, width=64, vocab_size=200, num_layers=4, block=8
    )
    model = init_model(config, 0, known_bias=-4.0)
    ids = torch.randint(200, (8, 48), generator=torch.Generator().manual_seed(3))
    ids[:, ::2] = config.mask_id
    logits = model.known_head.logits(model.hidden(ids), slice(0, 13))
    assert abs(logits.mean() + 4) < 0.4
    assert logits.std() < 1.2


def test_attention_head_refuses_a_bias() -> None:
    with pytest.raises(ConfigError, match="known_bias"):
        init_model(small_config(use_attention_known=True), 0, known_bias=-4.0)


def test_every_parameter_learns() -> None:
    model = init_model(small_config(tie_embeddings=False, use_bias=True), 0, known_bias=-4.0)
    out = model(torch.arange(20).reshape(2, 10), residual_scale=0.5)
    torch.autograd.backward([out.logits.square().sum()])
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.abs().sum() > 0, name
