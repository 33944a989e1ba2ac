"""Snapshots: the row as it was when each token was chosen, and the hidden states it gave.

An explanation is of the prediction that was made, not of the finished text: every token is traced back
to the forward pass that committed it. `Q` generated tokens in the order of the text, `P` prompt tokens,
`n` tokens committed from one snapshot. Snapshots of equal length go through the network together.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from vitrail.generate import Trace
from vitrail.model import ConceptLM, Injection
from vitrail.steer import SteerPlan

PASS_TOKENS = 8192
"""Tokens in one forward pass; bounds memory."""


@dataclass(frozen=True)
class Snapshot:
    """One row of the network's input and the tokens that were committed from it.

    Attributes:
        ids: [T] the row: prompt, tokens committed before, `[MASK]` up to the end of the block (`ar` rows end there).
        reads: [n] positions whose states predict the tokens: their own, or under `ar` the one before.
        is_injected: [T] positions that steering injects at.
        token_ids: [n] what was committed.
        places: [n] which generated tokens these are (0 = first).
        step: number of the denoising step.
        logits: [n] the logits that the generation pass recorded.
        logprobs: [n] log-probabilities (nats) of the tokens when they were chosen.
    """

    ids: Int[Tensor, " T"]
    reads: Int[Tensor, " n"]
    is_injected: Bool[Tensor, " T"]
    token_ids: Int[Tensor, " n"]
    places: Int[Tensor, " n"]
    step: int
    logits: Float[Tensor, " n"]
    logprobs: Float[Tensor, " n"]


def snapshots_of(trace: Trace, device: torch.device) -> list[Snapshot]:
    """The snapshots of a generation, in the order of its steps.

    Args:
        trace: a finished generation.
        device: where the network is.

    Returns:
        one snapshot per commit that holds a token of the answer; tokens cut off by a stop are left out.
    """
    places_of = {position: place for place, position in enumerate(trace.positions)}
    found = []
    for number, commit in enumerate(trace.commits):
        kept = [i for i, position in enumerate(commit.positions) if position in places_of]
        if not kept:
            continue
        positions = [commit.positions[i] for i in kept]
        is_causal, ids = commit.row_length in positions, trace.snapshot(number).to(device)
        is_continued = torch.arange(len(ids), device=device) >= len(trace.prompt_ids) - 1
        found.append(
            Snapshot(
                ids=ids,
                reads=torch.tensor(positions, device=device) - int(is_causal),
                is_injected=is_continued if is_causal else ids == trace.mask_id,
                token_ids=torch.tensor([commit.tokens[i] for i in kept], device=device),
                places=torch.tensor([places_of[position] for position in positions], device=device),
                step=commit.step,
                logits=torch.tensor([commit.logits[i] for i in kept], dtype=torch.float64, device=device),
                logprobs=torch.tensor([commit.logprobs[i] for i in kept], dtype=torch.float64, device=device),
            )
        )
    return found


def target_hidden(model: ConceptLM, snapshots: Sequence[Snapshot], plan: SteerPlan | None) -> Float[Tensor, "Q D"]:
    """Hidden state of every generated token at the moment it was chosen.

    Args:
        model: the network.
        snapshots: of one generation.
        plan: the steering that was in force; None where none was.

    Returns:
        [Q D] states after the final norm, in the order of the text.

    Cost: one forward pass of each snapshot.
    """
    weight = model.transformer.lm_head.weight
    hidden = weight.new_empty(sum(len(snapshot.places) for snapshot in snapshots), weight.shape[1])
    with torch.no_grad():
        for group in _passes(snapshots):
            ids = torch.stack([snapshot.ids for snapshot in group])
            states = model.hidden(ids, injection=injection_for(model, group, plan))
            for snapshot, row in zip(group, states, strict=True):
                hidden[snapshot.places] = row[snapshot.reads]
    return hidden


def recorded(
    snapshots: Sequence[Snapshot],
) -> tuple[Float[Tensor, " Q"], Float[Tensor, " Q"], Int[Tensor, " Q"]]:
    """What the generation pass recorded of every token, in the order of the text.

    Args:
        snapshots: of one generation.

    Returns:
        [Q] logits, [Q] log-probabilities (nats), [Q] denoising steps.
    """
    order = torch.cat([snapshot.places for snapshot in snapshots]).argsort()
    steps = torch.cat([torch.full_like(snapshot.places, snapshot.step) for snapshot in snapshots])
    logits = torch.cat([snapshot.logits for snapshot in snapshots])
    logprobs = torch.cat([snapshot.logprobs for snapshot in snapshots])
    return logits[order], logprobs[order], steps[order]


def injection_for(model: ConceptLM, snapshots: Sequence[Snapshot], plan: SteerPlan | None) -> Injection | None:
    """What steering added to some rows of equal length (§6.2).

    Args:
        model: the network.
        snapshots: the rows.
        plan: the steering; None where none was.

    Returns:
        the injection, or None where nothing is injected.
    """
    if plan is None or not bool(plan.direction.any()):
        return None
    weight = model.transformer.tok_emb.weight
    vector = plan.direction.to(weight.device, weight.dtype).expand(len(snapshots), -1)
    return Injection(vector, torch.stack([snapshot.is_injected for snapshot in snapshots]), plan.layer)


def _passes(snapshots: Sequence[Snapshot]) -> Iterator[list[Snapshot]]:
    for length, group in groupby(sorted(snapshots, key=lambda s: len(s.ids)), key=lambda s: len(s.ids)):
        rows = list(group)
        size = max(1, PASS_TOKENS // length)
        for start in range(0, len(rows), size):
            yield rows[start : start + size]
