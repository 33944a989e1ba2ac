"""The backbone: token or input embeddings in, final hidden states out (§5.2).

Module names are the released tensor names. `cdlm` and `ar` differ only in which positions see which (and so in
what a cache may hold: whole blocks, or any number of tokens).
Letters: B batch, T tokens, D width, G key/value heads, P finished positions in a cache, d head width.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from vitrail.model.attention import Attend, AttentionKernel, Visibility, rope_angles, rotate
from vitrail.model.cache import BlockCache
from vitrail.model.config import ModelConfig


@dataclass(frozen=True, eq=False)
class Injection:
    """A vector added to the residual stream at chosen positions (steering).

    Attributes:
        vector: [B D] direction of each request, already scaled; zeros where a request has none.
        mask: [B T] positions that receive it.
        layer: it is added after every block n ≥ layer, blocks counted from 1; beyond the last
            block nothing is added.
    """

    vector: Float[Tensor, "B D"]
    mask: Bool[Tensor, "B T"]
    layer: int


class RMSNorm(nn.Module):
    """Root-mean-square norm, computed in at least fp32, without bias."""

    def __init__(self, width: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.eps = eps

    def forward(self, x: Float[Tensor, "... D"]) -> Float[Tensor, "... D"]:
        """Scale the last axis to root mean square 1, then by the weight.

        Args:
            x: states.

        Returns:
            normalised states in the dtype of `x`.
        """
        # Under autocast an fp32 weight beside bf16 states takes a slow path: cast it.
        return F.rms_norm(x, self.weight.shape, self.weight.to(x.dtype), self.eps)


def _norm(config: ModelConfig, width: int) -> nn.Module:
    return RMSNorm(width, config.norm_eps) if config.use_rms_norm else nn.LayerNorm(width, eps=1e-5)


@dataclass(frozen=True, eq=False)
class _Pass:
    """What all layers of one forward share."""

    attend: Attend
    cos: Tensor | None
    sin: Tensor | None
    cache: BlockCache | None


class Attention(nn.Module):
    """Grouped-query attention: clamp, norm of queries and keys, rotary positions, softmax."""

    def __init__(self, config: ModelConfig, layer: int) -> None:
        super().__init__()
        self.layer = layer
        self.num_heads, self.kv_heads, self.head_width = config.num_heads, config.kv_heads, config.head_width
        self.clip = config.clip_qkv
        qkv_width = (self.num_heads + 2 * self.kv_heads) * self.head_width
        self.c_attn = nn.Linear(config.width, qkv_width, bias=config.use_bias)
        self.c_proj = nn.Linear(config.width, config.width, bias=config.use_bias)
        self.q_norm = _norm(config, self.head_width) if config.use_qk_norm else nn.Identity()
        self.k_norm = _norm(config, self.head_width) if config.use_qk_norm else nn.Identity()

    def forward(self, x: Float[Tensor, "B T D"], shared: _Pass) -> Float[Tensor, "B T D"]:
        """Attend from each position to what it sees.

        Args:
            x: [B T D] input of the layer.
            shared: pattern, angles and cache of this forward.

        Returns:
            [B T D] output of the projection.
        """
        q, k, v = self.project(x, shared.cos, shared.sin)
        if shared.cache is not None:
            k, v = shared.cache.put(self.layer, k, v)
        mixed = shared.attend(q, k, v)
        output: Tensor = self.c_proj(mixed.transpose(1, 2).flatten(2))
        return output

    def project(
        self, x: Float[Tensor, "B T D"], cos: Tensor | None, sin: Tensor | None
    ) -> tuple[Float[Tensor, "B H T d"], Float[Tensor, "B G T d"], Float[Tensor, "B G T d"]]:
        """Queries, keys and values of each position, rotated by its place.

        Args:
            x: [B T D] input of the layer.
            cos: cosines of the rotary angles, or None without rotary positions.
            sin: sines of the angles, or None.

        Returns:
            q, k and v.
        """
        qkv = self.c_attn(x)
        if self.clip is not None:
            qkv = qkv.clamp(-self.clip, self.clip)
        heads = qkv.unflatten(-1, (-1, self.head_width)).transpose(1, 2)
        q, k, v = heads.split((self.num_heads, self.kv_heads, self.kv_heads), dim=1)
        q, k = self.q_norm(q), self.k_norm(k)
        if cos is not None and sin is not None:
            q, k = rotate(q, cos, sin), rotate(k, cos, sin)
        return q, k, v


_ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "gelu": partial(F.gelu, approximate="tanh"),
    "relu": F.relu,
    "silu": F.silu,
}


class Mlp(nn.Module):
    """One hidden layer."""

    outputs_per_inner = 1

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        fc_width = self.outputs_per_inner * config.inner_width
        self.c_fc = nn.Linear(config.width, fc_width, bias=config.use_bias)
        self.c_proj = nn.Linear(config.inner_width, config.width, bias=config.use_bias)
        self.activation = _ACTIVATIONS[config.activation]

    def forward(self, x: Float[Tensor, "B T D"]) -> Float[Tensor, "B T D"]:
        """Transform each position on its own.

        Args:
            x: [B T D] input of the layer.

        Returns:
            [B T D] output of the projection.
        """
        output: Tensor = self.c_proj(self.activation(self.c_fc(x)))
        return output


class GatedMlp(Mlp):
    """SwiGLU: the first half of `c_fc` is the value, the second half the gate."""

    outputs_per_inner = 2

    def forward(self, x: Float[Tensor, "B T D"]) -> Float[Tensor, "B T D"]:
        """Transform each position on its own.

        Args:
            x: [B T D] input of the layer.

        Returns:
            [B T D] output of the projection.
        """
        value, gate = self.c_fc(x).chunk(2, dim=-1)
        output: Tensor = self.c_proj(F.silu(gate) * value)
        return output


class Block(nn.Module):
    """Attention and MLP with residual connections, normed before or after each."""

    def __init__(self, config: ModelConfig, layer: int) -> None:
        super().__init__()
        self.is_pre_norm = config.norm_order == "pre"
        self.is_recomputed = False
        self.ln_1, self.ln_2 = _norm(config, config.width), _norm(config, config.width)
        self.attn = Attention(config, layer)
        self.mlp = GatedMlp(config) if config.mlp_type == "swiglu" else Mlp(config)

    def forward(self, x: Float[Tensor, "B T D"], shared: _Pass) -> Float[Tensor, "B T D"]:
        """One layer. Post-norm norms the sub-layer's output, not the residual sum.

        Args:
            x: [B T D] residual stream.
            shared: pattern, angles and cache of this forward.

        Returns:
            [B T D] residual stream after the layer.
        """
        if self.is_recomputed and torch.is_grad_enabled():
            output: Tensor = checkpoint(self._layer, x, shared, use_reentrant=False)
            return output
        return self._layer(x, shared)

    def _layer(self, x: Tensor, shared: _Pass) -> Tensor:
        return self.finish(x, self.attn(self.ln_1(x) if self.is_pre_norm else x, shared))

    def finish(self, x: Float[Tensor, "B T D"], attended: Float[Tensor, "B T D"]) -> Float[Tensor, "B T D"]:
        """What follows the attention: its residual connection, and the MLP with its own.

        Args:
            x: [B T D] residual stream before the layer.
            attended: [B T D] output of the attention.

        Returns:
            [B T D] residual stream after the layer.
        """
        if self.is_pre_norm:
            x = x + attended
            x = x + self.mlp(self.ln_2(x))
        else:
            x = x + self.ln_1(attended)
            x = x + self.ln_2(self.mlp(x))
        return x


class Backbone(nn.Module):
    """Embedding, layers, final norm and LM head."""

    def __init__(self, config: ModelConfig, kernel: AttentionKernel) -> None:
        super().__init__()
        self.config, self.kernel = config, kernel
        self.tok_emb = nn.Embedding(config.vocab_size, config.width)
        self.blocks = nn.ModuleList(Block(config, layer) for layer in range(config.num_layers))
        self.ln_f = _norm(config, config.width)
        self.lm_head = nn.Linear(config.width, config.vocab_size, bias=False)
        self.tie()

    def tie(self) -> None:
        """Make LM head and embedding one parameter, where the configuration says so."""
        if self.config.tie_embeddings:
            self.lm_head.weight = self.tok_emb.weight

    def recompute_layers(self) -> None:
        """Keep only the input of each layer for the backward, and compute the rest again there: memory for time."""
        for block in self.blocks:
            assert isinstance(block, Block)
            block.is_recomputed = True

    def compile_layers(self) -> None:
        """Compile what each layer does to its positions; attention keeps its own kernel.

        All layers share two compiled functions, which know neither the mask nor the cache: a longer prefix or
        another pattern compiles nothing anew. Call it last, on the device and in the dtype of use.
        """
        for block in self.blocks:
            assert isinstance(block, Block)
            block.attn.project = torch.compile(block.attn.project, dynamic=True)  # type: ignore[method-assign]
            block.finish = torch.compile(block.finish, dynamic=True)  # type: ignore[method-assign]

    def forward(
        self,
        embeddings: Float[Tensor, "B T D"],
        injection: Injection | None = None,
        cache: BlockCache | None = None,
    ) -> Float[Tensor, "B T D"]:
        """Final hidden states, after the last norm.

        Args:
            embeddings: [B T D] input embeddings.
            injection: what to add to the residual stream, or None.
            cache: keys and values of the finished positions before these, or None.

        Returns:
            [B T D] hidden states h.
        """
        x, shared = embeddings, self._pass(embeddings, cache)
        added = None if injection is None else _added(injection, embeddings.dtype)
        for number, block in enumerate(self.blocks, start=1):
            x = block(x, shared)
            if injection is not None and added is not None and number >= injection.layer:
                x = x + added
        hidden: Tensor = self.ln_f(x)
        return hidden

    def _pass(self, embeddings: Tensor, cache: BlockCache | None) -> _Pass:
        config, device = self.config, embeddings.device
        start = 0 if cache is None else cache.length
        starts = cache.starts if cache is not None and cache.is_ragged else None
        visible = Visibility(config.backbone, config.block, start, embeddings.shape[1], starts)
        attend = self.kernel.prepare(visible, device)
        if not config.use_rope:
            return _Pass(attend, None, None, cache)
        pos = torch.arange(embeddings.shape[1], device=device)
        # Rows at different places have angles of their own, the same for all heads: [B 1 T].
        pos = pos + (start if starts is None else starts.to(device)[:, None, None])
        cos, sin = rope_angles(pos, config.head_width, config.rope_base)
        if not config.rope_full_precision:
            cos, sin = cos.to(embeddings.dtype), sin.to(embeddings.dtype)
        return _Pass(attend, cos, sin, cache)


def _added(injection: Injection, dtype: torch.dtype) -> Tensor:
    return injection.mask[:, :, None] * injection.vector.to(dtype)[:, None, :]
