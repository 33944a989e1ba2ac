"""Steering batches: the model learns to obey what is injected (§10.2.4, reported Eq. 31-32).

A steering batch is text that carries concepts. In each sequence one concept is drawn among its chunks'
labels and injected, in calibrated units, at the masked positions of the chunks that carry it (its attributed
positions). Beside the usual terms, *respond* asks the known head to recognise what was injected, and
*express* asks for probability on the concept's characteristic tokens, up to a bound: beyond it the model
would learn to say nothing else. The direction is detached: K is not bent towards being recognised.

Letters: `B` sequences, `T` tokens, `D` width, `C` known concepts, `V` vocabulary, `n` injected positions.
"""

from dataclasses import dataclass, replace

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn import functional

from vitrail.model import ConceptLM, Injection
from vitrail.model.streaming import selected_dots
from vitrail.packed import PackedBatch, PackedCorpus
from vitrail.steer import calibrate
from vitrail.train.masking import Draws, generator
from vitrail.train.objective import Forward, Term
from vitrail.train.schedules import value_at
from vitrail.train.settings import SteeringSettings

_MIN_COUNT = 20
_CALIBRATION_ROWS, _CALIBRATION_POSITIONS = 32, 32
_PROBE_ROWS, _CONCEPTS_AT_ONCE = 2, 32


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


def is_steering_step(settings: SteeringSettings, step: int, num_steps: int) -> bool:
    """Whether this step takes a steering batch; they are spread evenly at the curve's density.

    Args:
        settings: density and warm-up.
        step: 0..num_steps-1.
        num_steps: length of the run.

    Returns:
        True about `density` of the time.
    """
    if step < settings.warmup_steps:
        return False
    due = [value_at(settings.density, s / num_steps) for s in range(settings.warmup_steps, step + 1)]
    return int(sum(due)) > int(sum(due[:-1]))


def draw_steering(
    batch: PackedBatch, draws: Draws, settings: SteeringSettings, num_concepts: int, seed: int, step: int
) -> SteeringDraw:
    """Choose a concept, a strength and the attributed positions of each sequence.

    Args:
        batch: tokens and labels.
        draws: what is masked.
        settings: range of strengths.
        num_concepts: C.
        seed: the run's seed.
        step: equal (seed, step) draw the same.

    Returns:
        the draw for the whole batch.
    """
    rng = generator(seed, "steering", step)
    carried = torch.zeros(batch.num_chunks + 1, num_concepts, dtype=torch.bool)
    carried[batch.label_chunk, batch.label_concept] = True
    per_token = torch.where(batch.chunk >= 0, batch.chunk, batch.num_chunks)
    concept = torch.full((len(batch.tokens),), -1)
    at = torch.zeros_like(draws.masked)
    for row, chunks in enumerate(per_token):
        found = carried[chunks].any(0).nonzero()[:, 0]
        pick = torch.rand((), generator=rng)
        if len(found):
            concept[row] = found[int(pick * len(found))]
            at[row] = carried[chunks, concept[row]] & draws.masked[row]
    spread = settings.strongest - settings.weakest
    strength = settings.weakest + spread * torch.rand(len(concept), generator=rng)
    return SteeringDraw(concept, strength, at)


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
    size = drawn.strength * scales[concept] * (drawn.concept >= 0)
    return Injection(vector=direction * size[:, None].to(direction.dtype), mask=drawn.at, layer=layer)


def steering_counts(drawn: SteeringDraw) -> dict[str, float]:
    """Counts of the two terms over the whole batch: injected positions, injected sequences."""
    return {"respond": float(drawn.at.sum()), "express": float(drawn.at.any(1).sum())}


def steering_terms(
    model: ConceptLM,
    draws: Draws,
    drawn: SteeringDraw,
    states: Forward,
    lifted: Bool[Tensor, "C V"],
    settings: SteeringSettings,
) -> dict[str, Term]:
    """*respond* and *express* (§10.2.4).

    respond = -log a_c at injected positions. express, per sequence: with m the mean over its injected
    positions of the mass on the concept's lifted tokens, max(0, log express_mass - log m).

    Args:
        model: its known head is asked.
        draws: what is masked.
        drawn: what is injected where.
        states: forward under the injection.
        lifted: [C V] True at each concept's characteristic tokens.
        settings: the bound on the mass.

    Returns:
        the two terms.
    """
    count = steering_counts(drawn)
    row = drawn.at.nonzero()[:, 0]
    concept = drawn.concept[row]
    logits = _own_logits(model, states.hidden[drawn.at], concept)
    respond = functional.softplus(-logits.float()).sum()
    inside = drawn.at[draws.masked]
    mass = torch.where(lifted[concept], states.logits_n[inside].float().softmax(-1), 0.0).sum(-1)
    num_rows = len(drawn.concept)
    total = mass.new_zeros(num_rows).index_add(0, row, mass)
    size = torch.bincount(row, minlength=num_rows)
    mean = total[size > 0] / size[size > 0]
    wanted = torch.log(torch.tensor(settings.express_mass))
    express = functional.relu(wanted - torch.log(mean.clamp_min(1e-9))).sum()
    return {"respond": Term(respond, count["respond"]), "express": Term(express, count["express"])}


def _own_logits(model: ConceptLM, hidden_nD: Tensor, concept: Tensor) -> Tensor:
    """[n] logit of each position's own concept, unclamped: a clamp would give the deafest no gradient."""
    head = model.known_head
    keys = head.table.keys
    with torch.autocast(hidden_nD.device.type, enabled=False):
        query = head.query(hidden_nD.to(keys.dtype))
        return selected_dots(query, replace(head.table, values=keys), concept[:, None])[:, 0]


