"""Calibrated strengths: 1.0 means the same for every concept (§6.2).

Strength 1.0 is the scale α at which the injection α·g of a concept's unit direction g changes logits by the
target: the mean over 256 held-out masked positions of the largest change, measured through the network.
Found by bisection within a bracket, all concepts at once, with linear guesses where they fall inside it;
first on a few positions, then on all. The file keeps the probe, so that a concept that was left out (the
discovered ones are many) is calibrated when it is first asked for, by the same measure.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import torch
from jaxtyping import Float, Int
from pydantic import Field, ValidationError
from torch import Tensor

from vitrail.artifacts import read_json, write_json
from vitrail.errors import ArtifactError, ConceptNotFound, ConfigError
from vitrail.model import ConceptHead, ConceptLM, ModelConfig
from vitrail.settings import Settings
from vitrail.steer.probe import Meter, make_probe
from vitrail.steer.spec import Head

FILE_NAME = "calibration.json"
_TOLERANCE = 0.05
_ROUNDS = 16
_GROWTH = 4.0
_COARSE_SHARE = 8
"""The search first runs on this fraction of the probe's rows."""


class Scale(Settings):
    """Calibration of one concept.

    Attributes:
        scale: norm of the injected vector at strength 1.0, in units of the residual stream.
        change: the logit change that it causes. Below the target where the final norm saturates before:
            then the smallest scale that reaches nine tenths of what was seen.
    """

    scale: float
    change: float


@dataclass(frozen=True)
class Calibration:
    """Scales of strength 1.0.

    Attributes:
        layer: injected after every block n >= layer, blocks counted from 1.
        target: mean largest logit change that strength 1.0 causes.
        probe: rows of held-out ids; the last block of each holds masked positions.
        known: concept id → scale.
        discovered: concept id → scale; grows as concepts are asked for.
    """

    layer: int
    target: float
    probe: tuple[tuple[int, ...], ...]
    known: dict[int, Scale]
    discovered: dict[int, Scale]

    def scale(self, model: ConceptLM, head: Head, concept_id: int) -> float:
        """The scale of one concept, measured now where it was not before.

        Args:
            model: the network that the calibration belongs to.
            head: `known` or `discovered`.
            concept_id: row of the head.

        Returns:
            norm of the vector to inject at strength 1.0.
        """
        return float(self.scales(model, head, [concept_id])[0])

    def scales(self, model: ConceptLM, head: Head, concept_ids: Sequence[int]) -> Float[Tensor, " c"]:
        """The scales of several concepts; those not measured before are measured together.

        Args:
            model: the network that the calibration belongs to.
            head: `known` or `discovered`.
            concept_ids: rows of the head.

        Returns:
            [c] norms of the vectors to inject at strength 1.0, fp64.
        """
        found = self.known if head == "known" else self.discovered
        missing = sorted(set(concept_ids) - found.keys())
        if missing:
            probe = torch.tensor(self.probe)
            found.update(zip(missing, _measure(model, head, missing, probe, self.layer, self.target), strict=True))
        return torch.tensor([found[concept_id].scale for concept_id in concept_ids], dtype=torch.float64)

    def require_fit(self, config: ModelConfig) -> None:
        """Refuse a model that it cannot be the calibration of.

        Args:
            config: of the model.

        Raises:
            ArtifactError: a layer, a concept or a token that the model does not have.
        """
        largest = max(max(row, default=0) for row in self.probe) if self.probe else 0
        for what, found, limit in (
            ("layer", self.layer, config.num_layers),
            ("known concept", max(self.known, default=0), config.num_concepts - 1),
            ("token", largest, config.vocab_size - 1),
        ):
            if not 0 <= found <= limit:
                raise ArtifactError(f"{FILE_NAME}: {what} {found}, the model's go to {limit}; calibrate it again")

    def save(self, path: Path) -> None:
        """Write `calibration.json`.

        Args:
            path: directory (of a model), or the file itself.
        """
        record = _Record(
            layer=self.layer, target=self.target, probe=self.probe, known=self.known, discovered=self.discovered
        )
        write_json(_file(path), record.model_dump(mode="json"))

    @classmethod
    def load(cls, path: Path) -> "Calibration":
        """Read `calibration.json`.

        Args:
            path: directory (of a model), or the file itself.

        Returns:
            the calibration.

        Raises:
            ArtifactError: missing or damaged.
        """
        file = _file(path)
        if not file.is_file():
            raise ArtifactError(f"{file}: no calibration; run `vitrail steer calibrate {path} --packed DIR`")
        try:
            record = _Record.model_validate(read_json(file))
        except ValidationError as error:
            raise ArtifactError(f"{file}: damaged ({error.errors()[0]['msg']}); calibrate again") from error
        return cls(record.layer, record.target, record.probe, dict(record.known), dict(record.discovered))


