"""The shape of a new model: what a user sets, and what the corpus adds (§5, §9.2).

A user sets width, depth, backbone and concept heads; vocabulary, number of known concepts and length of the
sequences come from the packed corpus. Without concepts (`interpretable: false`) the model is the plain twin of
the concept model: the settings of its heads have no effect.
"""

from typing import Literal

from pydantic import Field, model_validator

from vitrail.errors import ConfigError
from vitrail.model import ModelConfig
from vitrail.packed import PackedCorpus
from vitrail.settings import Settings
from vitrail.text import ControlIds

_NOT_OF_THE_MODEL = {"discovered_ratio", "known_bias", "top_k_known", "top_k_discovered", "vocab_size", "num_concepts"}


class ModelSettings(Settings):
    """Shape of a new model; ignored by a continuation, which keeps the shape of what it continues.

    `vocab_size` and `num_concepts` are the corpus's; where they are given, they must agree with it. `known_bias` is
    where the known logits start (rare concepts: low). `discovered_ratio` is M / C (§9.2); 0 leaves the discovered head
    out. `factorize_discovered: false` gives its embedding full rank. A top-k of null sums all concepts.
    `use_residual: false` leaves the residual out of every logit, in training and after.
    """

    backbone: Literal["cdlm", "ar"] = "cdlm"
    interpretable: bool = True
    vocab_size: int | None = Field(default=None, ge=1)
    num_concepts: int | None = Field(default=None, ge=1)
    width: int = 128
    num_layers: int = 6
    num_heads: int = 4
    num_kv_heads: int | None = None
    block: int = 32
    norm_order: Literal["pre", "post"] = "pre"
    use_rms_norm: bool = True
    mlp_type: Literal["swiglu", "standard"] = "swiglu"
    intermediate_size: int | None = 256
    discovered_ratio: float = Field(default=3.0, ge=0)
    discovered_rank: int = 32
    factorize_discovered: bool = True
    use_residual: bool = True
    top_k_known: int | None = Field(default=16, ge=1)
    top_k_discovered: int | None = Field(default=64, ge=1)
    known_bias: float = -4.0

    @model_validator(mode="after")
    def _has_parts(self) -> "ModelSettings":
        if self.interpretable and not (self.use_residual or self.discovered_ratio):
            raise ValueError(
                "use_residual false needs a discovered head (without one the residual always stays); "
                "set discovered_ratio above 0, or use_residual true"
            )
        return self


def model_config(
    settings: ModelSettings, *, vocab_size: int, num_concepts: int, max_length: int, controls: ControlIds
) -> ModelConfig:
    """The configuration of a new model: the user's settings, with what the corpus knows.

    Args:
        settings: width, layers, block and so on.
        vocab_size: V of the corpus's tokenizer.
        num_concepts: C of its library.
        max_length: tokens in its sequences.
        controls: its control tokens.

    Returns:
        the configuration.

    Raises:
        ConfigError: two settings do not fit together, or one does not fit the corpus.
    """
    if settings.backbone == "cdlm":
        _check_length(settings.block, max_length)
    _agree("vocab_size", settings.vocab_size, vocab_size)
    _agree("num_concepts", settings.num_concepts, num_concepts)
    num_discovered = round(settings.discovered_ratio * num_concepts)
    if settings.discovered_ratio:
        num_discovered = max(1, num_discovered)
    values = settings.model_dump(exclude=_NOT_OF_THE_MODEL) | {
        "vocab_size": vocab_size,
        "max_length": max_length,
        "num_concepts": num_concepts,
        "num_discovered": num_discovered or None,
        "use_discovered": num_discovered > 0,
        "top_k_known": _at_most(settings.top_k_known, num_concepts),
        "top_k_known_features": _at_most(settings.top_k_known, num_concepts),
        "top_k_discovered": _at_most(settings.top_k_discovered, num_discovered),
        "apply_top_k_to_discovered": settings.top_k_discovered is not None,
        **{f"{name}_id": getattr(controls, name) for name in ("pad", "bos", "eos", "mask", "eoc")},
        **{f"{name}_id": getattr(controls, name) for name in ("start_header", "end_header", "eot")},
    }
    return ModelConfig.parse(values, where="model settings")


def _check_length(block: int, length: int) -> None:
    """Refuse a diffusion block that no training sequence could fill."""
    if block > length:
        raise ConfigError(
            f"model.block {block} is longer than a training sequence of {length} tokens; lower it, or pack longer ones"
        )


def _agree(name: str, given: int | None, corpus: int) -> None:
    if given not in (None, corpus):
        raise ConfigError(f"model.{name} is {given}, but the packed corpus has {corpus}; set it to that, or to null")


def packed_config(settings: ModelSettings, packed: PackedCorpus) -> ModelConfig:
    """The configuration of a new model for a packed corpus.

    Args:
        settings: width, layers, block and so on.
        packed: gives vocabulary, control tokens, number of concepts, length.

    Returns:
        the configuration.

    Raises:
        ConfigError: two settings do not fit together, or one does not fit the corpus.
    """
    tokenizer = packed.tokenizer()
    return model_config(
        settings,
        vocab_size=tokenizer.vocab_size,
        num_concepts=packed.num_concepts,
        max_length=packed.length,
        controls=tokenizer.controls,
    )


def _at_most(top_k: int | None, count: int) -> int | None:
    return None if top_k is None else min(top_k, max(count, 1))
