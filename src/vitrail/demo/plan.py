"""One dial, `minutes`, sets everything a demo does: model, data and concept library grow together.

A small model gets a small library: concepts below about one percent of the chunks are hardly learnt in a
few minutes. The model and its token budget follow from the time that is left for training.
"""

from dataclasses import dataclass

from vitrail.atlas import AtlasSettings
from vitrail.demo.places import STAGES
from vitrail.eval import SteeringSettings as BenchSettings
from vitrail.explain import IndexSettings
from vitrail.packed import PackSettings
from vitrail.settings import Settings
from vitrail.train import TrainSettings, phases_for

LEAST_TRAINING_SHARE = 0.15
"""A very short demo still trains for this share of its minutes, and takes longer in all."""


@dataclass(frozen=True)
class Scale:
    """The library and the effort of measuring that suit a demo of some length.

    Attributes:
        up_to_minutes: largest dial value it serves.
        vocab_size: of the tokenizer.
        num_concepts: known concepts wanted.
        measured_sequences: held-out sequences of each figure.
        fixed_s: seconds that everything except training takes on two idle cores.
    """

    up_to_minutes: float
    vocab_size: int
    num_concepts: int
    measured_sequences: int
    fixed_s: float


TOY = Scale(2.0, 1024, 32, 16, 60.0)
SCALES = (
    TOY,
    Scale(20.0, 2048, 128, 64, 250.0),
    Scale(240.0, 2048, 256, 96, 400.0),
    Scale(float("inf"), 8192, 512, 128, 900.0),
)


class DemoPlan(Settings):
    """The settings of every stage of one demo."""

    minutes: float
    seed: int
    atlas: AtlasSettings
    vocab_size: int
    pack: PackSettings
    base: TrainSettings
    control: TrainSettings
    steered: TrainSettings
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
    scale = next(scale for scale in SCALES if minutes <= scale.up_to_minutes)
    train_s = max(60 * minutes - scale.fixed_s, LEAST_TRAINING_SHARE * 60 * minutes)
    phases = phases_for(train_s, seed)
    return DemoPlan(
        minutes=minutes,
        seed=seed,
        atlas=_atlas(scale, seed),
        vocab_size=scale.vocab_size,
        pack=PackSettings(long_chunks="drop"),
        base=phases.main,
        control=phases.control,
        steered=phases.steering,
        index=IndexSettings(seed=seed),
        bench=_bench(scale, seed),
        measured_sequences=scale.measured_sequences,
        expected_s=_expected_s(scale.fixed_s, train_s),
    )


def _atlas(scale: Scale, seed: int) -> AtlasSettings:
    if scale is TOY:
        return AtlasSettings(num_concepts=scale.num_concepts, max_chunks=6000, max_tags=4000, starter=False, seed=seed)
    return AtlasSettings(num_concepts=scale.num_concepts, starter=False, seed=seed)


def _bench(scale: Scale, seed: int) -> BenchSettings:
    if scale is not TOY:
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
        "base": 0.72,
        "control": 0.14,
        "model": 0.14,
        "calibration": 0.06,
        "index": 0.10,
        "answers": 0.05,
        "measures": 0.13,
        "steering": 0.20,
    }
    is_training = {"base", "control", "model"}
    return {stage: shares[stage] * (train_s if stage in is_training else fixed_s) for stage in STAGES}
