"""Steering batches: the model learns to obey what is injected (§10.2.4, reported Eq. 31-32).

A steering batch is text that carries concepts. In each sequence one concept is drawn among its labels and injected,
in calibrated units, at its attributed positions: the predicted ones inside its token-level labels, or all predicted
ones of the chunks that carry it. Beside the usual terms, *respond* asks the known head to recognise what was injected,
and *express* asks for probability on the concept's characteristic tokens, up to a bound: beyond it the model would
learn to say nothing else. The direction is detached: K is not bent towards being recognised.

Letters: `B` sequences, `T` tokens, `D` width, `C` known concepts, `V` vocabulary, `n` injected positions.
"""

from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from numpy.typing import NDArray
from scipy import sparse
from torch import Tensor
from torch.nn import functional

from vitrail.model import ConceptLM, Injection
from vitrail.model.streaming import selected_dots
from vitrail.packed import PackedBatch, PackedCorpus
from vitrail.train.masking import Draws, generator
from vitrail.train.objective import Forward
from vitrail.train.schedules import value_at
from vitrail.train.settings import SteeringSettings
from vitrail.train.terms import Term

_MIN_COUNT = 20
_COUNTED_ROWS = 64


@dataclass(frozen=True)
class SteeringDraw:
    """What one steering batch injects.

    Attributes:
        concept: [B] injected concept, -1 where the sequence carries none.
        strength: [B] in calibrated units.
        at: [B T] True where the vector is added.
    """

    concept: Int[Tensor, " B"]
    strength: Float[Tensor, " B"]
    at: Bool[Tensor, "B T"]

    def rows(self, rows: slice) -> "SteeringDraw":
        """The draw of some sequences."""
        return SteeringDraw(self.concept[rows], self.strength[rows], self.at[rows])


def steering_steps(settings: SteeringSettings, num_steps: int) -> NDArray[np.bool_]:
    """Which steps take a steering batch; they are spread evenly at the curve's density.

    Args:
        settings: density and warm-up.
        num_steps: length of the run.

    Returns:
        [num_steps] True about `density` of the time; never before the warm-up is over.
    """
    due = np.array([value_at(settings.density, step / num_steps) for step in range(num_steps)])
    due[: settings.warmup_steps] = 0.0
    whole = np.floor(np.cumsum(due))
    return np.asarray(np.diff(whole, prepend=0.0) > 0)


def draw_steering(
    batch: PackedBatch,
    draws: Draws,
    settings: SteeringSettings,
    scales: Float[Tensor, " C"],
    seed: int,
    step: int,
    rows: slice,
    num_rows: int,
) -> SteeringDraw:
    """Choose a concept, a strength and the attributed positions of each sequence (§10.2.4).

    Args:
        batch: tokens and labels of a rank's part.
        draws: what is predicted.
        settings: range of strengths, and which positions are attributed.
        scales: [C] NaN at concepts that are not drawn now.
        seed: the run's seed.
        step: equal (seed, step) draw the same.
        rows: the part that `batch` is of the global batch.
        num_rows: sequences of the global batch.

    Returns:
        the draw for the part.
    """
    rng = generator(seed, "steering", step)
    pick, where = (torch.rand(num_rows, generator=rng)[rows] for _ in range(2))
    strength = settings.weakest + (settings.strongest - settings.weakest) * where
    labelled = _labelled(batch, settings.attributed)
    labelled = labelled[:, scales.isfinite()[labelled[2]]]
    concept = torch.full((len(batch.tokens),), -1)
    at = torch.zeros_like(draws.predicted)
    for row in range(len(concept)):
        mine = labelled[:, labelled[0] == row]
        found = torch.unique(mine[2])
        if len(found):
            concept[row] = found[int(pick[row] * len(found))]
            chosen = mine[1, mine[2] == concept[row]]
            at[row] = _positions(batch, row, chosen, settings.attributed) & draws.predicted[row]
    return SteeringDraw(concept, strength, at)


def _labelled(batch: PackedBatch, attributed: Literal["chunk", "spans"]) -> Int[Tensor, "3 n"]:
    """Labels as (sequence, chunk or position in the sequence, concept)."""
    length = batch.tokens.shape[1]
    if attributed == "spans":
        row = torch.div(batch.span_pos, length, rounding_mode="floor")
        return torch.stack((row, batch.span_pos % length, batch.span_concept))
    row_of_chunk = torch.full((batch.num_chunks,), -1)
    inside = batch.chunk >= 0
    row_of_chunk[batch.chunk[inside]] = inside.nonzero()[:, 0]
    return torch.stack((row_of_chunk[batch.label_chunk], batch.label_chunk, batch.label_concept))


def _positions(
    batch: PackedBatch, row: int, chosen: Int[Tensor, " n"], attributed: Literal["chunk", "spans"]
) -> Bool[Tensor, " T"]:
    if attributed == "spans":
        return torch.zeros(batch.tokens.shape[1], dtype=torch.bool).index_fill(0, chosen, True)
    return torch.isin(batch.chunk[row], chosen)


def injection_of(model: ConceptLM, drawn: SteeringDraw, scales: Float[Tensor, " C"], layer: int) -> Injection:
    """The injection of a steering batch: strength · scale · K_c / ‖K_c‖, detached.

    Args:
        model: its known head holds K.
        drawn: concepts, strengths, positions.
        scales: [C] norm that is strength 1 for each concept.
        layer: from which layer on.

    Returns:
        vectors and positions.
    """
    concept = drawn.concept.clamp_min(0)
    direction = functional.normalize(model.known_head.rows(concept).detach(), dim=-1)
    size = torch.where(drawn.concept >= 0, drawn.strength * scales[concept], 0.0)
    return Injection(vector=direction * size[:, None].to(direction.dtype), mask=drawn.at, layer=layer)


