"""The deletion test: what it costs the prediction to lose a part of the state (§6, §7).

An exact decomposition can be exactly beside the point: with ρ = 1 the composed state is h, whatever the heads
say. So each part is replaced, every other part held at its unedited value, and the loss at masked positions
is compared on the same draws (t = 0.5): nats per masked token, after minus before.

A part is replaced by (`resample`) its value at another random position, (`mean`) its corpus mean, estimated
on the train split at the same noise, or (`zero`) nothing. Without the mean, the part's constant share, a
unigram, would count as content. Two controls act on the known part in the same three ways:

- `shuffled`: the rows of K are permuted, so that every weight falls on another concept's embedding: plainly
  (`zero`), with the corpus mean held, so that only what varies is shuffled (`mean`), and with the weights of
  another position (`resample`).
- `random`: as many random directions of the same norm are removed. A random rotation maps the rows of K to
  directions with the same norms and angles; the rotated edit is applied instead, averaged over rotations.
"""

from dataclasses import dataclass
from typing import Any, Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor

from vitrail.metrics.intervals import mean_interval, plain
from vitrail.metrics.states import MaskedStates, decompose, token_nats
from vitrail.model import ConceptHead, ConceptLM, DecomposedOutput
from vitrail.model.streaming import CLAMP, slabs

Part = Literal["known", "discovered", "residual"]
Replacement = Literal["resample", "mean", "zero"]

PARTS: tuple[Part, ...] = ("known", "discovered", "residual")
REPLACEMENTS: tuple[Replacement, ...] = ("resample", "mean", "zero")
_NUM_ROTATIONS = 3
_ROWS_AT_ONCE = 4096


@dataclass(frozen=True)
class PartMeans:
    """The mean of each part over masked positions of the train split.

    Attributes:
        known: [D].
        discovered: [D].
        residual: [D].
    """

    known: Float[Tensor, " D"]
    discovered: Float[Tensor, " D"]
    residual: Float[Tensor, " D"]


def part_means(model: ConceptLM, states: MaskedStates) -> PartMeans:
    """Means of the three parts over `states` (of the train split, at the noise of the test)."""
    out = decompose(model, states.hidden)
    return PartMeans(*(getattr(out, part)[0].mean(0) for part in PARTS))


@torch.no_grad()
def deletion_nats(model: ConceptLM, states: MaskedStates, means: PartMeans, *, seed: int = 0) -> dict[str, Any]:
    """Nats per masked token that each replacement costs, with intervals over sequences.

    Args:
        model: the model.
        states: held-out masked positions.
        means: corpus means of the parts at the same noise.
        seed: of resampling, permutation, rotation and bootstrap.

    Returns:
        for `known`, `discovered`, `residual`, `shuffled`, `random`: `resample`, `mean`, `zero` in nats and
        `ci95` with the interval of each. Beside them `nats` (before any edit), `n` (masked tokens),
        `num_sequences`, `noise`.

    Cost: about 20 products with the LM head per masked position.
    """
    rng = torch.Generator().manual_seed(seed)
    out = decompose(model, states.hidden)
    before = token_nats(model, out.composed[0], states.targets)
    other = torch.randperm(len(before), generator=rng)
    edits = {part: part_edits(getattr(out, part)[0], getattr(means, part), other) for part in PARTS}
    rotations = [random_rotation(states.hidden.shape[1], rng) for _ in range(_NUM_ROTATIONS)]

    def cost(edit: Tensor) -> Tensor:
        return token_nats(model, out.composed[0] + edit, states.targets) - before

    costs: dict[str, dict[Replacement, Tensor]] = {
        part: {how: cost(edit) for how, edit in edits[part].items()} for part in PARTS
    }
    shuffled = shuffled_edits(model, out, means.known, other, rng)
    costs["shuffled"] = {how: cost(edit) for how, edit in shuffled.items()}
    costs["random"] = {
        how: torch.stack([cost(edit @ rotation) for rotation in rotations]).mean(0)
        for how, edit in edits["known"].items()
    }
    table = {
        **{name: _figures(by_how, states.sequence, seed) for name, by_how in costs.items()},
        "nats": float(before.mean()),
        "n": len(before),
        "num_sequences": len(torch.unique(states.sequence)),
        "noise": states.noise,
    }
    return dict(plain(table))


