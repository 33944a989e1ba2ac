"""One dial, `minutes`, sets everything a demo does: model, data and concept library grow together.

A small model gets a small library: concepts below about one percent of the chunks are hardly learnt in a
few minutes. Token budgets follow from the measured speed of each size on two idle cores.
"""

from dataclasses import dataclass
from typing import Any

from vitrail.atlas import AtlasSettings
from vitrail.demo.places import STAGES
from vitrail.eval import SteeringSettings as BenchSettings
from vitrail.explain import IndexSettings
from vitrail.packed import PackSettings
from vitrail.settings import Settings
from vitrail.train import HeldoutSettings, ModelSettings, SteeringSettings, TrainSettings

BASE_SHARE, PHASE_SHARE = 0.70, 0.15
"""Shares of the training time: the main run, the steering phase, and as much for its control."""


@dataclass(frozen=True)
class Size:
    """A model with the library and the vocabulary that suit it.

    Attributes:
        up_to_minutes: largest dial value it serves.
        tokens_per_s: training speed on two idle cores.
        fixed_s: seconds that everything except training takes.
    """

    up_to_minutes: float
    width: int
    num_layers: int
    num_heads: int
    vocab_size: int
    num_concepts: int
    tokens_per_s: float
    fixed_s: float


SIZES = (
    Size(2.0, 64, 2, 2, 1024, 32, 30_000.0, 60.0),
    Size(20.0, 128, 4, 4, 2048, 128, 12_000.0, 230.0),
    Size(240.0, 256, 6, 8, 4096, 256, 3_300.0, 420.0),
    Size(float("inf"), 384, 8, 8, 8192, 512, 1_300.0, 900.0),
)


class DemoPlan(Settings):
    """The settings of every stage of one demo."""

    minutes: float
    seed: int
    atlas: AtlasSettings
    vocab_size: int
    pack: PackSettings
    base: TrainSettings
    steered: TrainSettings
    control: TrainSettings
    index: IndexSettings
    bench: BenchSettings
    measured_sequences: int
    expected_s: dict[str, float]


def plan_demo(minutes: float, seed: int) -> DemoPlan:
    """Settings for a demo of about `minutes` on two idle cores.

    Args:
        minutes: wall clock to aim at.
        seed: of everything random.

    Returns:
        the plan; equal arguments give equal plans.
    """
    size = next(size for size in SIZES if minutes <= size.up_to_minutes)
    is_small = size is SIZES[0]
    train_s = max(60 * minutes - size.fixed_s, 0.15 * 60 * minutes)
    tokens = train_s * size.tokens_per_s
    model = ModelSettings(width=size.width, num_layers=size.num_layers, num_heads=size.num_heads)
    shared: dict[str, Any] = {"model": model, "seed": seed, "heldout": HeldoutSettings(every_steps=200)}
    base = TrainSettings(**shared, total_tokens=int(BASE_SHARE * tokens))
    phase = {**shared, "total_tokens": int(PHASE_SHARE * tokens)}
    return DemoPlan(
        minutes=minutes,
        seed=seed,
        atlas=AtlasSettings(
            num_concepts=size.num_concepts,
            seed=seed,
            **({"max_chunks": 6000, "max_tags": 4000} if is_small else {}),
        ),
        vocab_size=size.vocab_size,
        pack=PackSettings(long_chunks="drop"),
        base=base,
        steered=TrainSettings(**phase, steering=SteeringSettings()),
        control=TrainSettings(**phase),
        index=IndexSettings(seed=seed),
        bench=_bench(seed, is_small),
        measured_sequences=16 if is_small else 64,
        expected_s=_expected_s(size.fixed_s, train_s),
    )


def _bench(seed: int, is_small: bool) -> BenchSettings:
    if not is_small:
        return BenchSettings(seed=seed)
    return BenchSettings(
        seed=seed,
        num_concepts=8,
        prompts=2,
        prompts_of_others=1,
        tuning_prompts=1,
        suppression_prompts=1,
        strengths=(0.5, 1.0),
        new_tokens=32,
    )


def _expected_s(fixed_s: float, train_s: float) -> dict[str, float]:
    """Seconds by stage, for the estimate of what is left."""
    shares = {
        "corpus": 0.08,
        "atlas": 0.26,
        "annotated": 0.06,
        "tokenizer": 0.03,
        "packed": 0.03,
        "base": BASE_SHARE,
        "control": PHASE_SHARE,
        "model": PHASE_SHARE,
        "calibration": 0.06,
        "index": 0.10,
        "answers": 0.05,
        "measures": 0.13,
        "steering": 0.20,
    }
    is_training = {"base", "control", "model"}
    return {stage: shares[stage] * (train_s if stage in is_training else fixed_s) for stage in STAGES}
