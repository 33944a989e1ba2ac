"""How tokens are chosen from logits: settings, adjustments, confidence, and the draw.

Here `n` counts open positions (masked, and still to be filled) over all requests of a forward. All
functions are pure and treat every row by itself, so that a request's tokens do not depend on its companions.
"""

from typing import Annotated, Literal

import torch
from jaxtyping import Bool, Float, Int
from pydantic import Field, model_validator
from torch import Tensor

from vitrail.generate.policies import Factor, LeftToRight, Linear, MostConfident, Policy, Threshold
from vitrail.model import ModelConfig
from vitrail.settings import Seed, Settings

Special = Literal["eoc", "eos"]
_COLDEST = 1e-6


class Sampling(Settings):
    """How one request is sampled. An option that has no effect beside another is refused.

    Attributes:
        max_new_tokens: tokens to add to the prompt, at most; 0 only fills the gaps of a prompt.
        temperature: of the softmax; 0 takes the most likely token.
        top_p: smallest probability mass that the draw is cut to.
        top_k: the draw is cut to the most likely ids first; None keeps all.
        order: `confidence` fills in the surest positions first, `left_to_right` the leftmost.
        tokens_per_step: tokens committed by one forward.
        steps_per_block: forwards a block, the tokens spread evenly over them (schedule of the release).
        threshold: commit every position at least this probable, and the surest always.
        factor: commit the n surest positions, for the largest n with (n + 1)(1 − p_n) below it.
        repetition_penalty: logits of ids already in the row are divided (positive) or multiplied (negative) by it.
        guidance: w of classifier-free guidance, logits u + (1 + w)(c − u) with u of the masked prompt; 0 is without.
        grid: blocks are filled on the grid of the `attention`, or on one that begins where the `prompt` ends.
        seed: of the request's own generator.
        stop_ids: ids that end the text; they are kept as its last token.
        banned_ids: ids that are never sampled, beside the special ones.
        allowed_specials: special tokens that may be sampled: `eoc` ends a chunk, `eos` ends the text.
        num_alternatives: most likely ids recorded beside each token; they do not change the text.
        num_concepts: most active known and discovered concepts recorded beside each token.
    """

    max_new_tokens: Annotated[int, Field(ge=0)] = 64
    temperature: Annotated[float, Field(ge=0, le=100)] = 0.0
    top_p: Annotated[float, Field(gt=0, le=1)] = 1.0
    top_k: Annotated[int, Field(ge=1)] | None = None
    order: Literal["confidence", "left_to_right"] = "confidence"
    tokens_per_step: Annotated[int, Field(ge=1)] = 1
    steps_per_block: Annotated[int, Field(ge=1)] | None = None
    threshold: Annotated[float, Field(gt=0, le=1)] | None = None
    factor: Annotated[float, Field(gt=0)] | None = None
    repetition_penalty: Annotated[float, Field(ge=0.01, le=100)] = 1.0
    guidance: Annotated[float, Field(ge=0, le=100)] = 0.0
    grid: Literal["attention", "prompt"] = "attention"
    seed: Seed = 0
    stop_ids: tuple[int, ...] = ()
    banned_ids: tuple[int, ...] = ()
    allowed_specials: tuple[Special, ...] = ()
    num_alternatives: Annotated[int, Field(ge=0, le=64)] = 0
    num_concepts: Annotated[int, Field(ge=0, le=128)] = 0

    @model_validator(mode="after")
    def _has_only_options_with_effect(self) -> "Sampling":
        if self.temperature == 0:
            for name, is_set in (("top_p", self.top_p < 1), ("top_k", self.top_k is not None)):
                if is_set:
                    raise ValueError(f"{name} has no effect at temperature 0; set a temperature or leave it out")
        counts = [name for name in _COUNTS if getattr(self, name) != Sampling.model_fields[name].default]
        if len(counts) > 1:
            raise ValueError(f"{counts[0]} and {counts[1]} both say how many tokens a step commits; give one")
        if self.order == "left_to_right" and counts and counts != ["tokens_per_step"]:
            raise ValueError(f"{counts[0]} goes by confidence and has no effect from left to right; leave one out")
        return self

    @property
    def policy(self) -> Policy:
        """Which positions a step commits."""
        if self.order == "left_to_right":
            return LeftToRight(self.tokens_per_step)
        if self.steps_per_block is not None:
            return Linear(self.steps_per_block)
        if self.threshold is not None:
            return Threshold(self.threshold)
        return MostConfident(self.tokens_per_step) if self.factor is None else Factor(self.factor)


