"""How tokens are chosen from logits: settings, adjustments, confidence, and the draw.

Here `n` counts open positions (masked, and still to be filled) over all requests of a forward. All
functions are pure and treat every row by itself, so that a request's tokens do not depend on its companions.
"""

from typing import Annotated, Literal

import torch
from jaxtyping import Bool, Float, Int
from pydantic import Field
from torch import Tensor

from vitrail.model import ModelConfig
from vitrail.settings import Seed, Settings

Special = Literal["eoc", "eos"]
_COLDEST = 1e-6


class Sampling(Settings):
    """How one request is sampled.

    Attributes:
        max_new_tokens: tokens to add to the prompt, at most.
        temperature: of the softmax; 0 takes the most likely token.
        top_p: smallest probability mass that the draw is cut to.
        tokens_per_step: tokens committed by one forward.
        repetition_penalty: logits of ids already in the row are divided (positive) or multiplied (negative) by it.
        seed: of the request's own generator.
        stop_ids: ids that end the text; they are kept as its last token.
        allowed_specials: special tokens that may be sampled: `eoc` ends a chunk, `eos` ends the text.
        num_alternatives: most likely ids recorded beside each token; they do not change the text.
    """

    max_new_tokens: Annotated[int, Field(ge=1)] = 64
    temperature: Annotated[float, Field(ge=0)] = 0.0
    top_p: Annotated[float, Field(gt=0, le=1)] = 1.0
    tokens_per_step: Annotated[int, Field(ge=1)] = 1
    repetition_penalty: Annotated[float, Field(ge=0.01, le=100)] = 1.0
    seed: Seed = 0
    stop_ids: tuple[int, ...] = ()
    allowed_specials: tuple[Special, ...] = ()
    num_alternatives: Annotated[int, Field(ge=0, le=64)] = 0


def stop_ids(config: ModelConfig, sampling: Sampling) -> frozenset[int]:
    """Ids that end the text of a request.

    Args:
        config: of the model.
        sampling: of the request.

    Returns:
        the ids.
    """
    eos = {config.eos_id} if "eos" in sampling.allowed_specials else set()
    return frozenset(sampling.stop_ids) | eos


def banned_ids(config: ModelConfig, sampling: Sampling) -> list[int]:
    """Special ids that a request may not sample.

    Args:
        config: of the model.
        sampling: of the request; its stop ids are always allowed.

    Returns:
        the ids, sorted.
    """
    banned = {config.pad_id, config.bos_id, config.mask_id}
    allowed = stop_ids(config, sampling) | ({config.eoc_id} if "eoc" in sampling.allowed_specials else set())
    return sorted(banned | ({config.eos_id, config.eoc_id} - allowed))


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

    Rounded to 1e-4: positions that only rounding errors tell apart (those of a block without any text before
    it are exactly tied) then fill from the left, whatever the batch.

    Args:
        scores: adjusted logits.

    Returns:
        values <= 0, in nats.
    """
    return ((scores.amax(-1) - scores.logsumexp(-1)) * 1e4).round() / 1e4


def draw_tokens(
    scores: Float[Tensor, "n V"],
    temperature: Float[Tensor, " n"],
    top_p: Float[Tensor, " n"],
    uniform: Float[Tensor, " n"],
) -> Int[Tensor, " n"]:
    """One token per row: the most likely, or a draw from the nucleus by inverting its distribution.

    Args:
        scores: adjusted logits.
        temperature: 0 takes the most likely token.
        top_p: tokens whose more likely ones hold at most this mass stay (the first always).
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
    ids = torch.arange(probs.shape[-1], device=probs.device).repeat(len(probs), 1)
    is_cut = top_p < 1
    # Sorting the vocabulary is the dearest part of a draw: only a nucleus needs it.
    probs[is_cut], ids[is_cut] = probs[is_cut].sort(dim=-1, descending=True, stable=True)
    mass = probs.cumsum(-1)
    kept = torch.where(mass - probs <= top_p[:, None], mass, torch.zeros_like(mass)).amax(-1)
    # Rounding can lift the product to the whole mass, and the draw behind all tokens that have any.
    place = torch.minimum(uniform.to(mass.dtype) * kept, kept.nextafter(torch.zeros_like(kept)))
    drawn = ids.gather(-1, torch.searchsorted(mass, place[:, None], right=True))[:, 0]
    return torch.where(is_drawn, drawn, best)
