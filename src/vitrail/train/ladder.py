"""The ladder of sizes: every quantity of a model and its run as a function of width (and depth), 1 M to 8 B.

Between two anchors a quantity follows a power of the width. The anchors are the small model of this project
(width 128, measured in `docs/lab.md`) and the released 8B model (width 4096, stated); what lies between is chosen.
S stated in the paper, R reported of it, C chosen here:

| quantity | small end | large end | between |
|---|---|---|---|
| width, depth | 128 x 6, lab | 4096 x 32, S | C: one layer or one width at a time |
| heads | width 32 each, lab | width 128 each, S | C |
| key/value heads | as many as heads, lab | 4, S | C: 4 from width 512 on |
| MLP inner width | 2 x width, lab | 4 x width, S | C: from width 384 on it grows |
| norm order | pre, lab | post, S | C: post from width 1024 on |
| block | 32, lab | 64, S (appendix J.1) | C: 64 from width 512 on |
| known concepts | 128, lab | 33,732, S | C; discovered ones 3 x as many, S |
| rank | 32, lab | 256, S | C |
| kept concepts | 16 known, lab | 32 known, S | C; discovered ones 4 x as many, S |
| vocabulary | 2,048, lab | 100,281, S | C |
| sequence length | 256, lab | 4,096, S | C |
| tokens in a batch | 1,024 at 1.3 M, lab | 524,288 at 1 B, S | C: a power of the parameters |
| rates | Muon 0.03 at width 128, 0.012 from 192 on, lab | AdamW 4e-4, S | C: AdamW from width 1024 on, 3e-4 at 4096 |
| end of the run in which rates fall | 0.9, lab (long runs) | 0.3, C (WSD, S) | C: 0.3 from width 512 on |
| sequences at once | all | 16,384 tokens, C | C: layers are recomputed in the backward from width 2048 on |
"""

import math
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from typing import Any

from vitrail.model import ModelConfig
from vitrail.text import ControlIds
from vitrail.train.shape import ModelSettings, model_config

_SMALL, _RELEASED = 128, 4096
_MEASURED_PARAMETERS, _MEASURED_BATCH_TOKENS = 1.3e6, 1024
_PAPER_PARAMETERS, _PAPER_BATCH_TOKENS = 1e9, 524_288
_MICRO_TOKENS = 16_384
_WIDE_HEADS, _POST_NORM, _RECOMPUTE = 512, 1024, 2048

_MATRIX = ((128, 0.03), (192, 0.012), (384, 0.012), (1024, 0.0004), (4096, 0.0003))
_EMBEDDING = ((128, 0.005), (192, 0.002), (384, 0.002), (1024, 0.0004), (4096, 0.0003))
_HEAD = ((128, 0.0012), (192, 0.00048), (384, 0.00048), (1024, 0.0004), (4096, 0.0003))
_NORM = ((128, 0.003), (192, 0.0012), (384, 0.0012), (1024, 0.0004), (4096, 0.0003))
"""Peak rates by width. A rate of 0.003 for the concept heads does not hold for the tens of thousands of steps that
20 tokens a parameter make (`docs/lab.md`): they start 0.4 lower, as the lab's hour-long run did."""


@dataclass(frozen=True, order=True)
class Rung:
    """One size on the ladder: a width and a depth."""

    width: int
    num_layers: int

    def model(self) -> ModelSettings:
        """The shape of the model."""
        width = self.width
        top_k = _whole(width, 16, 32)
        return ModelSettings(
            width=width,
            num_layers=self.num_layers,
            num_heads=_num_heads(width),
            num_kv_heads=4 if width >= _WIDE_HEADS else None,
            intermediate_size=_inner_width(width),
            norm_order="post" if width >= _POST_NORM else "pre",
            block=64 if width >= _WIDE_HEADS else 32,
            discovered_rank=8 * round(_power(width, 32, 256) / 8),
            top_k_known=top_k,
            top_k_discovered=4 * top_k,
        )


@cache
def ladder() -> tuple[Rung, ...]:
    """All sizes, small to large: from one to the next either width or depth grows, and none ever falls."""
    widths = [steps * 8 << octave for octave in range(6) for steps in (8, 9, 10, 11, 12, 14)] + [_RELEASED]
    rungs = [Rung(widths[0], _depth(widths[0]))]
    for narrow, wide in pairwise(widths):
        rungs += [Rung(narrow, layers) for layers in range(_depth(narrow) + 1, _depth(wide) + 1)]
        rungs.append(Rung(wide, _depth(wide)))
    return tuple(rungs)


def suggested_concepts(width: int) -> int:
    """Known concepts that a library for a model of this width should hold.

    Args:
        width: of the model.

    Returns:
        C; at width 4096 the released library's 33,732.
    """
    return _whole(width, 128, 33_732)


def suggested_vocab(width: int) -> int:
    """Tokens that the vocabulary of a model of this width should have.

    Args:
        width: of the model.

    Returns:
        V; at width 4096 the released tokenizer's 100,281.
    """
    return _whole(width, 2048, 100_281)


