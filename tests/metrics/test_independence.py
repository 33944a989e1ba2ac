import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from vitrail.metrics.independence import linear_cka, linear_hsic


def parts(seed: int) -> tuple[Tensor, Tensor, Tensor]:
    rng = torch.Generator().manual_seed(seed)
    x = torch.randn(3, 11, 5, generator=rng, dtype=torch.float64)
    y = torch.randn(3, 11, 7, generator=rng, dtype=torch.float64)
    return x, y, torch.rand(3, 11, generator=rng) < 0.7


def twin_hsic(x: Tensor, y: Tensor) -> Tensor:
    """Trace form: tr(K H L H) / (T − 1)² with linear kernels."""
    num = len(x)
    centring = torch.eye(num, dtype=x.dtype) - 1 / num
    return torch.trace(x @ x.T @ centring @ y @ y.T @ centring) / (num - 1) ** 2


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 2**31))
def test_agrees_with_the_kernel_form(seed: int) -> None:
    x, y, valid = parts(seed)
    found = linear_hsic(x, y, valid)
    for row in range(3):
        kept = valid[row]
        if kept.sum() > 1:
            assert found[row] == pytest.approx(float(twin_hsic(x[row, kept], y[row, kept])), rel=1e-9)


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 2**31), st.floats(0.1, 10), st.floats(-5, 5))
def test_cka_ignores_scale_and_shift(seed: int, scale: float, shift: float) -> None:
    x, y, valid = parts(seed)
    assert torch.allclose(linear_cka(x, y, valid), linear_cka(scale * x + shift, y, valid), atol=1e-9)


def test_cka_of_a_part_with_itself_is_one() -> None:
    x, _, valid = parts(0)
    assert torch.allclose(linear_cka(x, x, valid), torch.ones(3, dtype=x.dtype))


def test_padding_takes_no_part() -> None:
    x, y, valid = parts(1)
    changed = torch.where(valid[..., None], x, x + 1000)
    assert torch.allclose(linear_hsic(x, y, valid), linear_hsic(changed, y, valid))


def test_a_constant_part_is_independent() -> None:
    _, y, valid = parts(2)
    constant = torch.ones(3, 11, 5, dtype=torch.float64)
    assert linear_hsic(constant, y, valid).abs().max() < 1e-20
    assert linear_cka(constant, y, valid).abs().max() < 1e-6
