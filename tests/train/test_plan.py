"""The plan of a run: the counts of the shipped files, and figures that fit one another."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from vitrail.errors import ConfigError
from vitrail.settings import Settings
from vitrail.train.consistency import check_consistent
from vitrail.train.plan import describe_plan
from vitrail.train.settings import TrainSettings

ROOT = Path(__file__).parents[2]
CONFIGS = ROOT / "configs"
STEERLING = sorted((CONFIGS / "steerling-8b").glob("*.yaml"))


@pytest.mark.parametrize("path", STEERLING, ids=lambda path: path.stem)
def test_every_stage_of_steerling_8b_has_the_released_parameters(path: Path) -> None:
    plan = describe_plan(TrainSettings.load(path))
    assert plan.parameters.total == 8_391_778_304
    assert plan.parameters.concept_share == pytest.approx(0.04, abs=0.005)
    assert (plan.config.num_concepts, plan.config.discovered_count) == (33_732, 101_196)
    assert plan.suggested_concepts == 33_732
    assert plan.length == 4096
    assert plan.assumed == ("length of the sequences",)


def test_pretraining_of_steerling_8b() -> None:
    plan = describe_plan(TrainSettings.load(CONFIGS / "steerling-8b" / "pretrain.yaml"))
    assert plan.tokens == pytest.approx(1.2e12, rel=1e-4)
    assert plan.batch_tokens == 4_194_304
    assert plan.flops == pytest.approx(7.6e22 * 1.2 / 1.35, rel=0.12), "7.6e22 are reported for 1.35 T tokens"
    assert plan.predicted_share == pytest.approx(0.5, abs=0.02)


def test_the_scaling_runs_have_the_papers_batch() -> None:
    plan = describe_plan(TrainSettings.load(CONFIGS / "isoflop-paper.yaml"), length=4096)
    assert plan.batch_tokens == 524_288
    assert plan.parameters.total == pytest.approx(250e6, rel=0.2)


def test_ranks_share_the_memory() -> None:
    settings = TrainSettings.load(CONFIGS / "steerling-8b" / "pretrain.yaml")
    one, eight = (describe_plan(settings, ranks=ranks).bytes_per_rank for ranks in (1, 8))
    assert one.weights == one.gradients == one.optimiser // 2 == 4 * 8_391_778_304
    assert one.total == one.weights + one.gradients + one.optimiser
    assert eight.total == pytest.approx(one.total / 8, rel=1e-4)


def test_muon_keeps_one_moment() -> None:
    muon, adamw = (
        describe_plan(TrainSettings.parse({"optim": {"matrices": kind, "heads": kind}})).bytes_per_rank
        for kind in ("muon", "adamw")
    )
    assert muon.weights == adamw.weights
    assert adamw.weights < muon.optimiser < adamw.optimiser == 2 * adamw.weights


def test_figures_fit_one_another() -> None:
    plan = describe_plan(TrainSettings.parse({"size": "30M"}), ranks=2)
    found = plan.as_json()
    parts = ("embedding", "backbone", "known", "discovered")
    assert sum(found["parameters"][part] for part in parts) == found["parameters"]["total"]
    assert found["tokens"] == found["steps"] * found["batch_tokens"]
    assert found["flops"] == pytest.approx(found["tokens"] * found["flops_per_token"]["total"])
    assert found["tokens"] == pytest.approx(20 * found["parameters"]["total"], rel=0.01)
    for figure in ("parameters", f"{plan.parameters.total:,}", f"{plan.tokens:,}", "2 ranks", "library"):
        assert figure in plan.text
    assert max(len(line) for line in plan.text.splitlines()) <= 120


def test_a_shape_beside_the_size_wins_and_the_plan_says_so() -> None:
    plan = describe_plan(TrainSettings.load(CONFIGS / "train.yaml", {"size": "30M"}))
    assert plan.config.width == 128
    assert "not the size asked for, 30M" in plan.text
    assert plan.as_json()["missed_size"] == "30M"
    assert describe_plan(TrainSettings.load(CONFIGS / "size.yaml", {"size": "100M"})).missed is None


def test_flops_of_the_plan_are_those_asked_for() -> None:
    plan = describe_plan(TrainSettings.parse({"flops": 1e17}))
    assert plan.flops == pytest.approx(1e17, rel=0.01)


def test_autoregressive_model_predicts_everywhere() -> None:
    plan = describe_plan(TrainSettings.load(CONFIGS / "ar.yaml"))
    assert plan.predicted_share == 1.0
    assert plan.config.backbone == "ar"


def test_heads_that_sum_all_concepts_cost_more() -> None:
    """A top-k curve above the model's own, as in pretraining, counts."""
    sparse, dense = (
        describe_plan(TrainSettings.parse({"compose": {"top_k_known": curve}})) for curve in (None, [[0, 10_000]])
    )
    assert dense.flops_per_token.known > sparse.flops_per_token.known
    assert dense.flops_per_token.backbone == sparse.flops_per_token.backbone


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"model": {"num_concepts": 10}}, "top_k_known 16 is more than the model's 10 known concepts"),
        (
            {"model": {"num_concepts": 20, "discovered_ratio": 1}},
            "top_k_discovered 64 is more than the model's 20 discovered",
        ),
        (
            {"model": {"num_concepts": 20, "top_k_discovered": 9}, "compose": {"top_k_known": [[0, 30]]}},
            "top_k_known 30 is more than the model's 20 known concepts",
        ),
        ({"model": {"interpretable": False}, "steering": {}}, "steering needs concepts"),
        (
            {"model": {"interpretable": False}, "compose": {"residual_dropout": [[0, 0.1]]}},
            "compose has no effect without concepts",
        ),
        ({"model": {"interpretable": False}, "loss": {"concept": 0.5}}, "loss has no effect without concepts"),
        ({"micro_batch": 8, "batch_size": 4}, "micro_batch 8 is larger than batch_size 4"),
        ({"data": {"mixture": [{"from_step": 5, "weights": {"a": 1}}]}}, "starts at step 5"),
        (
            {"data": {"mixture": [{"weights": {"a": 1}}, {"from_step": 9, "weights": {"a": 1}}] * 2}},
            "let each be higher",
        ),
    ],
)
def test_contradictions_are_one_line(values: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        TrainSettings.parse(values, where="configs/mine.yaml")
    assert "\n" not in str(caught.value)
    assert str(caught.value).startswith("configs/mine.yaml: ")


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"model": {"block": 300}}, "model.block 300 is longer than a training sequence of 256 tokens"),
        ({"model": {"width": 100, "num_heads": 3}}, "width 100 is not a multiple of num_heads 3"),
    ],
)
def test_shapes_that_cannot_be_built_are_one_line(values: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        describe_plan(TrainSettings.parse(values))


@pytest.mark.parametrize(
    ("key", "nearest"),
    [
        ("model.interpretabel", "interpretable"),
        ("model.num_concept", "num_concepts"),
        ("model.bakbone", "backbone"),
        ("data.mixtur", "mixture"),
        ("data.worker", "workers"),
        ("compose.known_dropuot", "known_dropout"),
        ("optim.rate.decay_shares", "decay_share"),
        ("heldout.steering_concept", "steering_concepts"),
        ("siez", "size"),
        ("flop", "flops"),
        ("compil", "compile"),
        ("steering.densty", "density"),
        ("lora.rnak", "rank"),
    ],
)
def test_typos_name_the_nearest_key(key: str, nearest: str) -> None:
    with pytest.raises(ConfigError, match=f"unknown setting '{key}'; did you mean .*'{nearest}'"):
        TrainSettings.load(overrides={key: 1})


def test_the_table_of_sizes_is_current(tmp_path: Path) -> None:
    """The committed table is what the script writes today; run scripts/dial_table.py to renew it."""
    committed = (ROOT / "docs" / "training.md").read_text("utf-8")
    page = tmp_path / "training.md"
    page.write_text(committed, encoding="utf-8")
    subprocess.run([sys.executable, ROOT / "scripts" / "dial_table.py", page], check=True, timeout=300)
    assert page.read_text("utf-8") == committed
    assert committed.count("\n| `") > 9


def test_a_plain_model_takes_what_concerns_it() -> None:
    """The plain twin of a run with the default objective: nothing to take out of the file."""
    settings = TrainSettings.parse({"model": {"interpretable": False}, "loss": {"language_weight": "elbo"}})
    check_consistent(settings.model, settings.loss, settings.compose, has_steering=False)
    assert isinstance(settings, Settings)
    assert describe_plan(settings).parameters.concept_share == 0
