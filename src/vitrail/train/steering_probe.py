"""Does the model hear and obey an injection? Strengths in calibrated units, and what is measured with them (§9.4.4).

Letters: `B` sequences, `T` tokens, `C` known concepts, `c` chosen ones, `n` probed positions.
"""

from collections.abc import Sequence

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn import functional

from vitrail.model import ConceptLM, Injection
from vitrail.packed import PackedCorpus
from vitrail.steer import calibrate
from vitrail.train.masking import generator
from vitrail.train.steering_phase import own_logits

_CALIBRATION_ROWS, _CALIBRATION_POSITIONS = 32, 32
_PROBE_ROWS, _CONCEPTS_AT_ONCE = 2, 32


def pool_of(num_concepts: int, size: int, seed: int, step: int) -> list[int]:
    """The concepts that are calibrated together: all, or as many as a large library allows, drawn anew each time.

    Args:
        num_concepts: C.
        size: how many at most.
        seed: the run's seed.
        step: equal (seed, step) draw the same.

    Returns:
        concept ids in ascending order.
    """
    if num_concepts <= size:
        return list(range(num_concepts))
    return sorted(torch.randperm(num_concepts, generator=generator(seed, "pool", step))[:size].tolist())


def calibrated_scales(
    model: ConceptLM, packed: PackedCorpus, layer: int, target: float, concepts: Sequence[int], seed: int
) -> Float[Tensor, " C"]:
    """The norm that is strength 1.0 for each chosen concept, measured on few held-out positions.

    Args:
        model: used as it is.
        packed: held-out text.
        layer: from which layer on.
        target: wanted mean of the largest logit change.
        concepts: which known concepts.
        seed: of the choice of positions.

    Returns:
        [C] norms; NaN at concepts that were not asked for.
    """
    tokens = packed.batch("heldout", _first_rows(packed, _CALIBRATION_ROWS)).tokens
    calibration = calibrate(
        model,
        tokens,
        layer=layer,
        target=target,
        concepts=concepts,
        num_positions=_CALIBRATION_POSITIONS,
        seed=seed,
    )
    scales = torch.full((model.known_head.num_concepts,), torch.nan)
    scales[list(concepts)] = calibration.scales(model, "known", concepts).float()
    return scales


def deaf_share(model: ConceptLM, packed: PackedCorpus, layer: int, scales: Float[Tensor, " C"], seed: int) -> float:
    """Share of calibrated concepts whose own logit does not rise when they are injected at strength 1 (§9.4.4).

    Args:
        model: used as it is.
        packed: held-out text.
        layer: from which layer on.
        scales: [C] norm that is strength 1; NaN leaves a concept out.
        seed: of the masks.

    Returns:
        deaf concepts over injected ones.
    """
    return 1.0 - probe_steering(model, packed, layer, scales, None, seed)["steering_heard"]


@torch.no_grad()
def probe_steering(
    model: ConceptLM,
    packed: PackedCorpus,
    layer: int,
    scales: Float[Tensor, " C"],
    lifted: Int[Tensor, "C w"] | None,
    seed: int,
) -> dict[str, float]:
    """Inject concepts one by one at strength 1 into held-out text, half of it masked (§9.4.4, §10.2.4).

    Args:
        model: used as it is.
        packed: held-out text.
        layer: from which layer on.
        scales: [C] norm that is strength 1; NaN leaves a concept out.
        lifted: [C w] characteristic tokens, -1 where there are fewer; None asks only whether the heads hear.
        seed: of the masks.

    Returns:
        `steering_heard`: share of concepts whose own logit rises; with `lifted` also `steering_mass` and
        `steering_mass_plain`: mean probability of the concept's characteristic tokens with and without injection.
    """
    device = model.transformer.lm_head.weight.device
    ids, at = (item.to(device) for item in _masked_text(model, packed, seed))
    chosen = scales.isfinite().nonzero()[:, 0]
    plain = model.hidden(ids)[at]
    heard, mass, plain_mass = 0, 0.0, 0.0
    for concepts in torch.split(chosen, _CONCEPTS_AT_ONCE):
        hidden = _injected(model, ids, at, concepts, scales[concepts], layer)  # [c n D]
        own = concepts.to(device).repeat_interleave(len(plain))
        many_plain = plain.repeat(len(concepts), 1)
        rise = own_logits(model, hidden.flatten(0, 1), own) - own_logits(model, many_plain, own)
        heard += int((rise.view(len(concepts), -1).mean(1) > 0).sum())
        if lifted is not None:
            mass += _mass(model, hidden, lifted[concepts])
            plain_mass += _mass(model, plain.expand_as(hidden), lifted[concepts])
    count = max(len(chosen), 1)
    found = {"steering_heard": heard / count}
    if lifted is not None:
        found |= {"steering_mass": mass / count, "steering_mass_plain": plain_mass / count}
    return found


def _first_rows(packed: PackedCorpus, limit: int) -> list[int]:
    return list(range(min(limit, packed.num_sequences("heldout"))))


def _masked_text(model: ConceptLM, packed: PackedCorpus, seed: int) -> tuple[Int[Tensor, "B T"], Bool[Tensor, "B T"]]:
    tokens = packed.batch("heldout", _first_rows(packed, _PROBE_ROWS)).tokens[:, : 2 * model.config.block]
    rng = generator(seed, "calibration")
    at = (torch.rand(tokens.shape, generator=rng) < 0.5) & (tokens != model.config.pad_id)
    return tokens.masked_fill(at, model.config.mask_id), at


def _injected(
    model: ConceptLM, ids: Tensor, at: Tensor, concepts: Tensor, scales: Tensor, layer: int
) -> Float[Tensor, "c n D"]:
    """States at the n masked positions, under each concept in turn."""
    rows = model.known_head.rows(concepts.to(ids.device))
    direction = functional.normalize(rows, dim=-1) * scales.to(ids.device)[:, None]
    num = len(concepts)
    many_at = at.repeat(num, 1)
    injection = Injection(vector=direction.repeat_interleave(len(ids), 0), mask=many_at, layer=layer)
    hidden = model.hidden(ids.repeat(num, 1), injection=injection)[many_at]
    return hidden.view(num, -1, hidden.shape[-1])


def _mass(model: ConceptLM, hidden: Float[Tensor, "c n D"], lifted: Int[Tensor, "c w"]) -> float:
    """Sum over concepts of the mean probability of their characteristic tokens."""
    lifted = lifted.to(hidden.device)
    shares = model.lm_logits(hidden).float().softmax(-1)
    own = shares.gather(2, lifted.clamp_min(0)[:, None].expand(-1, hidden.shape[1], -1))
    return float(torch.where(lifted[:, None] >= 0, own, 0.0).sum(-1).mean(1).sum())
