"""Which positions influence which; kernels against the table of the predicate."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from vitrail.errors import ConfigError
from vitrail.model import Visibility, attention_kernel, dense_mask, padded_mask


def test_block_causal_table_by_hand() -> None:
    table = dense_mask(Visibility("cdlm", 2, 1, 4)).int().tolist()
    assert table == [[1, 1, 0, 0, 0], [1, 1, 1, 1, 0], [1, 1, 1, 1, 0], [1, 1, 1, 1, 1]]


def test_padding_is_hidden_by_hand() -> None:
    """Two rows with prefixes of 4 and 2 positions, padded to 4, and a block of 2."""
    visible = Visibility("cdlm", 2, 4, 2, torch.tensor([4, 2]))
    table = padded_mask(visible, torch.tensor([4, 2]))[:, 0].int().tolist()
    assert table == [[[1] * 6] * 2, [[1, 1, 0, 0, 1, 1]] * 2]


def test_causal_table_by_hand() -> None:
    assert dense_mask(Visibility("ar", 2, 1, 2)).int().tolist() == [[1, 1, 0], [1, 1, 1]]


@settings(max_examples=25, deadline=None)
@given(
    backbone=st.sampled_from(["cdlm", "ar"]),
    block=st.integers(1, 7),
    start=st.integers(0, 11),
    num_queries=st.integers(1, 17),
    groups=st.sampled_from([1, 3]),
)
def test_kernel_equals_softmax_over_the_table(
    backbone: str, block: int, start: int, num_queries: int, groups: int
) -> None:
    visible = Visibility("ar" if backbone == "ar" else "cdlm", block, start, num_queries)
    generator = torch.Generator().manual_seed(start)
    q = torch.randn(2, 3, num_queries, 5, generator=generator, dtype=torch.float64)
    k, v = torch.randn(2, 2, groups, start + num_queries, 5, generator=generator, dtype=torch.float64)
    got = attention_kernel("sdpa").prepare(visible, q.device)(q, k, v)
    keys, values = (x.repeat_interleave(3 // groups, dim=1) for x in (k, v))
    scores = (q @ keys.mT / 5**0.5).masked_fill(~dense_mask(visible), -torch.inf)
    torch.testing.assert_close(got, scores.softmax(-1) @ values, rtol=1e-10, atol=1e-10)


@pytest.mark.skipif(torch.cuda.is_available(), reason="a CUDA device is there")
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