@torch.no_grad()
def lifted_tokens(packed: PackedCorpus, num_tokens: int) -> Bool[Tensor, "C V"]:
    """Characteristic tokens of every concept: high P(token | concept) / P(token) (reported, §4.4).

    Ranked by count · log lift among tokens seen at least 20 times with the concept and lifted at least twice.

    Args:
        packed: its train split is counted.
        num_tokens: how many per concept at most.

    Returns:
        [C V] True at characteristic tokens.
    """
    tokenizer = packed.tokenizer()
    vocab_size = tokenizer.vocab_size
    joint = torch.zeros(packed.num_concepts * vocab_size)
    overall = torch.zeros(vocab_size)
    rows = packed.num_sequences("train")
    for start in range(0, rows, 64):
        batch = packed.batch("train", list(range(start, min(start + 64, rows))))
        inside = batch.chunk >= 0
        tokens, chunk = batch.tokens[inside], batch.chunk[inside]
        overall += torch.bincount(tokens, minlength=vocab_size)
        order = torch.argsort(chunk, stable=True)
        size = torch.bincount(chunk, minlength=batch.num_chunks)
        first = size.cumsum(0) - size
        for j, c in zip(batch.label_chunk.tolist(), batch.label_concept.tolist(), strict=True):
            mine = tokens[order[first[j] : first[j] + size[j]]]
            joint.index_add_(0, c * vocab_size + mine, torch.ones(len(mine)))
    table = joint.view(packed.num_concepts, vocab_size)
    expected = table.sum(1, keepdim=True) * overall / overall.sum()
    lift = table / expected.clamp_min(1e-9)
    score = table * torch.log(lift.clamp_min(1e-9))
    score[(table < _MIN_COUNT) | (lift < 2)] = 0.0
    top = score.topk(min(num_tokens, vocab_size), dim=1)
    chosen = torch.zeros_like(table, dtype=torch.bool).scatter(1, top.indices, top.values > 0)
    # A rare concept may lift no token often enough; its best one stands in, so that express is defined.
    return chosen.scatter(1, table.argmax(1, keepdim=True), True) if not chosen.any(1).all() else chosen


def calibrated_scales(
    model: ConceptLM, packed: PackedCorpus, layer: int, target: float, seed: int
) -> Float[Tensor, " C"]:
    """The norm that is strength 1.0 for each known concept, measured on few held-out positions.

    Args:
        model: used as it is.
        packed: held-out text.
        layer: from which layer on.
        target: wanted mean of the largest logit change.
        seed: of the choice of positions.

    Returns:
        [C] norms.
    """
    tokens = packed.batch("heldout", _first_rows(packed, _CALIBRATION_ROWS)).tokens
    calibration = calibrate(model, tokens, layer=layer, target=target, num_positions=_CALIBRATION_POSITIONS, seed=seed)
    return calibration.scales(model, "known", range(model.known_head.num_concepts)).float()


@torch.no_grad()
def deaf_share(model: ConceptLM, packed: PackedCorpus, layer: int, scales: Float[Tensor, " C"], seed: int) -> float:
    """Share of concepts whose own logit does not rise when they are injected at strength 1 (§9.4.4).

    Args:
        model: used as it is.
        packed: held-out text.
        layer: from which layer on.
        scales: [C] norm that is strength 1.
        seed: of the masks.

    Returns:
        deaf concepts over all known concepts.
    """
    ids, at = _probe(model, packed, seed)
    plain = model.hidden(ids)[at]
    deaf = 0
    for start in range(0, len(scales), _CONCEPTS_AT_ONCE):
        slab = slice(start, min(start + _CONCEPTS_AT_ONCE, len(scales)))
        hidden = _injected(model, ids, at, slab, scales[slab], layer)
        logits = model.known_head.logits(hidden[None], slab)[0].view(len(scales[slab]), -1, len(scales[slab]))
        own = model.known_head.logits(plain[None], slab)[0].mean(0)
        deaf += int((logits.mean(1).diagonal() <= own).sum())
    return deaf / len(scales)


def _first_rows(packed: PackedCorpus, limit: int) -> list[int]:
    return list(range(min(limit, packed.num_sequences("heldout"))))


def _probe(model: ConceptLM, packed: PackedCorpus, seed: int) -> tuple[Tensor, Tensor]:
    """Some held-out sequences, half masked, and where."""
    tokens = packed.batch("heldout", _first_rows(packed, _PROBE_ROWS)).tokens[:, : 2 * model.config.block]
    rng = generator(seed, "calibration")
    at = (torch.rand(tokens.shape, generator=rng) < 0.5) & (tokens != model.config.pad_id)
    return tokens.masked_fill(at, model.config.mask_id), at


def _injected(model: ConceptLM, ids: Tensor, at: Tensor, slab: slice, scales: Tensor, layer: int) -> Tensor:
    """[S·n D] states at the n masked positions, under each concept of the slab in turn."""
    direction = functional.normalize(model.known_head.embedding(slab), dim=-1) * scales[:, None]
    num = len(scales)
    many_at = at.repeat(num, 1)
    injection = Injection(vector=direction.repeat_interleave(len(ids), 0), mask=many_at, layer=layer)
    return model.hidden(ids.repeat(num, 1), injection=injection)[many_at]