class _Record(Settings):
    """The content of `calibration.json`."""

    layer: int
    target: float = Field(gt=0)
    probe: tuple[tuple[Annotated[int, Field(ge=0)], ...], ...]
    known: dict[int, Scale]
    discovered: dict[int, Scale]


def calibrate(
    model: ConceptLM,
    sequences: Int[Tensor, "N T"],
    *,
    layer: int,
    target: float = 8.0,
    concepts: Sequence[int] | None = None,
    num_positions: int = 256,
    seed: int = 0,
) -> Calibration:
    """Find the scale of strength 1.0 for known concepts (§6.2).

    Args:
        model: the network.
        sequences: held-out tokens, unmasked.
        layer: inject after every block n >= layer, blocks counted from 1.
        target: mean largest logit change wanted, in logits.
        concepts: known concept ids; None takes all. Others are measured when first asked for.
        num_positions: held-out masked positions to average over.
        seed: of the choice of positions.

    Returns:
        scales within 5 % of the target (see `Scale.change` where the target is out of reach).

    Raises:
        ConfigError: a layer that the model does not have, a target that is not positive, or held-out
            sequences without a whole block of text.
    """
    if not 0 <= layer <= model.config.num_layers:
        raise ConfigError(f"calibration: layer {layer} is not one of 0 to {model.config.num_layers} of the model")
    if target <= 0:
        raise ConfigError(f"calibration: target {target} must be a positive number of logits")
    probe = make_probe(sequences, model.config, num_positions, seed)
    calibration = Calibration(layer, target, tuple(tuple(row) for row in probe.tolist()), {}, {})
    calibration.scales(model, "known", range(model.known_head.num_concepts) if concepts is None else concepts)
    return calibration


def concept_head(model: ConceptLM, head: Head) -> ConceptHead:
    """The head of a name.

    Args:
        model: the network.
        head: `known` or `discovered`.

    Returns:
        its module.
    """
    return model.known_head if head == "known" else model.unknown_head


def unit_directions(model: ConceptLM, head: Head, concept_ids: Sequence[int]) -> Float[Tensor, "c D"]:
    """Unit vectors along the embedding rows of concepts.

    Args:
        model: the network.
        head: `known` or `discovered` (whose rows come from the factors).
        concept_ids: rows of the head.

    Returns:
        [c D] directions in the model's dtype, without gradient.

    Raises:
        ConceptNotFound: an id outside the head.
    """
    concepts = concept_head(model, head)
    outside = [concept_id for concept_id in concept_ids if not 0 <= concept_id < concepts.num_concepts]
    if outside:
        raise ConceptNotFound(
            f"steer: the model has no {head} concept #{outside[0]}; its ids are 0 to {concepts.num_concepts - 1}"
        )
    device = model.transformer.lm_head.weight.device
    rows = concepts.rows(torch.tensor(list(concept_ids), dtype=torch.long, device=device)).detach()
    wide = rows.to(torch.promote_types(rows.dtype, torch.float32))
    directions: Tensor = (wide / (wide.norm(dim=-1, keepdim=True) + 1e-12)).to(rows.dtype)
    return directions


