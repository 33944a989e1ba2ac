"""Which positions see which, and the kernels that compute it (§5.2).

A mask is a predicate on absolute positions; `dense_mask` is its table. `True` means "takes part".
A query block over a finished prefix sees every key, and so does a single query under `ar`: no mask is needed.

Letters: B batch, H query heads, G key/value heads, d head width,
T queries, S keys (finished prefix and queries).
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, Protocol, get_args, runtime_checkable

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask, create_block_mask, flex_attention

from vitrail.errors import ConfigError
from vitrail.model.config import ModelConfig


def block_causal(query_pos: Tensor, key_pos: Tensor, block: int) -> Tensor:
    """Whether a query sees a key under `cdlm`: its own block in full and all earlier ones.

    Args:
        query_pos: absolute positions of queries, any shape that broadcasts.
        key_pos: absolute positions of keys.
        block: tokens in a block; the grid starts at position 0.

    Returns:
        truth values of the broadcast shape.
    """
    return key_pos // block <= query_pos // block


def causal(query_pos: Tensor, key_pos: Tensor) -> Tensor:
    """Whether a query sees a key under `ar`: itself and all earlier positions.

    Args:
        query_pos: absolute positions of queries, any shape that broadcasts.
        key_pos: absolute positions of keys.

    Returns:
        truth values of the broadcast shape.
    """
    return key_pos <= query_pos


@dataclass(frozen=True, eq=False)
class Visibility:
    """The attention pattern of one forward: `num_queries` positions after a prefix of `start`.

    Where rows have prefixes of different lengths, the shorter ones are padded to `start`.

    Attributes:
        backbone: `cdlm` (block-causal) or `ar` (causal).
        block: tokens in a diffusion block.
        start: absolute position of the first query; keys run from 0 to `start + num_queries`.
        num_queries: T.
        starts: [B] length of each row's prefix (whole blocks under `cdlm`); None where all have `start`.
    """

    backbone: Literal["cdlm", "ar"]
    block: int
    start: int
    num_queries: int
    starts: Int[Tensor, " B"] | None = None

    def sees(self, query_pos: Tensor, key_pos: Tensor) -> Tensor:
        """Apply the predicate of the backbone to absolute positions.

        Args:
            query_pos: absolute positions of queries.
            key_pos: absolute positions of keys.

        Returns:
            truth values of the broadcast shape.
        """
        if self.backbone == "ar":
            return causal(query_pos, key_pos)
        return block_causal(query_pos, key_pos, self.block)

    @property
    def span(self) -> int:
        """Tokens that see the same keys: a block under `cdlm`, one under `ar`."""
        return 1 if self.backbone == "ar" else self.block

    @property
    def is_full(self) -> bool:
        """Whether every query sees every key (but for the padding of shorter prefixes)."""
        return self.start // self.span == (self.start + self.num_queries - 1) // self.span

    def stretches(self) -> list[slice]:
        """Queries that see the same keys, every one up to their own end.

        Returns:
            slices of 0..num_queries, in order.
        """
        bounds = range(-(self.start % self.span), self.num_queries, self.span)
        return [slice(max(0, first), min(first + self.span, self.num_queries)) for first in bounds]


def dense_mask(visible: Visibility, device: torch.device | None = None) -> Bool[Tensor, "T S"]:
    """The pattern as a table.

    Args:
        visible: the pattern.
        device: where the table goes.

    Returns:
        [T S], True where the query takes the key in.
    """
    key_pos = torch.arange(visible.start + visible.num_queries, device=device)
    return visible.sees(key_pos[visible.start :, None], key_pos[None, :])


def padded_mask(visible: Visibility, starts: Int[Tensor, " B"]) -> Bool[Tensor, "B 1 T2 S"]:
    """The pattern of rows with prefixes of different lengths: keys in the padding are hidden.

    Args:
        visible: the pattern.
        starts: [B] length of each row's prefix.

    Returns:
        True where the query takes the key in; one line for all queries (T2 = 1) where they see the same.
    """
    slot = torch.arange(visible.start + visible.num_queries, device=starts.device)
    is_key = ((slot < starts[:, None]) | (slot >= visible.start))[:, None, None, :]
    return is_key if visible.is_full else is_key & dense_mask(visible, starts.device)


_FLEX_HEAD_WIDTH, _FLEX_CAPABILITY = 16, (8, 0)

Attend = Callable[[Tensor, Tensor, Tensor], Tensor]
"""(q [B H T d], k [B G S d], v [B G S d]) -> [B H T d] for one fixed pattern."""


AttentionName = Literal["sdpa", "flex"]


@runtime_checkable
class AttentionKernel(Protocol):
    """Prepares one forward's pattern once, for all layers."""

    def prepare(self, visible: Visibility, device: torch.device) -> Attend:
        """The attention function for a pattern.

        Args:
            visible: the pattern.
            device: where queries and keys live.

        Returns:
            a function of queries, keys and values.
        """
        ...


