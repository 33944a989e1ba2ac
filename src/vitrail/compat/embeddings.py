"""The reference's embeddings of a text: one part of the decomposition, pooled over positions.

`B` rows, `T` tokens (the text without special tokens), `D` width.
"""

from typing import Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor

from vitrail.errors import ConfigError
from vitrail.model import ConceptLM

Part = Literal["hidden", "composed", "known", "discovered"]
Pooling = Literal["mean", "last", "first", "none"]


@torch.no_grad()
def embed(
    model: ConceptLM, input_ids: Int[Tensor, "B T"], part: Part = "hidden", pooling: Pooling = "mean"
) -> Float[Tensor, "B ..."]:
    """Embed rows of tokens.

    Args:
        model: the network.
        input_ids: [B T] tokens.
        part: h, composed, k̂ or û (the reference's `unknown`; h − k̂ without a discovered head).
        pooling: over positions.

    Returns:
        [B D], or [B T D] without pooling.

    Raises:
        ConfigError: a part other than `hidden` of a model without concept heads, or rows without tokens.
    """
    if not input_ids.shape[1]:
        raise ConfigError("an empty text has no embedding; give at least one token")
    states = _states(model, input_ids, part)
    if pooling == "none":
        return states
    return {"mean": states.mean(1), "last": states[:, -1], "first": states[:, 0]}[pooling]


def _states(model: ConceptLM, input_ids: Tensor, part: Part) -> Tensor:
    hidden = model.hidden(input_ids)
    if part == "hidden":
        return hidden
    if not model.config.interpretable:
        raise ConfigError(f"a model without concept heads has no '{part}' embedding; take 'hidden'")
    output = model.decompose(hidden, with_logits=False)
    if part == "discovered" and not model.unknown_head.num_concepts:
        return hidden - output.known
    states: dict[Part, Tensor] = {"composed": output.composed, "known": output.known, "discovered": output.discovered}
    return states[part]
