"""Block diffusion as it is usually trained (§5.2): the noisy sequence, with a clean copy beside it.

A noisy block must be read after the *clean* text before it. One pass over [noisy ; clean], 2T tokens, does that: noisy
block i sees itself and the clean blocks before it, clean block i sees the clean blocks up to itself, and the loss is on
the noisy half. `cdlm` reads T tokens, noisy ones everywhere. This is the model it is compared with, on the same
backbone and the same weights; `check_equal` holds its logits to block-by-block forwards over a clean prefix.

Letters: T tokens, N blocks of b tokens.
"""

from dataclasses import replace
from typing import Literal

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Int
from torch import Tensor

from vitrail.model import BlockCache, ConceptLM, Injection, ModelConfig, Visibility, init_model
from vitrail.model.attention import Attend
from vitrail.model.backbone import Backbone

Form = Literal["table", "parts"]
"""How attention is computed: with a dense table [2T 2T], or part by part without one."""


def pair_mask(length: int, block: int) -> Bool[Tensor, "2T 2T"]:
    """What the positions of [noisy ; clean] see; True takes part."""
    pos = torch.arange(length) // block
    is_clean = torch.arange(2 * length) >= length
    query, key = torch.cat((pos, pos))[:, None], torch.cat((pos, pos))[None, :]
    from_noisy = torch.where(is_clean[None, :], key < query, key == query)
    return torch.where(is_clean[:, None], is_clean[None, :] & (key <= query), from_noisy)


class PairKernel:
    """Attention over [noisy ; clean]."""

    def __init__(self, form: Form) -> None:
        self.form = form

    def prepare(self, visible: Visibility, device: torch.device) -> Attend:
        """The attention function; `visible` is the pattern of the noisy half alone."""
        length, block = visible.num_queries, visible.block
        table = pair_mask(length, block).to(device)

        def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            if self.form == "table":
                return _sdpa(q, k, v, table)
            return _by_parts(q, k, v, length, block)

        def maybe_wide(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            # As `SdpaKernel` does: on a CPU the bf16 backward is the slower one.
            with torch.autocast(q.device.type, enabled=False):
                return attend(q.float(), k.float(), v.float()).to(q.dtype)

        return maybe_wide if device.type == "cpu" else attend


def _by_parts(q: Tensor, k: Tensor, v: Tensor, length: int, block: int) -> Tensor:
    noisy, clean = [], []
    for start in range(0, length, block):
        stop = min(start + block, length)
        own, prefix, whole = slice(start, stop), slice(length, length + start), slice(length, length + stop)
        keys, values = (torch.cat((x[:, :, prefix], x[:, :, own]), dim=2) for x in (k, v))
        noisy.append(_sdpa(q[:, :, own], keys, values))
        clean.append(_sdpa(q[:, :, length + start : length + stop], k[:, :, whole], v[:, :, whole]))
    return torch.cat((*noisy, *clean), dim=2)


def _sdpa(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None) -> Tensor:
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, enable_gqa=q.shape[1] != k.shape[1])


class PairBackbone(Backbone):
    """A backbone that reads [noisy ; clean]: both halves stand at the positions 0..T-1."""

    def _pass(self, embeddings, cache):  # type: ignore[no-untyped-def]
        shared = super()._pass(embeddings[:, : embeddings.shape[1] // 2], cache)
        if shared.cos is None:
            return shared
        return replace(shared, cos=torch.cat((shared.cos, shared.cos)), sin=torch.cat((shared.sin, shared.sin)))


class BlockDiffusionLM(ConceptLM):
    """`ConceptLM` whose hidden states are those of the noisy half; the step of training is the same."""

    def __init__(self, like: ConceptLM, form: Form = "table") -> None:
        super().__init__(like.config)
        self.transformer = PairBackbone(like.config, PairKernel(form))
        self.load_state_dict(like.state_dict())
        self.clean: Int[Tensor, "B T"] | None = None

    def hidden(
        self,
        input_ids: Int[Tensor, "B T"] | None = None,
        *,
        embeddings: Tensor | None = None,
        injection: Injection | None = None,
        cache: BlockCache | None = None,
    ) -> Tensor:
        """States of the noisy half; `clean` must hold the text."""
        assert input_ids is not None
        assert self.clean is not None
        both = super().hidden(torch.cat((input_ids, self.clean), dim=1))
        return both[:, : input_ids.shape[1]]


@torch.no_grad()
def check_equal(config: ModelConfig, length: int) -> float:
    """Largest difference between the twin's logits and `cdlm` run block by block after a clean prefix.

    Args:
        config: shape of the model.
        length: T; the last block may be short.

    Returns:
        the difference, over both forms, as a share of the largest logit.
    """
    model = init_model(config, 0)
    rng = torch.Generator().manual_seed(1)
    clean = torch.randint(config.vocab_size, (2, length), generator=rng)
    noisy = clean.masked_fill(torch.rand(clean.shape, generator=rng) < 0.5, config.mask_id)
    blocks = []
    for start in range(0, length, config.block):
        own = slice(start, start + config.block)
        states = model.hidden(torch.cat((clean[:, :start], noisy[:, own]), dim=1))[:, start:]
        blocks.append(model.lm_logits(states))
    wanted, worst = torch.cat(blocks, dim=1), 0.0
    forms: tuple[Form, ...] = ("table", "parts")
    for form in forms:
        twin = BlockDiffusionLM(model, form)
        twin.clean = clean
        worst = max(worst, float((twin.lm_logits(twin.hidden(noisy)) - wanted).abs().max()))
    return worst / float(wanted.abs().max())
