"""Options of a run of the reference, under our names, and how they are read from a recorded run.

A record of a `generation.json` holds released names (`mai_lm_target`, `mask_token_id`); `_RELEASED_*` are the
tables between them and ours. A key that is absent or null keeps the reference's default, but a null `eot_id`
says that there is no end-of-turn token.
"""

from collections.abc import Mapping
from typing import Any, Literal

import torch
from jaxtyping import Int
from pydantic import Field
from torch import Tensor

from vitrail.errors import ConfigError, nearest
from vitrail.model import ModelConfig
from vitrail.settings import Settings

_RELEASED_STEERING = {
    "concept_ids": "concept_ids",
    "mai_lm_target": "target",
    "normalize_mai_lm_target": "is_normalized",
    "inject_layer": "layer",
    "inject_alpha_schedule": "schedule",
    "cutoff_tokens": "cutoff_tokens",
    "relu_logit_mask": "relu_strengths",
}
_RELEASED_IDS = {
    "mask_token_id": "mask_id",
    "pad_token_id": "pad_id",
    "eos_token_id": "eos_id",
    "endofchunk_token_id": "eoc_id",
    "eot_id": "eot_id",
}


class ReferenceOptions(Settings):
    """How the reference generates; the defaults are its own.

    Attributes:
        max_new_tokens: N, a multiple of the block.
        steps: denoising steps in all, a multiple of the number of blocks; None is N.
        temperature: without effect under entropy sampling.
        top_p: nucleus; 0 without entropy sampling takes the most likely token.
        repetition_penalty: divides positive and multiplies negative logits of tokens already in the row.
        use_entropy_sampling: choose the temperature of each draw by the entropy of its distribution.
        cfg_scale: s of the guidance u + (s+1)(c − u); 0 is off.
        seed: of all draws; None draws from torch's global stream.
        stop_tokens: they end the generation, but only at the end of a block.
    """

    max_new_tokens: int = Field(default=1024, ge=1)
    steps: int | None = Field(default=None, ge=1)
    temperature: float = Field(default=1.2, ge=0)
    top_p: float = Field(default=0.8, ge=0, le=1)
    repetition_penalty: float = Field(default=1.1, gt=0)
    use_entropy_sampling: bool = True
    cfg_scale: float = Field(default=0.0, ge=0)
    seed: int | None = None
    stop_tokens: tuple[int, ...] = ()

    def steps_per_block(self, block: int) -> int:
        """S, after the reference's requirements are checked.

        Args:
            block: tokens in a generation block.

        Returns:
            denoising steps of each block.

        Raises:
            ConfigError: N is no multiple of the block, or the steps are none of the number of blocks.
        """
        num_blocks, rest = divmod(self.max_new_tokens, block)
        if rest:
            raise ConfigError(
                f"max_new_tokens {self.max_new_tokens} is not a multiple of the block {block}, as the reference wants; "
                "round it up"
            )
        steps, rest = divmod(self.steps or self.max_new_tokens, num_blocks)
        if rest:
            raise ConfigError(
                f"steps {self.steps} is not a multiple of the {num_blocks} blocks, as the reference wants"
            )
        return steps


class ReferenceSteering(Settings):
    """How the reference steers: an injection, a ReLU logit mask, or both.

    Attributes:
        concept_ids: known concepts, whose embedding rows are summed; empty injects nothing.
        target: of the largest logit (normalised), or the strength α itself.
        is_normalized: whether α is `target` divided by the peak alignment of the direction.
        layer: inject after every block n ≥ layer, blocks counted from 1; None is num_layers // 2.
        schedule: `fixed`, or `hard_cutoff`: only while fewer than `cutoff_tokens` are committed.
        cutoff_tokens: see `schedule`.
        relu_strengths: concept id → strength with which its positive alignment is taken from the logits.
    """

    concept_ids: tuple[int, ...] = ()
    target: float = 0.0
    is_normalized: bool = True
    layer: int | None = Field(default=None, ge=0)
    schedule: Literal["fixed", "hard_cutoff"] = "fixed"
    cutoff_tokens: int = Field(default=32, ge=0)
    relu_strengths: dict[int, float] = Field(default_factory=dict)


class ReferenceIds(Settings):
    """Control tokens in force; a run may override those of the configuration."""

    mask_id: int
    pad_id: int
    eos_id: int
    eoc_id: int
    eot_id: int | None

    @classmethod
    def of(cls, config: ModelConfig) -> "ReferenceIds":
        """The ids of a configuration.

        Args:
            config: of the model.

        Returns:
            its ids.
        """
        return cls(**{ours: getattr(config, ours) for ours in _RELEASED_IDS.values()})


def read_prompt(run: Mapping[str, Any]) -> Int[Tensor, "B P"]:
    """The prompt of a recorded run.

    Args:
        run: the record; `prompt` is a list of token ids, or of such lists of equal length.

    Returns:
        [B P] token ids, B = 1 for a single list.

    Raises:
        ConfigError: no prompt, or one that is not made of token ids.
    """
    try:
        ids = torch.tensor(run["prompt"], dtype=torch.long)
    except (KeyError, TypeError, ValueError) as error:
        raise ConfigError("run: 'prompt' must be a list of token ids (or of such lists of equal length)") from error
    return ids if ids.ndim == 2 else ids.reshape(1, -1)


def read_options(run: Mapping[str, Any]) -> ReferenceOptions:
    """The generation options of a recorded run.

    Args:
        run: the record.

    Returns:
        the options.

    Raises:
        ConfigError: an unknown key or a wrong value.
    """
    given = {name: value for name, value in (run.get("generation") or {}).items() if value is not None}
    return ReferenceOptions.parse(given, where="generation")


def read_steering(run: Mapping[str, Any]) -> ReferenceSteering | None:
    """The steering of a recorded run.

    Args:
        run: the record.

    Returns:
        the steering, or None where the run has none.

    Raises:
        ConfigError: an unknown key or a wrong value.
    """
    if not run.get("steering"):
        return None
    ours = _renamed(run["steering"], _RELEASED_STEERING, "steering")
    given = {name: value for name, value in ours.items() if value is not None}
    return ReferenceSteering.parse(given, where="steering")


def read_ids(run: Mapping[str, Any], config: ModelConfig) -> ReferenceIds:
    """The control tokens of a recorded run.

    Args:
        run: the record.
        config: of the model, whose ids stand where the record has none.

    Returns:
        the ids.

    Raises:
        ConfigError: an unknown key or a wrong value.
    """
    ours = _renamed(run.get("special_ids") or {}, _RELEASED_IDS, "special_ids")
    given = {name: value for name, value in ours.items() if value is not None or name == "eot_id"}
    return ReferenceIds.parse({**ReferenceIds.of(config).model_dump(), **given}, where="special_ids")


def _renamed(values: Mapping[str, Any], names: Mapping[str, str], where: str) -> dict[str, Any]:
    for key in values:
        if key not in names:
            raise ConfigError(f"{where}: unknown key '{key}'{nearest(key, names) or '; known: ' + ', '.join(names)}")
    return {names[key]: value for key, value in values.items()}