def suggested_length(width: int) -> int:
    """Tokens in a training sequence of a model of this width, a power of two.

    Args:
        width: of the model.

    Returns:
        T; 4096 from width 1024 on, as in the paper's scaling runs (appendix G).
    """
    return min(4096, max(256, 1 << round(math.log2(4096 * (width / 1024) ** 1.5))))


def assumed_config(
    settings: ModelSettings,
    *,
    vocab_size: int | None = None,
    num_concepts: int | None = None,
    max_length: int | None = None,
) -> ModelConfig:
    """The configuration of a model whose corpus is not there yet: what is not given is what its width suggests.

    Args:
        settings: shape of the model.
        vocab_size: V, where the settings do not say it.
        num_concepts: C, where the settings do not say it.
        max_length: T.

    Returns:
        the configuration, with the last ids of the vocabulary as control tokens.

    Raises:
        ConfigError: the settings do not fit together.
    """
    vocab = settings.vocab_size or vocab_size or suggested_vocab(settings.width)
    last = vocab - 1
    return model_config(
        settings,
        vocab_size=vocab,
        num_concepts=settings.num_concepts or num_concepts or suggested_concepts(settings.width),
        max_length=max_length or suggested_length(settings.width),
        controls=ControlIds(*(max(0, last - back) for back in (3, 2, 4, 1, 0))),
    )


def run_values(width: int, parameters: int, total_tokens: int) -> dict[str, Any]:
    """What the run of a model takes beside its shape: batch, rates, memory.

    Args:
        width: of the model.
        parameters: of the model.
        total_tokens: of the run.

    Returns:
        nested plain values, as a settings file has them.
    """
    length, batch_tokens = suggested_length(width), _batch_tokens(parameters)
    batch_size = max(1, batch_tokens // length)
    in_memory = max(1, _MICRO_TOKENS // length)
    while batch_size % in_memory and in_memory < batch_size:
        in_memory //= 2
    num_steps = max(1, round(total_tokens / (batch_size * length)))
    return {
        "total_tokens": total_tokens,
        "batch_size": batch_size,
        "micro_batch": in_memory if in_memory < batch_size else None,
        "activation_checkpointing": width >= _RECOMPUTE,
        "optim": {
            "matrices": "muon" if width < _POST_NORM else "adamw",
            "matrix_rate": _rate(_MATRIX, width),
            "embedding_rate": _rate(_EMBEDDING, width),
            "head_rate": _rate(_HEAD, width),
            "norm_rate": _rate(_NORM, width),
            "rate": {
                "warmup_steps": min(2000, max(40, num_steps // 100)),
                "decay_share": 0.9 if width < _WIDE_HEADS else 0.3,
            },
        },
    }


def _batch_tokens(parameters: int) -> int:
    """Tokens in a batch, 2^k or 1.5 · 2^k so that ranks and micro-batches divide it."""
    exponent = math.log(_PAPER_BATCH_TOKENS / _MEASURED_BATCH_TOKENS) / math.log(
        _PAPER_PARAMETERS / _MEASURED_PARAMETERS
    )
    wanted = _MEASURED_BATCH_TOKENS * max(1.0, parameters / _MEASURED_PARAMETERS) ** exponent
    octave = 1 << int(math.log2(wanted))
    return min((octave, octave * 3 // 2, octave * 2), key=lambda tokens: abs(math.log(tokens / wanted)))


def _power(width: int, small: int, released: int) -> float:
    """A power of the width through (128, small) and (4096, released)."""
    exponent = math.log(released / small) / math.log(_RELEASED / _SMALL)
    return float(released * (width / _RELEASED) ** exponent)


def _whole(width: int, small: int, released: int) -> int:
    return max(1, round(_power(width, small, released)))


def _depth(width: int) -> int:
    return _whole(width, 6, 32)


def _num_heads(width: int) -> int:
    """Heads double where their width rests, and rest where it doubles, so that it grows from 32 to 128."""
    octave = 1 << (width.bit_length() - 1)
    heads = {64: 2, 128: 4, 256: 8, 512: 8, 1024: 16, 2048: 16, 4096: 32}[octave]
    eighths = 8 * width // octave
    if octave in (256, 1024) or eighths <= 11:
        return heads
    return heads * 3 // 2 if eighths == 12 else heads * 2


def _inner_width(width: int) -> int:
    """From 2 to 4 times the width, a multiple of 64 where it is no plain double."""
    grown = max(0.0, math.log(width / 384) / math.log(_RELEASED / 384))
    return 2 * width if not grown else 64 * round(width * (2 + 2 * grown) / 64)


def _rate(anchors: tuple[tuple[int, float], ...], width: int) -> float:
    """A power of the width between two anchors, constant outside them, to three digits."""
    for (left, start), (right, stop) in pairwise(anchors):
        if width < right:
            share = max(0.0, math.log(width / left) / math.log(right / left))
            return float(f"{start * (stop / start) ** share:.3g}")
    return anchors[-1][1]