class SdpaKernel:
    """`scaled_dot_product_attention`, with a table only where there is no other way.

    Block by block without a mask (`cdlm`), causal from position 0 or one token (`ar`): no table. Several tokens
    after a prefix under `ar`: a table [T S]. Rows with prefixes of different lengths: [B 1 1 S] for one block.
    """

    def prepare(self, visible: Visibility, device: torch.device) -> Attend:
        """The attention function for a pattern.

        Args:
            visible: the pattern.
            device: where queries and keys live.

        Returns:
            softmax(q kᵀ / √d) v over the visible keys.
        """
        return _in_fp32_for_cpu_backward(_sdpa_attend(visible, device))


def _sdpa_attend(visible: Visibility, device: torch.device) -> Attend:
    if visible.starts is not None:
        mask = padded_mask(visible, visible.starts.to(device))
        return lambda q, k, v: _sdpa(q, k, v, mask)
    if visible.is_full:
        return _sdpa
    if visible.backbone == "cdlm":
        return partial(_block_by_block, visible)
    if visible.start == 0:
        return partial(_sdpa, is_causal=True)
    table = dense_mask(visible, device)
    return lambda q, k, v: _sdpa(q, k, v, table)


def _block_by_block(
    visible: Visibility, q: Float[Tensor, "B H T d"], k: Float[Tensor, "B G S d"], v: Float[Tensor, "B G S d"]
) -> Float[Tensor, "B H T d"]:
    stretches = visible.stretches()
    stops = [visible.start + part.stop for part in stretches]
    queries = torch.split(q, [part.stop - part.start for part in stretches], dim=2)
    parts = [_sdpa(*own) for own in zip(queries, _prefixes(k, stops), _prefixes(v, stops), strict=True)]
    return torch.cat(parts, dim=2)


def _prefixes(x: Tensor, stops: list[int]) -> tuple[Tensor, ...]:
    """The first `stop` positions of keys or values, for every stop, the last of which is the end."""
    views: tuple[Tensor, ...] = _Prefixes.apply(x, stops)  # type: ignore[no-untyped-call]
    return views


