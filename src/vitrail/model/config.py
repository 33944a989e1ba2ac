"""Shape and flags of a model, and their names in a released `config.json`.

Python names follow the design (`width`, `block`, `discovered`); JSON names stay as released (`n_embd`,
`diff_block_size`, `unknown_topk`). `_RELEASED` is the one table between them. Defaults are those of the
released 8B base model.
"""

import re
import warnings
from collections.abc import Mapping
from typing import Any, Literal, get_args

from pydantic import Field, model_validator

from vitrail.errors import CheckpointError, ConfigError
from vitrail.settings import Settings
from vitrail.text import ControlIds

_RELEASED = {
    "backbone": "backbone",
    "interpretable": "interpretable",
    "vocab_size": "vocab_size",
    "num_layers": "n_layers",
    "num_heads": "n_head",
    "num_kv_heads": "n_kv_heads",
    "width": "n_embd",
    "max_length": "block_size",
    "block": "diff_block_size",
    "use_rms_norm": "use_rms_norm",
    "norm_eps": "norm_eps",
    "norm_order": "norm_order",
    "use_qk_norm": "use_qk_norm",
    "use_rope": "use_rope",
    "rope_base": "rope_base",
    "rope_full_precision": "rope_full_precision",
    "clip_qkv": "clip_qkv",
    "mlp_type": "mlp_type",
    "activation": "activation",
    "mlp_ratio": "mlp_ratio",
    "intermediate_size": "intermediate_size",
    "use_bias": "use_bias",
    "tie_embeddings": "weight_sharing",
    "pad_id": "pad_token_id",
    "bos_id": "bos_token_id",
    "eos_id": "eos_token_id",
    "mask_id": "mask_token_id",
    "eoc_id": "endofchunk_token_id",
    "instruct": "instruct",
    "start_header_id": "start_header_id",
    "end_header_id": "end_header_id",
    "eot_id": "eot_id",
}
_RELEASED_CONCEPT = {
    "num_concepts": "n_concepts",
    "num_discovered": "n_unknown_concepts",
    "use_attention_known": "use_attention_known",
    "use_attention_discovered": "use_attention_unknown",
    "top_k_known": "topk_known",
    "top_k_known_features": "topk_known_features",
    "top_k_discovered": "unknown_topk",
    "use_discovered": "use_unknown",
    "apply_top_k_to_discovered": "apply_topk_to_unknown",
    "top_k_on_logits": "topk_on_logits",
    "factorize_discovered": "factorize_unknown",
    "discovered_rank": "factorize_rank",
    "use_residual": "use_epsilon_correction",
    "slab": "concept_block_size",
    "pad_multiple": "pad_multiple",
}
Activation = Literal["gelu", "relu", "silu"]
_ACTIVATIONS = get_args(Activation)
_SPECIAL_IDS = ("pad_id", "bos_id", "eos_id", "mask_id", "eoc_id", "start_header_id", "end_header_id", "eot_id")
_WITHOUT_EFFECT = {
    *("model_type", "auto_map", "architectures", "torch_dtype", "dtype", "transformers_version"),
    *("concept_dim", "max_concepts", "store_unknown_weights", "inject_layer", "inject_alpha", "concept"),
}


