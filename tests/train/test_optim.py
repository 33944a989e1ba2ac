"""Groups, rates and state of the optimisers."""

from collections.abc import Callable

import pytest
import torch

from vitrail.errors import ConfigError
from vitrail.model import ConceptLM
from vitrail.train.optim import Optimisers, OptimSettings

Model = Callable[..., ConceptLM]


def _grads(model: ConceptLM, seed: int) -> None:
    rng = torch.Generator().manual_seed(seed)
    for parameter in model.parameters():
        parameter.grad = torch.randn(parameter.shape, generator=rng, dtype=parameter.dtype)


@pytest.mark.parametrize(("matrices", "heads"), [("muon", "muon"), ("muon", "adamw"), ("adamw", "adamw")])
def test_every_parameter_moves_once_and_state_goes_on_exactly(matrices: str, heads: str, tiny_model: Model) -> None:
    settings = OptimSettings.parse({"matrices": matrices, "heads": heads})
    model = tiny_model(dtype=torch.float32)
    first = Optimisers(model, settings)
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    _grads(model, 0)
    first.step(1.0)
    assert all(not torch.equal(before[name], p) for name, p in model.named_parameters())
    twin = tiny_model(dtype=torch.float32)
    twin.load_state_dict(model.state_dict())
    second = Optimisers(twin, settings)
    second.make_state(first.state())
    for name, value in second.state().items():
        value.copy_(first.state()[name])
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
    norm = float(torch.stack([p.grad.norm() for p in model.parameters() if p.grad is not None]).norm())
    known = [p.grad.norm() for p in model.known_head.parameters() if p.grad is not None]
    norms = Optimisers(model, OptimSettings(clip_norm=0.1)).step(1.0)
    assert norms["all"] == pytest.approx(norm, rel=1e-5)
    assert norms["known"] == pytest.approx(float(torch.stack(known).norm()), rel=1e-5)
    assert set(norms) == {"embedding", "backbone", "known", "discovered", "all"}


def test_frozen_parameters_are_left_alone(tiny_model: Model) -> None:
    model = tiny_model(dtype=torch.float32)
    model.known_head.requires_grad_(False)
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    optimisers = Optimisers(model, OptimSettings())
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter) if parameter.requires_grad else None
    optimisers.step(1.0)
    for name, parameter in model.named_parameters():
        assert torch.equal(parameter, before[name]) == name.startswith("known_head."), name


def test_norms_are_not_decayed(tiny_model: Model) -> None:
    model = tiny_model(dtype=torch.float32)
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    Optimisers(model, OptimSettings()).step(1.0)
    for name, parameter in model.named_parameters():
        assert torch.equal(parameter, before[name]) == (parameter.ndim < 2), name


def test_a_common_direction_moves_known_logits_no_further_than_any_other(tiny_model: Model) -> None:
    """Final states share a large mean. AdamW moved all rows along it at once: known concepts fired together, and the
    loss ran away wherever the residual was dropped."""
    shifts = {}
    for heads, rate in (("muon", 0.03), ("adamw", 0.003)):
        model = tiny_model(dtype=torch.float32, width=128, num_heads=4, num_concepts=127)
        weight = model.get_parameter("known_head.concept_predictor.weight")
        rng = torch.Generator().manual_seed(0)
        mean = 8 * torch.nn.functional.normalize(torch.randn(128, generator=rng), dim=0)
        optimisers = Optimisers(model, OptimSettings.parse({"heads": heads, "head_rate": rate, "weight_decay": 0.0}))
        before = weight.detach() @ mean
        for _ in range(5):
            _grads(model, 1)
            # Every concept asks for less along the mean; what they ask for otherwise is noise of the same size.
            weight.grad = torch.randn(weight.shape, generator=rng) + mean * (128**0.5 / 8)
            optimisers.step(1.0)
        shifts[heads] = float((weight.detach() @ mean - before).abs().mean())
    assert shifts["muon"] < shifts["adamw"] / 2


@pytest.mark.parametrize(
    "values",
    [
        {"matrix_rate": -1.0},
        {"clip_norm": 0.0},
        {"betas": [1.5, 0.9]},
        {"momentum": 1.0},
        {"weight_decay": -0.1},
        {"rate": {"decay_share": -1.0}},
        {"rate": {"warmup_steps": -1}},
        {"rate": {"floor": 2.0}},
    ],
)
def test_rates_that_cannot_be_are_refused(values: dict[str, object]) -> None:
    with pytest.raises(ConfigError, match="input should be"):
        OptimSettings.parse(values)