class _Prefixes(torch.autograd.Function):
    """Slices whose backward adds each gradient in its place.

    The backward of an ordinary slice fills a whole tensor with zeros first, once for every block: 8 % of a training
    step at 10 M parameters (T 256, b 32). The sums, and the order of their terms, are the same.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, stops: list[int]) -> tuple[Tensor, ...]:
        ctx.stops = stops
        return tuple(x[:, :, :stop] for stop in stops)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        total = grads[-1].clone()
        for stop, grad in zip(reversed(ctx.stops[:-1]), reversed(grads[:-1]), strict=True):
            total[:, :, :stop] += grad
        return total, None


def _sdpa(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None, is_causal: bool = False) -> Tensor:
    is_grouped = q.shape[1] != k.shape[1]
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=is_causal, enable_gqa=is_grouped)


def _in_fp32_for_cpu_backward(attend: Attend) -> Attend:
    # Measured at T 256, d 32: the bf16 backward on CPU takes twice as long as the fp32 one, casts included.
    def maybe_wide(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        if not (q.requires_grad and q.device.type == "cpu"):
            return attend(q, k, v)
        dtype = torch.promote_types(q.dtype, torch.float32)
        with torch.autocast("cpu", enabled=False):
            return attend(q.to(dtype), k.to(dtype), v.to(dtype)).to(q.dtype)

    return maybe_wide


class FlexKernel:
    """Block-sparse attention; it skips what the pattern hides. Where all queries see the same it is `SdpaKernel`.

    Compiled it needs CUDA. Uncompiled it forms all scores, and gives no gradient on a CPU: it serves to hold the
    mask it builds against the table.
    """

    def __init__(self, is_compiled: bool = True) -> None:
        """Compile, or not.

        Args:
            is_compiled: whether to compile the kernel.

        Raises:
            ConfigError: compiled, without a CUDA device.
        """
        if is_compiled and not torch.cuda.is_available():
            raise ConfigError("attention 'flex' needs a CUDA device; use 'sdpa' here")
        self._attention = torch.compile(flex_attention) if is_compiled else flex_attention

    def prepare(self, visible: Visibility, device: torch.device) -> Attend:
        """The attention function for a pattern.

        Args:
            visible: the pattern.
            device: where queries and keys live.

        Returns:
            the same function as `SdpaKernel`, up to rounding.
        """
        if visible.is_full:
            return _sdpa_attend(visible, device)
        mask = block_mask(visible, device)

        def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            output = self._attention(q, k, v, block_mask=mask, enable_gqa=q.shape[1] != k.shape[1])
            assert isinstance(output, Tensor)
            return output

        return attend


def block_mask(visible: Visibility, device: torch.device) -> BlockMask:
    """The pattern as flex attention takes it: the predicate, and which tiles of it hold anything.

    Args:
        visible: the pattern.
        device: where queries and keys live.

    Returns:
        the mask; it holds for any number of heads.
    """
    starts = None if visible.starts is None else visible.starts.to(device)
    num_rows, num_keys = None if starts is None else len(starts), visible.start + visible.num_queries
    sees = partial(_sees, visible, starts)
    return create_block_mask(sees, num_rows, None, visible.num_queries, num_keys, device=str(device))


def _sees(
    visible: Visibility, starts: Tensor | None, batch: Tensor, _head: Tensor, query: Tensor, key: Tensor
) -> Tensor:
    is_seen = visible.sees(query + visible.start, key)
    return is_seen if starts is None else is_seen & ((key < starts[batch]) | (key >= visible.start))


def attention_kernel(name: AttentionName) -> AttentionKernel:
    """The kernel of a name.

    Args:
        name: `sdpa` (anywhere) or `flex` (CUDA).

    Returns:
        the kernel.

    Raises:
        ConfigError: another name, or `flex` without a CUDA device.
    """
    if name not in get_args(AttentionName):
        raise ConfigError(f"attention '{name}' is not one of {', '.join(get_args(AttentionName))}")
    return FlexKernel() if name == "flex" else SdpaKernel()


def training_kernel(config: ModelConfig, device: torch.device) -> AttentionKernel:
    """The faster kernel to train with on a device.

    Args:
        config: backbone and width of a head.
        device: where it trains.

    Returns:
        flex attention for `cdlm` on a GPU that compiles it (capability 8.0 or more, heads at least 16 wide), which
        skips what a block does not see; otherwise scaled dot product, which for `ar` has a causal kernel of its own.
    """
    is_sparse = config.backbone == "cdlm" and config.head_width >= _FLEX_HEAD_WIDTH
    if device.type == "cuda" and is_sparse and torch.cuda.get_device_capability(device) >= _FLEX_CAPABILITY:
        return FlexKernel()
    return SdpaKernel()


def rope_angles(
    pos: Int[Tensor, "*rows T"], head_width: int, base: float
) -> tuple[Float[Tensor, "*rows T {head_width//2}"], Float[Tensor, "*rows T {head_width//2}"]]:
    """Cosine and sine of the rotary angles, computed in fp32 as in the release.

    Args:
        pos: absolute positions.
        head_width: d, even.
        base: base of the geometric series of frequencies.

    Returns:
        cos and sin of pos · base^(−2j/d), each [... T d/2] fp32.
    """
    exponent = torch.arange(0, head_width, 2, device=pos.device, dtype=torch.float32) / head_width
    angle = pos.to(torch.float32)[..., None] * (1.0 / base**exponent)
    return angle.cos(), angle.sin()


def rotate(
    x: Float[Tensor, "B H T d"], cos: Float[Tensor, "*rows T e"], sin: Float[Tensor, "*rows T e"]
) -> Float[Tensor, "B H T d"]:
    """Rotary position embedding, half-split convention.

    Args:
        x: queries or keys.
        cos: cosines of the angles, e = d/2, [T e] or [B 1 T e]; the rotation runs in the wider dtype of `x` and these.
        sin: sines of the angles.

    Returns:
        rotated `x`, in the dtype of `x`.
    """
    first, second = x.chunk(2, dim=-1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1).to(x.dtype)