def steering_counts(drawn: SteeringDraw) -> dict[str, float]:
    """Counts of the two terms over the whole batch: injected positions, injected sequences."""
    return {"respond": float(drawn.at.sum()), "express": float(drawn.at.any(1).sum())}


def steering_terms(
    model: ConceptLM,
    draws: Draws,
    drawn: SteeringDraw,
    states: Forward,
    lifted: Int[Tensor, "C n"],
    settings: SteeringSettings,
) -> dict[str, Term]:
    """*respond* and *express* (§10.2.4).

    respond = -log a_c at injected positions. express, per sequence: with m the mean over its injected
    positions of the mass on the concept's lifted tokens, max(0, log express_mass - log m).

    Args:
        model: its known head is asked.
        draws: what is predicted.
        drawn: what is injected where.
        states: forward under the injection.
        lifted: [C n] each concept's characteristic tokens, -1 where there are fewer.
        settings: the bound on the mass.

    Returns:
        the two terms.
    """
    count = steering_counts(drawn)
    row = drawn.at.nonzero()[:, 0]
    concept = drawn.concept[row]
    logits = own_logits(model, states.hidden[drawn.at], concept)
    respond = functional.softplus(-logits.float()).sum()
    inside = drawn.at[draws.predicted]
    own = lifted[concept]
    shares = states.logits_n[inside].float().softmax(-1).gather(1, own.clamp_min(0))
    mass = torch.where(own >= 0, shares, 0.0).sum(-1)
    num_rows = len(drawn.concept)
    total = mass.new_zeros(num_rows).index_add(0, row, mass)
    size = torch.bincount(row, minlength=num_rows)
    mean = total[size > 0] / size[size > 0]
    wanted = torch.log(torch.tensor(settings.express_mass))
    express = functional.relu(wanted - torch.log(mean.clamp_min(1e-9))).sum()
    return {"respond": Term(respond, count["respond"]), "express": Term(express, count["express"])}


def own_logits(model: ConceptLM, hidden_nD: Float[Tensor, "n D"], concept: Int[Tensor, " n"]) -> Float[Tensor, " n"]:
    """The known logit of each position's own concept, unclamped: a clamp would give the deafest no gradient.

    Args:
        model: its known head is asked.
        hidden_nD: [n D] final states.
        concept: [n] known concepts.

    Returns:
        [n] logits.
    """
    head = model.known_head
    keys = head.table.keys
    with torch.autocast(hidden_nD.device.type, enabled=False):
        query = head.query(hidden_nD.to(keys.dtype))
        return selected_dots(query, replace(head.table, values=keys), concept[:, None])[:, 0]


def lifted_tokens(packed: PackedCorpus, num_tokens: int, max_sequences: int) -> Int[Tensor, "C n"]:
    """Characteristic tokens of every concept: high P(token | concept) / P(token) (reported, §4.4).

    Ranked by count · log lift among tokens seen at least 20 times with the concept and lifted at least twice. A
    concept that lifts none often enough has its most frequent one, so that *express* is defined.

    Args:
        packed: its train split is counted.
        num_tokens: n, how many per concept at most.
        max_sequences: how many sequences to count, from the start; memory holds the pairs that occur in them.

    Returns:
        [C n] token ids, best first, then -1; a concept without any label has only -1.
    """
    vocab_size = packed.tokenizer().vocab_size
    joint = sparse.csr_array((packed.num_concepts, vocab_size))
    overall = np.zeros(vocab_size)
    rows = min(packed.num_sequences("train"), max_sequences)
    for start in range(0, rows, _COUNTED_ROWS):
        batch = packed.batch("train", list(range(start, min(start + _COUNTED_ROWS, rows))))
        inside = (batch.chunk >= 0).numpy()
        tokens, chunk = batch.tokens.numpy()[inside], batch.chunk.numpy()[inside]
        overall += np.bincount(tokens, minlength=vocab_size)
        in_chunk = sparse.csr_array((np.ones(len(tokens)), (chunk, tokens)), shape=(batch.num_chunks, vocab_size))
        pairs = (np.ones(len(batch.label_chunk)), (batch.label_concept.numpy(), batch.label_chunk.numpy()))
        joint += sparse.csr_array(pairs, shape=(packed.num_concepts, batch.num_chunks)) @ in_chunk
    chosen = np.full((packed.num_concepts, num_tokens), -1)
    share = overall / max(overall.sum(), 1.0)
    for concept in range(packed.num_concepts):
        own = slice(joint.indptr[concept], joint.indptr[concept + 1])
        best = _most_lifted(joint.indices[own], joint.data[own], share)[:num_tokens]
        chosen[concept, : len(best)] = best
    return torch.from_numpy(chosen)


def _most_lifted(tokens: NDArray[Any], count: NDArray[Any], share: NDArray[Any]) -> NDArray[Any]:
    if not len(tokens):
        return tokens
    lift = count / (count.sum() * share[tokens])
    score = np.where((count >= _MIN_COUNT) & (lift >= 2), count * np.log(lift), 0.0)
    order = np.lexsort((tokens, -score))
    best = tokens[order][: int((score > 0).sum())]
    return best if len(best) else tokens[[np.lexsort((tokens, -count))[0]]]
