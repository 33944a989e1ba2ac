"""How much of a prediction the parts carry (§7, reported Eq. 22).

For the token y that the model predicts at a held-out masked position, a part's share is
|part·W_y| over the sum of that for known, discovered and residual; the metric is the mean over positions.
Known plus discovered is the paper's contribution. Three readings:

- raw: the formula as it stands;
- `centred`: with W_y − W̄ (mean over the vocabulary), since softmax ignores a shift common to all logits;
- `context`: after each part's corpus mean is subtracted, since a part that is the same everywhere says
  nothing about this position.

A share is not an effect: the deletion test stands beside it.
"""

from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from vitrail.metrics.deletion import PARTS, PartMeans
from vitrail.metrics.intervals import mean_interval, plain
from vitrail.metrics.states import MaskedStates, decompose, predicted_tokens
from vitrail.model import ConceptLM


@torch.no_grad()
def contribution(model: ConceptLM, states: MaskedStates, means: PartMeans, *, seed: int = 0) -> dict[str, Any]:
    """Shares of the parts at masked positions, with intervals over sequences.

    Args:
        model: the model.
        states: held-out masked positions.
        means: corpus means of the parts at the same noise, from the train split.
        seed: of the bootstrap.

    Returns:
        `known`, `discovered`, `residual` (raw, sum to one), `known_context`, `n` (positions), `ci95` of each,
        and `centred` and `context` with all three parts.
    """
    out = decompose(model, states.hidden)
    predicted = predicted_tokens(model, out.composed[0])
    parts = [getattr(out, part)[0] for part in PARTS]
    varying = [part - getattr(means, name) for part, name in zip(parts, PARTS, strict=True)]
    weight = model.transformer.lm_head.weight
    raw, centred, context = (
        part_shares(given, predicted, head)
        for given, head in ((parts, weight), (parts, weight - weight.mean(0)), (varying, weight))
    )
    clusters = states.sequence.numpy()
    columns: dict[str, Tensor] = {name: raw[:, column] for column, name in enumerate(PARTS)} | {
        "known_context": context[:, 0]
    }
    figures = {
        name: mean_interval(shares.double().numpy(), clusters=clusters, seed=seed) for name, shares in columns.items()
    }
    table = {
        **{name: figure.value for name, figure in figures.items()},
        "n": len(predicted),
        "ci95": {name: figure.ci95 for name, figure in figures.items()},
        "centred": _by_part(centred),
        "context": _by_part(context),
    }
    return dict(plain(table))


def part_shares(
    parts: list[Tensor], tokens: Int[Tensor, " n"], weight: Float[Tensor, "V D"]
) -> Float[Tensor, "n parts"]:
    """|part·W_y| of each part over their sum.

    Args:
        parts: [n D] parts.
        tokens: the token y of each position.
        weight: rows W_y of the LM head.

    Returns:
        shares that sum to one in each row.
    """
    rows = weight[tokens].float()
    pushes = torch.stack([(part.float() * rows).sum(-1).abs() for part in parts], dim=1)
    return pushes / pushes.sum(1, keepdim=True).clamp(min=torch.finfo(pushes.dtype).tiny)


def _by_part(shares: Float[Tensor, "n parts"]) -> dict[str, float]:
    means: list[float] = shares.double().mean(0).tolist()
    return dict(zip(PARTS, means, strict=True))