def _measure(
    model: ConceptLM, head: Head, concept_ids: Sequence[int], probe: Tensor, layer: int, target: float
) -> list[Scale]:
    # Not inference mode: between training steps the gathered parameters must stay fit for a backward.
    with torch.no_grad():
        directions = unit_directions(model, head, concept_ids)
        raised = (directions @ model.transformer.lm_head.weight.T).abs().amax(-1).double()
        scales = target / raised.clamp_min(1e-6)
        changes = scales
        for rows in (probe[: -(-len(probe) // _COARSE_SHARE)], probe):
            meter = Meter.of(model, rows, layer)
            scales, changes = find_scales(_changes_of(meter, directions), target, scales)
    return [Scale(scale=s, change=c) for s, c in zip(scales.tolist(), changes.tolist(), strict=True)]


def _changes_of(meter: Meter, directions: Tensor) -> "Measure":
    def measure(which: Tensor, scales: Tensor) -> Tensor:
        vectors = scales.to(directions.dtype)[:, None] * directions[which]
        return meter.change(vectors)

    return measure


Measure = Callable[[Tensor, Tensor], Tensor]
"""(numbers of concepts [n], a scale for each [n]) -> the logit change of each [n]."""


def find_scales(
    measure: Measure, target: float, start: Float[Tensor, " c"]
) -> tuple[Float[Tensor, " c"], Float[Tensor, " c"]]:
    """Solve measure(scale) = target for many concepts at once, by guarded bisection.

    A guess in proportion to the last measurement is taken where it falls inside the bracket; otherwise the
    bracket is halved (geometrically), or grown while it has one side only.

    Args:
        measure: grows with the scale, but may saturate.
        target: value wanted.
        start: first scales, positive.

    Returns:
        scales and their measured values: within 5 % of the target, or the smallest scale tried that
        reached nine tenths of the largest value seen.
    """
    guess = start.clone()
    low, high = torch.zeros_like(guess), torch.full_like(guess, torch.inf)
    best = torch.zeros_like(guess)
    tried, seen = [], []
    which = torch.arange(len(guess), device=guess.device)
    for number in range(_ROUNDS):
        values = torch.full_like(guess, torch.nan)
        values[which] = measure(which, guess[which])
        tried.append(guess.clone())
        seen.append(values)
        is_above = values > target
        # Far beyond the last scale and no more effect: the final norm has saturated.
        is_saturated = high.isinf() & ~is_above & (guess >= 2 * low) & (values < 1.02 * best)
        best = torch.fmax(best, values)
        high = torch.where(is_above, torch.minimum(high, guess), high)
        low = torch.where(values <= target, torch.maximum(low, guess), low)
        is_settled = ((values / target - 1).abs() <= _TOLERANCE) | is_saturated
        which = which[~is_settled[which]]
        if not len(which):
            break
        guess = _next_guess(guess, values, target, low, high, is_bisecting=number % 3 == 2)
    return _best(torch.stack(tried), torch.stack(seen), target)


def _next_guess(
    guess: Tensor, values: Tensor, target: float, low: Tensor, high: Tensor, *, is_bisecting: bool
) -> Tensor:
    ratio = (target / values).clamp(1 / _GROWTH, _GROWTH)
    linear = guess * ratio
    middle = torch.where(high.isinf(), low * _GROWTH, torch.where(low == 0, high / _GROWTH, (low * high).sqrt()))
    is_inside = (linear > low) & (linear < high) & (not is_bisecting)
    return torch.where(is_inside, linear, middle)


def _best(tried: Tensor, seen: Tensor, target: float) -> tuple[Tensor, Tensor]:
    """Of [rounds c] trials the one closest to the target, or the smallest that does nearly as well as can be."""
    off = (seen - target).abs().nan_to_num(torch.inf)
    closest = off.argmin(0, keepdim=True)
    is_reached = off.gather(0, closest) <= _TOLERANCE * target
    enough = seen.nan_to_num(-torch.inf) >= 0.9 * seen.nan_to_num(-torch.inf).amax(0)
    smallest = tried.masked_fill(~enough, torch.inf).argmin(0, keepdim=True)
    choice = torch.where(is_reached, closest, smallest)
    return tried.gather(0, choice)[0], seen.gather(0, choice)[0]


def _file(path: Path) -> Path:
    return path / FILE_NAME if path.is_dir() or path.suffix != ".json" else path
