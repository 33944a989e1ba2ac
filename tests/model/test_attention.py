"""Which positions influence which; kernels against the table of the predicate."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from tests.model.shapes import small_config
from vitrail.errors import ConfigError
from vitrail.model import (
    FlexKernel,
    SdpaKernel,
    Visibility,
    attention_kernel,
    dense_mask,
    padded_mask,
    training_kernel,
)


def test_block_causal_table_by_hand() -> None:
    table = dense_mask(Visibility("cdlm", 2, 1, 4)).int().tolist()
    assert table == [[1, 1, 0, 0, 0], [1, 1, 1, 1, 0], [1, 1, 1, 1, 0], [1, 1, 1, 1, 1]]


def test_padding_is_hidden_by_hand() -> None:
    """Two rows with prefixes of 4 and 2 positions, padded to 4, and a block of 2."""
    visible = Visibility("cdlm", 2, 4, 2, torch.tensor([4, 2]))
    table = padded_mask(visible, torch.tensor([4, 2]))[:, 0].int().tolist()
    assert table == [[[1] * 6], [[1, 1, 0, 0, 1, 1]]], "one line serves both queries"


def test_padding_is_hidden_by_hand_under_a_table() -> None:
    """Two rows with prefixes of 2 and 1 positions, padded to 2, and two causal queries."""
    visible = Visibility("ar", 2, 2, 2, torch.tensor([2, 1]))
    table = padded_mask(visible, torch.tensor([2, 1]))[:, 0].int().tolist()
    assert table == [[[1, 1, 1, 0], [1, 1, 1, 1]], [[1, 0, 1, 0], [1, 0, 1, 1]]]


def test_causal_table_by_hand() -> None:
    assert dense_mask(Visibility("ar", 2, 1, 2)).int().tolist() == [[1, 1, 0], [1, 1, 1]]


PATTERNS = st.builds(
    Visibility,
    backbone=st.sampled_from(["cdlm", "ar"]),
    block=st.integers(1, 7),
    start=st.integers(0, 11),
    num_queries=st.integers(1, 17),
)


def _draw(visible: Visibility, groups: int, dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor, Tensor]:
    """Three query heads of width 5 for two rows."""
    generator = torch.Generator().manual_seed(visible.start)
    num_keys = visible.start + visible.num_queries
    q = torch.randn(2, 3, visible.num_queries, 5, generator=generator).to(dtype)
    k, v = torch.randn(2, 2, groups, num_keys, 5, generator=generator).to(dtype)
    return q, k, v


def _softmax_over(table: Tensor, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """The slow twin: all scores, those outside the table at minus infinity."""
    keys, values = (x.repeat_interleave(q.shape[1] // k.shape[1], dim=1) for x in (k, v))
    scores = (q @ keys.mT / q.shape[-1] ** 0.5).masked_fill(~table, -torch.inf)
    mixed: Tensor = scores.softmax(-1) @ values
    return mixed


@settings(max_examples=40, deadline=None)
@given(visible=PATTERNS, groups=st.sampled_from([1, 3]))
def test_kernel_equals_softmax_over_the_table(visible: Visibility, groups: int) -> None:
    q, k, v = _draw(visible, groups)
    got = attention_kernel("sdpa").prepare(visible, q.device)(q, k, v)
    torch.testing.assert_close(got, _softmax_over(dense_mask(visible), q, k, v), rtol=1e-10, atol=1e-10)


@settings(max_examples=25, deadline=None)
@given(visible=PATTERNS, short=st.integers(0, 11))
def test_kernel_skips_the_padding_of_shorter_prefixes(visible: Visibility, short: int) -> None:
    starts = torch.tensor([visible.start, min(short, visible.start)])
    q, k, v = _draw(visible, 1)
    got = attention_kernel("sdpa").prepare(replace(visible, starts=starts), q.device)(q, k, v)
    is_key = torch.arange(k.shape[2]) < starts[:, None]
    is_key[:, visible.start :] = True
    table = is_key[:, None, None, :] & dense_mask(visible)
    torch.testing.assert_close(got, _softmax_over(table, q, k, v), rtol=1e-10, atol=1e-10)


@settings(max_examples=25, deadline=None)
@given(visible=PATTERNS)
def test_kernel_in_bf16(visible: Visibility) -> None:
    """bf16 keeps 8 bits, and values are of size 1: weighted means of them agree to 0.03."""
    q, k, v = _draw(visible, 1, torch.bfloat16)
    got = attention_kernel("sdpa").prepare(visible, q.device)(q, k, v)
    assert got.dtype == torch.bfloat16
    wanted = _softmax_over(dense_mask(visible), q.double(), k.double(), v.double())
    torch.testing.assert_close(got.double(), wanted, rtol=0.02, atol=0.03)


@given(visible=PATTERNS)
def test_a_pattern_is_full_where_nothing_is_hidden(visible: Visibility) -> None:
    assert visible.is_full == bool(dense_mask(visible).all())


class _Made(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Notes the elements of the largest tensor that any operation makes."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.numel = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        self.numel = max(self.numel, made.numel())
        return made


@pytest.mark.parametrize(
    ("visible", "most"),
    [
        (Visibility("cdlm", 8, 64, 8), 0),
        (Visibility("cdlm", 8, 0, 64), 0),
        (Visibility("cdlm", 8, 16, 64), 0),
        (Visibility("ar", 8, 0, 64), 0),
        (Visibility("ar", 8, 64, 1), 0),
        (Visibility("ar", 8, 64, 3), 3 * 67),
        (Visibility("cdlm", 8, 64, 8, torch.tensor([64, 8])), 2 * 72),
        (Visibility("ar", 8, 64, 1, torch.tensor([64, 8])), 2 * 65),
    ],
)
def test_tables_are_made_only_where_needed(visible: Visibility, most: int) -> None:
    with _Made() as made:
        attention_kernel("sdpa").prepare(visible, torch.device("cpu"))
    assert made.numel == most


@settings(max_examples=25, deadline=None)
@given(visible=PATTERNS, groups=st.sampled_from([1, 3]), short=st.none() | st.integers(0, 11))
def test_flex_sees_what_sdpa_sees(visible: Visibility, groups: int, short: int | None) -> None:
    """Uncompiled on the CPU: both backbones, all phases of the block, padded rows.

    Torch traces even the uncompiled kernel, which the shape checks of the tests do not survive; hence its switch.
    """
    if short is not None:
        visible = replace(visible, starts=torch.tensor([visible.start, min(short, visible.start)]))
    q, k, v = _draw(visible, groups)
    flex, sdpa = (kernel.prepare(visible, q.device) for kernel in (FlexKernel(is_compiled=False), SdpaKernel()))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("torch.nn.attention.flex_attention._FLEX_ATTENTION_DISABLE_COMPILE_DEBUG", True)
        torch.testing.assert_close(flex(q, k, v), sdpa(q, k, v), rtol=1e-10, atol=1e-10)


@pytest.mark.skipif(torch.cuda.is_available(), reason="a CUDA device is there")
@settings(max_examples=30, deadline=None)
@given(visible=PATTERNS, groups=st.sampled_from([1, 3]))
def test_gradients_equal_those_of_softmax_over_the_table(visible: Visibility, groups: int) -> None:
    """The backward adds up what every block's prefix gives, each in its place."""
    q, k, v = (x.requires_grad_() for x in _draw(visible, groups))
    towards = torch.randn(q.shape, dtype=q.dtype, generator=torch.Generator().manual_seed(5))
    got = attention_kernel("sdpa").prepare(visible, q.device)(q, k, v)
    wanted = _softmax_over(dense_mask(visible), q, k, v)
    for ours, theirs in zip(*(torch.autograd.grad(x, (q, k, v), towards) for x in (got, wanted)), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("backbone", ["cdlm", "ar"])
def test_training_on_a_cpu_takes_scaled_dot_product(backbone: str) -> None:
    config = small_config(backbone=backbone, width=64, num_heads=2)
    assert isinstance(training_kernel(config, torch.device("cpu")), SdpaKernel)


def test_flex_without_cuda_is_refused() -> None:
    with pytest.raises(ConfigError, match="use 'sdpa'"):
        attention_kernel("flex")


@pytest.mark.skipif(not torch.cuda.is_available(), reason="flex attention needs a CUDA device")
@pytest.mark.parametrize("backbone", ["cdlm", "ar"])
def test_flex_equals_sdpa(backbone: str) -> None:
    visible = Visibility("ar" if backbone == "ar" else "cdlm", 32, 64, 128)
    device = torch.device("cuda")
    q = torch.randn(2, 4, 128, 32, device=device)
    k, v = torch.randn(2, 2, 2, 192, 32, device=device)
    flex, sdpa = (attention_kernel(name).prepare(visible, device) for name in ("flex", "sdpa"))
    torch.testing.assert_close(flex(q, k, v), sdpa(q, k, v), rtol=1e-3, atol=1e-3)