class ModelConfig(Settings):
    """Shape and flags of a `ConceptLM` (§5)."""

    backbone: Literal["cdlm", "ar"] = "cdlm"
    interpretable: bool = True
    vocab_size: int = Field(default=100281, ge=1)
    num_layers: int = Field(default=32, ge=1)
    num_heads: int = Field(default=32, ge=1)
    num_kv_heads: int | None = Field(default=4, ge=1)
    width: int = Field(default=4096, ge=1)
    max_length: int = Field(default=4096, ge=1)
    block: int = Field(default=64, ge=1)
    use_rms_norm: bool = True
    norm_eps: float = Field(default=1e-5, gt=0)
    norm_order: Literal["pre", "post"] = "post"
    use_qk_norm: bool = True
    use_rope: bool = True
    rope_base: float = Field(default=500000.0, gt=0)
    rope_full_precision: bool = True
    clip_qkv: float | None = Field(default=10.0, gt=0)
    mlp_type: Literal["swiglu", "standard"] = "swiglu"
    activation: Activation = "gelu"
    mlp_ratio: int = Field(default=4, ge=1)
    intermediate_size: int | None = Field(default=None, ge=1)
    use_bias: bool = False
    tie_embeddings: bool = True
    pad_id: int = Field(default=100277, ge=0)
    bos_id: int = Field(default=100278, ge=0)
    eos_id: int = Field(default=100257, ge=0)
    mask_id: int = Field(default=100280, ge=0)
    eoc_id: int = Field(default=100279, ge=0)
    instruct: bool = False
    start_header_id: int | None = Field(default=None, ge=0)
    end_header_id: int | None = Field(default=None, ge=0)
    eot_id: int | None = Field(default=None, ge=0)
    num_concepts: int = Field(default=33732, ge=1)
    num_discovered: int | None = Field(default=101196, ge=1)
    use_attention_known: bool = False
    use_attention_discovered: bool = False
    top_k_known: int | None = Field(default=32, ge=1)
    top_k_known_features: int | None = Field(default=32, ge=1)
    top_k_discovered: int | None = Field(default=128, ge=1)
    use_discovered: bool = True
    apply_top_k_to_discovered: bool = True
    top_k_on_logits: bool = False
    factorize_discovered: bool = True
    discovered_rank: int = Field(default=256, ge=1)
    use_residual: bool = True
    slab: int = Field(default=4096, ge=1)
    pad_multiple: int = Field(default=16, ge=1)

    @model_validator(mode="after")
    def _fits_together(self) -> "ModelConfig":
        if self.width % self.num_heads:
            raise ValueError(f"width {self.width} is not a multiple of num_heads {self.num_heads}; change one of them")
        if self.num_heads % self.kv_heads:
            raise ValueError(
                f"num_heads {self.num_heads} is not a multiple of num_kv_heads {self.kv_heads}; change one of them"
            )
        if self.use_rope and self.head_width % 2:
            raise ValueError(
                f"rotary positions need an even share of width per head, got {self.head_width}; "
                "change num_heads, or switch use_rope off"
            )
        if self.interpretable and self.use_discovered and self.num_discovered is None:
            raise ValueError("use_discovered is on but num_discovered is not given; give it, or switch it off")
        for name in _SPECIAL_IDS:
            if (getattr(self, name) or 0) >= self.vocab_size:
                raise ValueError(f"{name} {getattr(self, name)} is outside vocab_size {self.vocab_size}; change one")
        return self

    @property
    def kv_heads(self) -> int:
        """Key/value heads G; equal to the query heads where `num_kv_heads` is None."""
        return self.num_kv_heads or self.num_heads

    @property
    def head_width(self) -> int:
        """Width d of one head."""
        return self.width // self.num_heads

    @property
    def inner_width(self) -> int:
        """Inner width of the MLP (SwiGLU does not shrink it)."""
        return self.intermediate_size or self.mlp_ratio * self.width

    @property
    def controls(self) -> ControlIds:
        """The control tokens, as a tokenizer wants them."""
        return ControlIds(
            pad=self.pad_id,
            bos=self.bos_id,
            eos=self.eos_id,
            eoc=self.eoc_id,
            mask=self.mask_id,
            start_header=self.start_header_id,
            end_header=self.end_header_id,
            eot=self.eot_id,
        )

    @property
    def known_count(self) -> int:
        """C, known concepts of the model; 0 where it has no such head."""
        return self.num_concepts if self.interpretable else 0

    @property
    def discovered_count(self) -> int:
        """M, discovered concepts of the model; 0 where it has no such head."""
        return (self.num_discovered or 0) if self.interpretable and self.use_discovered else 0

    @classmethod
    def from_released(cls, raw: Mapping[str, Any], where: str = "config.json") -> "ModelConfig":
        """Read a released configuration, flat (Hub) or nested (key `concept`).

        Unknown keys are ignored with one warning, since tools around the Hub add many.

        Args:
            raw: the parsed JSON object.
            where: what to call its origin in messages.

        Returns:
            the configuration; keys that are absent keep the defaults of the 8B base model.

        Raises:
            CheckpointError: a value is wrong, or two do not fit together; the message names them.
        """
        concept, streaming_key = raw, "concept_block_size"
        if raw.get("concept") is not None:
            concept, streaming_key = raw["concept"], "block_size"
        if not isinstance(concept, Mapping):
            raise CheckpointError(f"{where}: concept must be a JSON object, got {type(concept).__name__}")
        # `block_size` is the context length at the top level, the streaming slab inside `concept`.
        concept_names = {**_RELEASED_CONCEPT, "slab": streaming_key}
        values = {ours: raw[theirs] for ours, theirs in _RELEASED.items() if theirs in raw}
        values.setdefault("interpretable", concept is not raw)
        is_plain = values["interpretable"] is False  # then no concept key has an effect, and null is as good as none
        values |= {
            ours: concept[theirs]
            for ours, theirs in concept_names.items()
            if theirs in concept and not (is_plain and concept[theirs] is None and not _takes_none(cls, ours))
        }
        values.setdefault("instruct", values.get("eot_id") is not None)  # the published build script leaves it out
        if values.get("norm_order", "post") != "pre":
            values["norm_order"] = "post"
        if values.get("mlp_type", "swiglu") == "swiglu" and values.get("activation") not in _ACTIVATIONS:
            values.pop("activation", None)
        _warn_of_unknown(raw, concept, set(concept_names.values()), where)
        try:
            config = cls.parse(values, where)
        except ConfigError as error:
            message = str(error).removeprefix(f"{where}: ")
            raise CheckpointError(f"{where}: {_in_released_words(message, concept_names)}") from error
        if config.interpretable and concept.get("concept_dim") not in (None, config.width):
            raise CheckpointError(f"{where}: concept_dim {concept['concept_dim']} must equal n_embd {config.width}")
        return config

    def to_released(self) -> dict[str, Any]:
        """The configuration under its released names, flat layout, plus the key `backbone`.

        Returns:
            JSON-serialisable mapping; `from_released` reads it back to an equal configuration.
        """
        ours = self.model_dump()
        released = {theirs: ours[name] for name, theirs in {**_RELEASED, **_RELEASED_CONCEPT}.items()}
        return {
            "model_type": "steerling",
            "architectures": ["SteerlingForCausalLM"],
            **released,
            "concept_dim": self.width,
        }


def _takes_none(cls: type[ModelConfig], name: str) -> bool:
    return type(None) in get_args(cls.model_fields[name].annotation)


def _in_released_words(message: str, concept_names: Mapping[str, str]) -> str:
    """A message about our names, for somebody who reads the released ones."""
    names = {**_RELEASED, **concept_names}
    return re.sub(rf"\b({'|'.join(names)})\b", lambda found: names[found[1]], message)


def _warn_of_unknown(raw: Mapping[str, Any], concept: Mapping[str, Any], concept_keys: set[str], where: str) -> None:
    known = {*_RELEASED.values(), *_WITHOUT_EFFECT, *concept_keys}
    unknown = sorted({*raw, *concept} - known)
    if unknown:
        warnings.warn(f"{where}: ignored unknown keys: {', '.join(unknown)}", stacklevel=3)
