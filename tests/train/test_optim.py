"""Groups, rates and state of the optimisers."""

from collections.abc import Callable

import pytest
import torch

from vitrail.model import ConceptLM
from vitrail.train.optim import Optimisers, OptimSettings

Model = Callable[..., ConceptLM]


def _grads(model: ConceptLM, seed: int) -> None:
    rng = torch.Generator().manual_seed(seed)
    for parameter in model.parameters():
        parameter.grad = torch.randn(parameter.shape, generator=rng, dtype=parameter.dtype)


@pytest.mark.parametrize("matrices", ["muon", "adamw"])
def test_every_parameter_moves_once_and_state_goes_on_exactly(matrices: str, tiny_model: Model) -> None:
    settings = OptimSettings.parse({"matrices": matrices})
    model = tiny_model(dtype=torch.float32)
    first = Optimisers(model, settings)
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    _grads(model, 0)
    first.step(1.0)
    assert all(not torch.equal(before[name], p) for name, p in model.named_parameters())
    twin = tiny_model(dtype=torch.float32)
    twin.load_state_dict(model.state_dict())
    second = Optimisers(twin, settings)
    second.load({name: value.clone() for name, value in first.state().items()})
    for own, optimiser in ((model, first), (twin, second)):
        _grads(own, 1)
        optimiser.step(0.5)
    for name, parameter in model.named_parameters():
        assert torch.equal(parameter, dict(twin.named_parameters())[name]), name


def test_a_matrix_update_has_the_rms_of_adamw(tiny_model: Model) -> None:
    """0.2·sqrt(max(rows, columns)) times an orthogonal matrix has entries of RMS about 0.2."""
    model = tiny_model(dtype=torch.float32, width=64, num_heads=4)
    optimisers = Optimisers(model, OptimSettings(matrix_rate=1.0, weight_decay=0.0, clip_norm=1e9))
    weight = dict(model.named_parameters())["transformer.blocks.0.attn.c_proj.weight"]
    before = weight.detach().clone()
    _grads(model, 3)
    optimisers.step(1.0)
    rms = float((weight.detach() - before).square().mean().sqrt())
    assert 0.12 < rms < 0.25, "five Newton-Schulz steps bring singular values to 0.7..1.2, not to 1"


def test_the_norm_returned_is_that_before_clipping(tiny_model: Model) -> None:
    model = tiny_model(dtype=torch.float32)
    _grads(model, 0)
    norm = torch.stack([p.grad.norm() for p in model.parameters() if p.grad is not None]).norm()
    assert Optimisers(model, OptimSettings(clip_norm=0.1)).step(1.0) == pytest.approx(float(norm), rel=1e-5)


def test_norms_are_not_decayed(tiny_model: Model) -> None:
    model = tiny_model(dtype=torch.float32)
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    Optimisers(model, OptimSettings()).step(1.0)
    for name, parameter in model.named_parameters():
        assert torch.equal(parameter, before[name]) == (parameter.ndim < 2), name