def part_edits(
    part: Float[Tensor, "n D"], mean: Float[Tensor, " D"], other: Int[Tensor, " n"]
) -> dict[Replacement, Float[Tensor, "n D"]]:
    """What each replacement adds to the composed state.

    Args:
        part: the part at each position.
        mean: its corpus mean.
        other: the position whose value replaces it when resampled.

    Returns:
        replacement minus part, for each kind of replacement.
    """
    return {"resample": part[other] - part, "mean": mean - part, "zero": -part}


def shuffled_edits(
    model: ConceptLM,
    out: DecomposedOutput,
    known_mean: Float[Tensor, " D"],
    other: Int[Tensor, " n"],
    rng: torch.Generator,
) -> dict[Replacement, Float[Tensor, "n D"]]:
    """What permuting the rows of K adds to the composed state.

    Args:
        model: gives K.
        out: the unedited parts, B = 1.
        known_mean: corpus mean of the known part.
        other: the position whose weights are taken when resampled.
        rng: of the permutation, which leaves no row in place.

    Returns:
        shuffled minus known part, for each kind of replacement.
    """
    permuted = _derangement(model.known_head.num_concepts, rng)
    shuffled = permuted_known(model, out.hidden[0], permuted)
    known = out.known[0]
    return {
        "resample": shuffled[other] - known,
        "mean": known_mean + shuffled - shuffled.mean(0) - known,
        "zero": shuffled - known,
    }


def permuted_known(model: ConceptLM, hidden: Float[Tensor, "n D"], permuted: Int[Tensor, " C"]) -> Float[Tensor, "n D"]:
    """The known part with the weight of concept c on the embedding of concept `permuted[c]`.

    Args:
        model: gives the known head.
        hidden: states.
        permuted: [C] concept whose row is used; the identity gives the known part itself.

    Returns:
        Σ a_c K_permuted[c] over the concepts that the head sums.
    """
    head = model.known_head
    parts = []
    for states in torch.split(hidden, _ROWS_AT_ONCE):
        if head.selection.summed is None:
            parts.append(_all_permuted(head, states, permuted))
        else:
            summed = head.features(states, head.selection.summed)
            parts.append(head.sum_for(summed.logits.sigmoid(), permuted[summed.ids]).float())
    return torch.cat(parts)


def random_rotation(width: int, rng: torch.Generator) -> Float[Tensor, "D D"]:
    """A rotation drawn uniformly (QR of a Gaussian matrix, signs fixed)."""
    gaussian = torch.randn(width, width, generator=rng, dtype=torch.float64)
    rotation, upper = torch.linalg.qr(gaussian)
    signed: Tensor = rotation * torch.diagonal(upper).sign()
    return signed.float()


def _all_permuted(head: ConceptHead, states: Float[Tensor, "n D"], permuted: Int[Tensor, " C"]) -> Float[Tensor, "n D"]:
    total = states.new_zeros(states.shape, dtype=torch.float32)
    for rows in slabs(head.num_concepts, head.slab):
        weights = head.logits(states, rows).float().clamp(-CLAMP, CLAMP).sigmoid()
        total += weights @ head.rows(permuted[rows]).float()
    return total


def _derangement(size: int, rng: torch.Generator) -> Int[Tensor, " C"]:
    """A permutation that leaves nothing in place: one cycle through a random order."""
    order = torch.randperm(size, generator=rng)
    permuted = torch.empty_like(order)
    permuted[order] = order.roll(-1)
    return permuted


def _figures(costs: dict[Replacement, Tensor], sequence: Int[Tensor, " n"], seed: int) -> dict[str, Any]:
    clusters = sequence.numpy()
    found = {how: mean_interval(cost.double().numpy(), clusters=clusters, seed=seed) for how, cost in costs.items()}
    return {
        **{how: interval.value for how, interval in found.items()},
        "ci95": {how: interval.ci95 for how, interval in found.items()},
    }
