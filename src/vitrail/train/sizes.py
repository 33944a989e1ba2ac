"""One dial: how long training may take gives the size of the model and the number of tokens.

Speeds were measured on two idle cores (bf16 matrix products, 256 tokens a sequence, 4 sequences a batch). A
larger model is taken only where the time still buys it enough tokens to get past the unigram plateau.
"""

from dataclasses import dataclass

from vitrail.train.masking import NoiseSettings
from vitrail.train.objective import ComposeSettings
from vitrail.train.optim import OptimSettings
from vitrail.train.schedules import RateSettings
from vitrail.train.settings import ModelSettings, SteeringSettings, TrainSettings

_MAIN_SHARE, _PHASE_SHARE = 0.72, 0.14


@dataclass(frozen=True)
class _Size:
    width: int
    num_layers: int
    num_heads: int
    min_tokens: float
    tokens_per_s: float
    rate: float
    head_rate: float
    decay_share: float


_SIZES = (
    _Size(64, 2, 2, 0.0, 30_000.0, 1.0, 1.0, 0.3),
    _Size(128, 6, 4, 1e6, 8_000.0, 1.0, 1.0, 0.3),
    _Size(192, 8, 6, 8e6, 4_000.0, 0.4, 0.4, 0.9),
    _Size(256, 8, 8, 16e6, 2_800.0, 0.4, 0.4, 0.9),
    _Size(384, 10, 6, 40e6, 1_200.0, 0.4, 0.4, 0.9),
)
"""`rate` multiplies the default's peak rates, which suit about a million tokens, `head_rate` once more that of the
concept heads; `decay_share` is the end of the run in which rates fall (`docs/lab.md`)."""


@dataclass(frozen=True)
class Phases:
    """The runs of a demo: a model, its steering phase, and a control that trains as long without injections."""

    main: TrainSettings
    steering: TrainSettings
    control: TrainSettings


def phases_for(train_s: float, seed: int = 0) -> Phases:
    """Settings of all training that fits into a time on two idle cores (§9.2 at small size).

    Args:
        train_s: seconds for main run, steering phase and control together.
        seed: of all three.

    Returns:
        the three runs; the phases continue the main run at equal tokens.
    """
    size = _size_for(train_s * _MAIN_SHARE)
    shape = ModelSettings(
        width=size.width,
        num_layers=size.num_layers,
        num_heads=size.num_heads,
        intermediate_size=2 * size.width,
    )
    main = TrainSettings(
        model=shape,
        total_tokens=_tokens(size, train_s * _MAIN_SHARE),
        optim=_optim(size),
        seed=seed,
    )
    steering = continued(main, _tokens(size, train_s * _PHASE_SHARE))
    return Phases(main, steering, steering.model_copy(update={"steering": None}))


def continued(main: TrainSettings, total_tokens: int) -> TrainSettings:
    """A steering phase after a run: full noise range, no teacher forcing, a gentler rate that decays to zero.

    Args:
        main: the run that is continued.
        total_tokens: length of the phase.

    Returns:
        its settings.
    """
    rate = RateSettings(warmup_steps=10, decay_share=1.0)
    return main.model_copy(
        update={
            "noise": NoiseSettings(high=((0.0, 0.95),)),
            "compose": ComposeSettings(known_forcing=((0.0, 0.0),)),
            "optim": main.optim.scaled(_PHASE_RATE).model_copy(update={"rate": rate}),
            "steering": SteeringSettings(),
            "total_tokens": total_tokens,
            "seed": main.seed + 1,
        }
    )


_PHASE_RATE = 0.3


def _optim(size: _Size) -> OptimSettings:
    scaled = OptimSettings(rate=RateSettings(decay_share=size.decay_share)).scaled(size.rate)
    return scaled.model_copy(update={"head_rate": scaled.head_rate * size.head_rate})


def _size_for(train_s: float) -> _Size:
    return [size for size in _SIZES if size.tokens_per_s * train_s >= size.min_tokens][-1]


def _tokens(size: _Size, train_s: float) -> int:
    return max(10_000, round(size.tokens_per_s * train_s / 10_000) * 10_000)
