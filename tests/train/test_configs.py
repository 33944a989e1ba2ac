"""The shipped files: all load, say where each value comes from, and carry the paper's values."""

from pathlib import Path

import pytest

from vitrail.settings import read_yaml
from vitrail.train.plan import describe_plan
from vitrail.train.schedules import value_at
from vitrail.train.settings import TrainSettings

CONFIGS = Path(__file__).parents[2] / "configs"
ALL = sorted(path for path in CONFIGS.rglob("*.yaml") if path.parent.name != "atlas")
STAGES = ("pretrain", "anneal", "midtrain", "steering", "sft")
SHARES = [step / 200 for step in range(201)]
by_path = pytest.mark.parametrize("path", ALL, ids=lambda path: str(path.relative_to(CONFIGS)))


def _load(name: str) -> TrainSettings:
    return TrainSettings.load(CONFIGS / name)


@by_path
def test_loads_and_can_be_planned(path: Path) -> None:
    settings = TrainSettings.load(path)
    assert describe_plan(settings, length=4096 if settings.model.block > 32 else None).parameters.total > 0
    assert TrainSettings.parse(settings.model_dump(mode="json")) == settings


@by_path
def test_known_embeddings_learn_language_at_every_step(path: Path) -> None:
    """With both forcings at 1 the label embedding cancels from the composed state, and K gets no language gradient."""
    compose = TrainSettings.load(path).compose
    for share in SHARES:
        assert value_at(compose.residual_dropout, share) > 0
        assert value_at(compose.discovered_forcing, share) < 1


@pytest.mark.parametrize("folder", ["steerling-8b", "small"])
def test_stages_end_as_the_model_is_used(folder: str) -> None:
    assert {path.stem for path in (CONFIGS / folder).glob("*.yaml")} == set(STAGES)
    for stage in STAGES[1:]:
        compose = _load(f"{folder}/{stage}.yaml").compose
        assert value_at(compose.known_forcing, 1.0) == value_at(compose.discovered_forcing, 1.0) == 0
        for curve, kept in ((compose.top_k_known, "top_k_known"), (compose.top_k_discovered, "top_k_discovered")):
            assert not curve or value_at(curve, 1.0) == getattr(_load(f"{folder}/{stage}.yaml").model, kept)


def test_small_stages_have_the_structure_of_the_large_ones() -> None:
    for stage in STAGES:
        small, large = (_load(f"{folder}/{stage}.yaml") for folder in ("small", "steerling-8b"))
        assert small.noise.schedule == large.noise.schedule
        assert (small.steering is None) == (large.steering is None)
        assert small.loss.independence_of == large.loss.independence_of
        assert small.loss.reconstruction_target == large.loss.reconstruction_target
        assert bool(small.loss.concept) == bool(large.loss.concept)
        assert small.compose.known_dropout == large.compose.known_dropout


def test_the_papers_pretraining() -> None:
    found = _load("steerling-8b/pretrain.yaml")
    assert found.total_tokens == 1_200_000_000_000
    assert (found.noise.schedule, found.noise.sigma) == ("moving_gaussian", 0.3)
    assert [value_at(found.noise.mean, share) for share in (0.0, 0.5, 1.0)] == pytest.approx([0.2, 0.5, 0.8])
    known, discovered = found.compose.known_forcing, found.compose.discovered_forcing
    assert [value_at(known, share) for share in (0.0, 0.1, 0.15, 0.325, 0.5, 1.0)] == pytest.approx(
        [1.0, 1.0, 1.0, 0.75, 0.5, 0.5]
    )
    assert value_at(discovered, 0.0) == value_at(discovered, 0.24) >= 0.9
    assert value_at(discovered, 0.625) == pytest.approx((value_at(discovered, 0.0) + 0.5) / 2), "a straight line"
    assert value_at(discovered, 1.0) == 0.5
    assert value_at(found.compose.residual_dropout, 0.5) == 0.1
    assert (found.loss.aggregation, found.loss.reconstruction_target) == ("noisy_or", "labels")
    assert (found.loss.independence_form, found.loss.independence_of) == ("hsic", "discovered")
    assert found.optim.matrices == "adamw"


def test_the_papers_midtraining() -> None:
    found = _load("steerling-8b/midtrain.yaml")
    assert found.total_tokens == 150_000_000_000
    assert found.noise.schedule == "uniform"
    assert value_at(found.compose.residual_dropout, 0.5) == 0.3
    assert found.loss.independence_of == "discovered_and_residual"
    steering = found.steering
    assert steering is not None
    assert (steering.warmup_steps, steering.attributed) == (100, "spans")


def test_midtraining_steers_in_four_phases_front_loaded() -> None:
    """About 400 M tokens of steering batches: §10.2.4."""
    for folder, wanted in (("steerling-8b", 400e6), ("small", None)):
        found = _load(f"{folder}/midtrain.yaml")
        plan = describe_plan(found)
        assert found.steering is not None
        density = [
            value_at(found.steering.density, step / plan.num_steps) if step >= found.steering.warmup_steps else 0.0
            for step in range(plan.num_steps)
        ]
        starts = [step for step in range(1, len(density)) if density[step] and not density[step - 1]]
        lengths = [next(n for n, value in enumerate(density[start:]) if not value) for start in starts]
        assert len(starts) == 4
        assert starts[0] == found.steering.warmup_steps
        assert lengths == sorted(lengths, reverse=True)
        assert wanted is None or sum(density) * plan.batch_tokens == pytest.approx(wanted, rel=0.05)


def test_the_papers_scaling_runs() -> None:
    found = _load("isoflop-paper.yaml")
    optim = found.optim
    assert {optim.matrix_rate, optim.embedding_rate, optim.head_rate, optim.norm_rate} == {4e-4}
    assert (found.batch_size, found.model.block) == (128, 64)
    assert (found.noise.schedule, found.noise.low, value_at(found.noise.high, 0.5)) == ("uniform", 0.05, 0.95)


@pytest.mark.parametrize("size", ["100M", "400M", "1B"])
def test_other_sizes_of_the_scaling_runs(size: str) -> None:
    """One flag changes the size and nothing that is the same for all."""
    found = TrainSettings.load(CONFIGS / "isoflop-paper.yaml", {"size": size})
    assert found.optim.matrix_rate == 4e-4
    assert describe_plan(found, length=4096).batch_tokens == 524_288
    by_budget = TrainSettings.load(CONFIGS / "isoflop-paper.yaml", {"size": None, "flops": 1e19})
    assert describe_plan(by_budget, length=4096).flops == pytest.approx(1e19, rel=0.2)


@pytest.mark.parametrize("path", sorted((CONFIGS / "steerling-8b").glob("*.yaml")), ids=lambda path: path.stem)
def test_large_files_say_where_values_come_from(path: Path) -> None:
    """Every value that pretraining and mid-training set stands on a line, or under one, that says S, R or C."""
    text = path.read_text("utf-8")
    assert text.count("# S ") >= 3
    assert text.count("# C ") >= 3
    for group in set(read_yaml(path)) - {"micro_batch", "precision", "compile", "activation_checkpointing", "data"}:
        lines = text[text.index(f"\n{group}:") + 1 :].splitlines()
        stop = next((at for at, line in enumerate(lines[1:], 1) if line[:1].isalpha()), len(lines))
        assert any("#" in line for line in lines[:stop]), f"{path.stem}: {group}"
