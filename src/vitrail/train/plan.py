"""What a training run would be, before any of it: parameters, compute, tokens, memory (`vitrail train --plan`).

The model is built on torch's `meta` device, so an 8B model costs no memory. Vocabulary, number of concepts and length
of the sequences come from the packed corpus; without one, from the settings, and what those leave open is what the
ladder suggests for the width (`train/ladder.py`) and is marked as assumed.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from torch import nn

from vitrail.model import ModelConfig, empty_model
from vitrail.model.flops import ParameterCount, TrainingFlops, parameter_count, training_flops
from vitrail.packed import PackedCorpus
from vitrail.train.adapters import add_adapters
from vitrail.train.dial import at_widest, is_near, predicted_share
from vitrail.train.ladder import assumed_config, suggested_concepts
from vitrail.train.loop import num_steps
from vitrail.train.optim import OptimSettings
from vitrail.train.settings import TrainSettings
from vitrail.train.shape import packed_config

_FLOAT_BYTES = 4
"""Weights, gradients and moments are kept in fp32, whatever the precision of the products."""
_MOMENTS = {"adamw": 2, "muon": 1}


@dataclass(frozen=True)
class RankBytes:
    """What one of several ranks holds, sharded evenly, before activations and the layer that is gathered just now.

    Attributes:
        weights: parameters, in fp32.
        gradients: as many; with adapters theirs alone.
        optimiser: moments of AdamW (two) and Muon (one).
    """

    weights: int
    gradients: int
    optimiser: int

    @property
    def total(self) -> int:
        """All three."""
        return self.weights + self.gradients + self.optimiser


@dataclass(frozen=True)
class PlanReport:
    """A run in figures.

    Attributes:
        config: the model.
        parameters: by part.
        flops_per_token: forward and backward of one token, by part.
        predicted_share: share of positions at which the model predicts, mean over training.
        num_steps: steps of the run.
        batch_size: sequences of the global batch.
        ranks: processes that share it.
        bytes_per_rank: memory of weights, gradients, optimiser.
        suggested_concepts: size of library that the ladder suggests for this width.
        assumed: what neither the corpus nor the settings say.
        missed: the size that was asked for, where keys given beside it lead elsewhere; None where it is met.
    """

    config: ModelConfig
    parameters: ParameterCount
    flops_per_token: TrainingFlops
    predicted_share: float
    num_steps: int
    batch_size: int
    ranks: int
    bytes_per_rank: RankBytes
    suggested_concepts: int
    assumed: tuple[str, ...]
    missed: str | None

    @property
    def length(self) -> int:
        """Tokens in a training sequence."""
        return self.config.max_length

    @property
    def batch_tokens(self) -> int:
        """Tokens of one step, over all ranks."""
        return self.batch_size * self.length

    @property
    def tokens(self) -> int:
        """Tokens of the run: whole batches."""
        return self.num_steps * self.batch_tokens

    @property
    def flops(self) -> float:
        """Operations of the run."""
        return self.tokens * self.flops_per_token.total

    def as_json(self) -> dict[str, Any]:
        """Plain values with units in their names."""
        return {
            "parameters": {**asdict(self.parameters), "total": self.parameters.total},
            "concept_share": self.parameters.concept_share,
            "flops_per_token": {**asdict(self.flops_per_token), "total": self.flops_per_token.total},
            "predicted_share": self.predicted_share,
            "flops": self.flops,
            "tokens": self.tokens,
            "steps": self.num_steps,
            "batch_size": self.batch_size,
            "batch_tokens": self.batch_tokens,
            "length": self.length,
            "vocab_size": self.config.vocab_size,
            "known": self.config.known_count,
            "discovered": self.config.discovered_count,
            "suggested_concepts": self.suggested_concepts,
            "ranks": self.ranks,
            "bytes_per_rank": {**asdict(self.bytes_per_rank), "total": self.bytes_per_rank.total},
            "assumed": list(self.assumed),
            "missed_size": self.missed,
        }

    @property
    def text(self) -> str:
        """The plan for a reader."""
        config, memory = self.config, self.bytes_per_rank
        lines = [
            f"{config.backbone}, width {config.width}, {config.num_layers} layers, {config.num_heads} heads "
            f"({config.kv_heads} key/value), block {config.block}, {self.length:,} tokens a sequence",
            f"vocabulary {config.vocab_size:,}, {config.known_count:,} known and {config.discovered_count:,} "
            f"discovered concepts (suggested library: {self.suggested_concepts:,})",
        ]
        if self.assumed:
            lines.append(f"assumed, for want of a corpus: {', '.join(self.assumed)}")
        if self.missed:
            lines.append(f"not the size asked for, {self.missed}: keys of the model that are given beside it win")
        lines += ["", f"{'':<12}{'parameters':>16}{'share':>8}{'FLOPs a token':>16}{'share':>8}", *self._parts(), ""]
        lines += [
            f"training     {self.flops:.3g} FLOPs: {self.tokens:,} tokens in {self.num_steps:,} steps of "
            f"{self.batch_tokens:,} ({self.batch_size:,} sequences)",
            f"memory       {_size(memory.total)} on {self._each_rank}: weights "
            f"{_size(memory.weights)}, gradients {_size(memory.gradients)}, optimiser "
            f"{_size(memory.optimiser)}; activations come on top",
        ]
        return "\n".join(lines)

    @property
    def _each_rank(self) -> str:
        return "one rank" if self.ranks == 1 else f"each of {self.ranks} ranks"

    def _parts(self) -> list[str]:
        count, cost = self.parameters, self.flops_per_token
        rows: list[tuple[str, int | None, float]] = [
            ("embedding", count.embedding, cost.lm_head),
            ("backbone", count.backbone, cost.backbone),
            ("attention", None, cost.attention),
            ("known", count.known, cost.known),
            ("discovered", count.discovered, cost.discovered),
            ("concepts", count.known + count.discovered, cost.known + cost.discovered),
            ("all", count.total, cost.total),
        ]
        return [_row(name, parameters, count.total, flops, cost.total) for name, parameters, flops in rows]


def describe_plan(
    settings: TrainSettings, packed: Path | None = None, ranks: int = 1, length: int | None = None
) -> PlanReport:
    """The plan of a run; nothing is trained, and no weight is allocated.

    Args:
        settings: the run.
        packed: its corpus, or None where there is none yet.
        ranks: processes among which batch, weights and optimiser are shared.
        length: tokens in a sequence, where there is no corpus; by default what the ladder suggests.

    Returns:
        the plan.

    Raises:
        ConfigError: settings do not fit together, or not to the corpus.
        ArtifactError: `packed` is no packed corpus.
    """
    if packed is None:
        config, assumed = assumed_config(settings.model, max_length=length), _assumed(settings, length)
    else:
        config, assumed = packed_config(settings.model, PackedCorpus.open(packed)), ()
    model = empty_model(config)
    count, share = parameter_count(model), predicted_share(config.backbone, settings.noise)
    if settings.lora is not None:
        add_adapters(model, settings.lora, settings.seed)
    return PlanReport(
        config=config,
        parameters=count,
        flops_per_token=training_flops(at_widest(config, settings.compose), config.max_length, share),
        predicted_share=share,
        num_steps=num_steps(settings, config.max_length),
        batch_size=settings.batch_size,
        ranks=ranks,
        bytes_per_rank=_bytes_per_rank(model, settings.optim, ranks),
        suggested_concepts=suggested_concepts(config.width),
        assumed=assumed,
        missed=None if settings.size is None or is_near(settings.size, count.total) else settings.size,
    )


def _assumed(settings: TrainSettings, length: int | None) -> tuple[str, ...]:
    open_ends: Mapping[str, bool] = {
        "vocabulary": settings.model.vocab_size is None,
        "known concepts": settings.model.num_concepts is None and settings.model.interpretable,
        "length of the sequences": length is None,
    }
    return tuple(name for name, is_open in open_ends.items() if is_open)


def _bytes_per_rank(model: nn.Module, optim: OptimSettings, ranks: int) -> RankBytes:
    weights = gradients = moments = 0
    for name, parameter in model.named_parameters():
        # FSDP2 cuts a tensor along its first axis, and pads the last rank's part.
        numbers = -(-parameter.shape[0] // ranks) * (parameter.numel() // parameter.shape[0])
        weights += numbers * _FLOAT_BYTES
        if parameter.requires_grad:
            gradients += numbers * _FLOAT_BYTES
            moments += numbers * _FLOAT_BYTES * _MOMENTS[_optimiser_of(name, parameter.ndim, optim)]
    return RankBytes(weights=weights, gradients=gradients, optimiser=moments)


def _optimiser_of(name: str, ndim: int, optim: OptimSettings) -> str:
    if ndim < 2:
        return "adamw"
    if name.startswith("transformer.blocks."):
        return optim.matrices
    return "adamw" if name.startswith("transformer.") else optim.heads


def _row(name: str, parameters: int | None, all_parameters: int, flops: float, all_flops: float) -> str:
    count = f"{'':>24}" if parameters is None else f"{parameters:>16,}{parameters / all_parameters:>8.1%}"
    return f"{name:<12}{count}{flops:>16.3g}{flops / all_flops:>8.1%}"


def _size(num_bytes: int) -> str:
    return f"{num_bytes / 1e9:,.1f} GB" if num_bytes >= 1e9 else f"{num_bytes / 1e6:,.1f} MB"