_COUNTS = ("tokens_per_step", "steps_per_block", "threshold", "factor")


def stop_ids(config: ModelConfig, sampling: Sampling) -> frozenset[int]:
    """Ids that end the text of a request; the end of a turn always does, where the model has one.

    Args:
        config: of the model.
        sampling: of the request.

    Returns:
        the ids.
    """
    ends = {config.eos_id} if "eos" in sampling.allowed_specials else set()
    if config.eot_id is not None:
        ends.add(config.eot_id)
    return frozenset(sampling.stop_ids) | ends


def banned_ids(config: ModelConfig, sampling: Sampling) -> list[int]:
    """Ids that a request may not sample: special ones, and those it names.

    Args:
        config: of the model.
        sampling: of the request; of the ids it bans, and of `eos` and `eoc`, those that end its text stay allowed.

    Returns:
        the ids, sorted.
    """
    headers = {token for token in (config.start_header_id, config.end_header_id) if token is not None}
    banned = {config.pad_id, config.bos_id, config.mask_id, *headers}
    allowed = stop_ids(config, sampling) | ({config.eoc_id} if "eoc" in sampling.allowed_specials else set())
    return sorted(banned | (({config.eos_id, config.eoc_id} | set(sampling.banned_ids)) - allowed))


def penalise_repetition(
    scores: Float[Tensor, "n V"], is_seen: Bool[Tensor, "n V"], penalty: Float[Tensor, "n 1"]
) -> Float[Tensor, "n V"]:
    """Scores with ids already in the row made less likely, once per id.

    Args:
        scores: logits.
        is_seen: ids that stand in the row.
        penalty: 1 changes nothing.

    Returns:
        new scores.
    """
    return torch.where(is_seen, torch.where(scores > 0, scores / penalty, scores * penalty), scores)


def log_confidence(scores: Float[Tensor, "n V"]) -> Float[Tensor, " n"]:
    """Log-probability of the most likely token at temperature 1: what the order of commits goes by.

    Args:
        scores: adjusted logits.

    Returns:
        values <= 0, in nats.
    """
    return scores.amax(-1) - scores.logsumexp(-1)


def draw_tokens(
    scores: Float[Tensor, "n V"],
    temperature: Float[Tensor, " n"],
    top_p: Float[Tensor, " n"],
    top_k: Int[Tensor, " n"],
    uniform: Float[Tensor, " n"],
) -> Int[Tensor, " n"]:
    """One token per row: the most likely, or a draw from the nucleus by inverting its distribution.

    Args:
        scores: adjusted logits.
        temperature: 0 takes the most likely token.
        top_p: of the mass of the `top_k` tokens, those whose more likely ones hold at most this share stay
            (the first always).
        top_k: the most likely tokens that stay; V keeps all.
        uniform: in [0, 1): the randomness of each draw.

    Returns:
        token ids.
    """
    best = scores.argmax(-1)
    is_drawn = temperature > 0
    if not is_drawn.any():
        return best
    # Below the floor a draw is the most likely token all the same, and dividing by less would overflow.
    heat = torch.where(is_drawn, temperature.clamp_min(_COLDEST), 1.0).to(scores.dtype)
    probs = (scores / heat[:, None]).softmax(-1)
    rank = torch.arange(probs.shape[-1], device=probs.device)
    ids = rank.repeat(len(probs), 1)
    is_cut = (top_p < 1) | (top_k < len(rank))
    # Sorting the vocabulary is the dearest part of a draw: only a nucleus needs it.
    probs[is_cut], ids[is_cut] = probs[is_cut].sort(dim=-1, descending=True, stable=True)
    probs = torch.where(is_cut[:, None] & (rank >= top_k[:, None]), 0.0, probs)
    mass = probs.cumsum(-1)
    limit = torch.where(top_p < 1, top_p.to(mass.dtype) * mass[:, -1], mass[:, -1])
    kept = torch.where(mass - probs <= limit[:, None], mass, torch.zeros_like(mass)).amax(-1)
    # Rounding can lift the product to the whole mass, and the draw behind all tokens that have any.
    place = torch.minimum(uniform.to(mass.dtype) * kept, kept.nextafter(torch.zeros_like(kept)))
    drawn = ids.gather(-1, torch.searchsorted(mass, place[:, None], right=True))[:, 0]
    return torch.where(is_drawn, drawn, best)
