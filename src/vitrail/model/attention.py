"""Which positions see which, and the kernels that compute it (§5.2).

A mask is a predicate on absolute positions; `dense_mask` is its table. `True` means "takes part".
A query block over a finished prefix sees every key, so it needs no mask at all.

Letters: B batch, H query heads, G key/value heads, d head width,
T queries, S keys (finished prefix and queries).
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, Protocol, runtime_checkable

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

from vitrail.errors import ConfigError


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
        starts: [B] length of each row's prefix, whole blocks; None where all have `start`.
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

    def stretches(self) -> list[slice]:
        """Queries of one block each; under `cdlm` they see every key up to their own end: no mask.

        Returns:
            slices of 0..num_queries, in order.
        """
        bounds = range(-(self.start % self.block), self.num_queries, self.block)
        return [slice(max(0, first), min(first + self.block, self.num_queries)) for first in bounds]


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


def padded_mask(visible: Visibility, starts: Int[Tensor, " B"]) -> Bool[Tensor, "B 1 T S"]:
    """The pattern of rows with prefixes of different lengths: keys in the padding are hidden.

    Args:
        visible: the pattern.
        starts: [B] length of each row's prefix.

    Returns:
        [B 1 T S], True where the query takes the key in.
    """
    slot = torch.arange(visible.start + visible.num_queries, device=starts.device)
    is_key = (slot < starts[:, None]) | (slot >= visible.start)
    return is_key[:, None, None, :] & dense_mask(visible, starts.device)


Attend = Callable[[Tensor, Tensor, Tensor], Tensor]
"""(q [B H T d], k [B G S d], v [B G S d]) -> [B H T d] for one fixed pattern."""


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
    """`scaled_dot_product_attention`: block by block without a mask (`cdlm`), with a table (`ar`, padded rows)."""

    def prepare(self, visible: Visibility, device: torch.device) -> Attend:
        """The attention function for a pattern.

        Args:
            visible: the pattern.
            device: where queries and keys live.

        Returns:
            softmax(q kᵀ / √d) v over the visible keys.
        """
        if visible.backbone == "ar" or visible.starts is not None:
            starts = None if visible.starts is None else visible.starts.to(device)
            mask = dense_mask(visible, device) if starts is None else padded_mask(visible, starts)
            return _in_fp32_for_cpu_backward(lambda q, k, v: _sdpa(q, k, v, mask))
        stretches = visible.stretches()

        def attend(
            q: Float[Tensor, "B H T d"], k: Float[Tensor, "B G S d"], v: Float[Tensor, "B G S d"]
        ) -> Float[Tensor, "B H T d"]:
            if len(stretches) == 1:
                return _sdpa(q, k, v)
            stops = [visible.start + part.stop for part in stretches]
            parts = [
                _sdpa(q[:, :, part], k[:, :, :stop], v[:, :, :stop])
                for part, stop in zip(stretches, stops, strict=True)
            ]
            return torch.cat(parts, dim=2)

        return _in_fp32_for_cpu_backward(attend)


def _sdpa(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None) -> Tensor:
    is_grouped = q.shape[1] != k.shape[1]
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, enable_gqa=is_grouped)


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
    """Block-sparse attention compiled for CUDA; it skips what the pattern hides."""

    def __init__(self) -> None:
        if not torch.cuda.is_available():
            raise ConfigError("attention 'flex' needs a CUDA device; use 'sdpa' here")
        self._attention = torch.compile(flex_attention, dynamic=False)

    def prepare(self, visible: Visibility, device: torch.device) -> Attend:
        """The attention function for a pattern.

        Args:
            visible: the pattern.
            device: where queries and keys live.

        Returns:
            the same function as `SdpaKernel`, up to rounding.
        """
        starts = None if visible.starts is None else visible.starts.to(device)

        def sees(batch: Tensor, _head: Tensor, query: Tensor, key: Tensor) -> Tensor:
            is_seen = visible.sees(query + visible.start, key)
            return is_seen if starts is None else is_seen & ((key < starts[batch]) | (key >= visible.start))

        num_rows, num_keys = None if starts is None else len(starts), visible.start + visible.num_queries
        mask = create_block_mask(sees, num_rows, None, visible.num_queries, num_keys, device=str(device))

        def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            output = self._attention(q, k, v, block_mask=mask, enable_gqa=q.shape[1] != k.shape[1])
            assert isinstance(output, Tensor)
            return output

        return attend


def attention_kernel(name: Literal["sdpa", "flex"]) -> AttentionKernel:
    """The kernel of a name.

    Args:
        name: `sdpa` (anywhere) or `flex` (CUDA).

    Returns:
        the kernel.

    Raises:
        ConfigError: `flex` without a CUDA device.
    """
    return FlexKernel() if name == "flex" else SdpaKernel()


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
