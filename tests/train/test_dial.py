"""The dial: every size is legal, near what was asked for, and more never gives less."""

import math
from collections.abc import Callable, Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vitrail.errors import ConfigError
from vitrail.model import empty_model
from vitrail.model.flops import parameter_count, training_flops
from vitrail.train.dial import TOKENS_PER_PARAMETER, Dial, dial, parse_size, predicted_share, with_dial
from vitrail.train.ladder import ladder
from vitrail.train.masking import NoiseSettings
from vitrail.train.optim import OptimSettings
from vitrail.train.settings import TrainSettings

SIZES = st.floats(math.log(1.0001e6), math.log(7.999e9)).map(math.exp)
BUDGETS = st.floats(math.log(1.5e14), math.log(8e21)).map(math.exp)
RATES = ("matrix_rate", "embedding_rate", "head_rate", "norm_rate")


def _rates(found: Dial) -> list[float]:
    return [found.run["optim"][name] for name in RATES]


@given(SIZES)
@settings(deadline=None, max_examples=40)
def test_the_model_built_has_the_size_asked_for(size: float) -> None:
    """Steps of the ladder are at most 1.42 apart, so the nearest is within a fifth."""
    found = dial(size=size)
    count = parameter_count(empty_model(found.config))
    assert count.total == found.parameters
    assert count.total == pytest.approx(size, rel=0.2)
    assert 0.02 < count.concept_share < 0.12, "the library outgrows the model, or is too small to matter"
    assert found.config.discovered_count == 3 * found.num_concepts


@given(SIZES)
@settings(deadline=None)
def test_every_size_is_legal(size: float) -> None:
    found = dial(size=size)
    config, run = found.config, found.run
    assert config.width % config.num_heads == config.num_heads % config.kv_heads == config.head_width % 2 == 0
    assert 16 <= config.head_width <= 256
    assert config.max_length % config.block == 0
    assert run["batch_size"] % (run["micro_batch"] or 1) == 0
    assert (config.top_k_known or 0) <= config.num_concepts
    assert config.discovered_rank < config.width
    read = TrainSettings.parse(found.values())
    assert read.total_tokens == TOKENS_PER_PARAMETER * found.parameters
    assert 5_000 < found.total_tokens / (run["batch_size"] * config.max_length) < 100_000, "steps"


@given(SIZES, SIZES)
@settings(deadline=None)
def test_more_is_never_less(one: float, other: float) -> None:
    small, large = (dial(size=size) for size in sorted((one, other)))
    growing: list[Callable[[Dial], int | float | None]] = [
        lambda found: found.parameters,
        lambda found: found.total_tokens,
        lambda found: found.flops,
        lambda found: found.config.width,
        lambda found: found.config.num_layers,
        lambda found: found.config.num_heads,
        lambda found: found.config.inner_width,
        lambda found: found.config.block,
        lambda found: found.config.max_length,
        lambda found: found.config.discovered_rank,
        lambda found: found.config.top_k_known,
        lambda found: found.config.vocab_size,
        lambda found: found.num_concepts,
        lambda found: found.run["batch_size"] * found.config.max_length,
    ]
    for grows in growing:
        assert (grows(small) or 0) <= (grows(large) or 0)
    assert all(ours >= theirs for ours, theirs in zip(_rates(small), _rates(large), strict=True))


def test_rungs_grow_by_small_steps() -> None:
    for before, after in pairwise(ladder()):
        assert (after.width > before.width) + (after.num_layers > before.num_layers) == 1
        assert after.width / before.width <= 1.2 or after.width < 100


@given(BUDGETS)
@settings(deadline=None)
def test_a_budget_is_spent_whole_at_about_twenty_tokens_a_parameter(flops: float) -> None:
    found = dial(flops=flops)
    spent = found.total_tokens * training_flops(found.config, found.config.max_length, 0.5).total
    assert spent == pytest.approx(flops, rel=1e-6)
    assert found.flops == pytest.approx(flops, rel=1e-6)
    assert found.total_tokens / found.parameters == pytest.approx(20, rel=0.5), "within a step of the ladder"
    assert 6 * found.parameters * found.total_tokens == pytest.approx(flops, rel=0.5), "C is about 6 N D"


@pytest.mark.parametrize("size", ["8B", "8b", 8e9, 8_000_000_000, " 8.0B ", "8_000M"])
def test_8b_is_the_released_shape(size: Any) -> None:
    found = dial(size=size)
    config = found.config
    assert (config.width, config.num_layers, config.num_heads, config.kv_heads) == (4096, 32, 32, 4)
    assert (config.num_concepts, config.discovered_count, config.discovered_rank) == (33_732, 101_196, 256)
    assert (config.block, config.inner_width, config.norm_order) == (64, 16_384, "post")
    assert (config.top_k_known, config.top_k_discovered, config.max_length) == (32, 128, 4096)
    assert found.parameters == 8_391_778_304
    assert found.run["optim"]["matrices"] == "adamw"


def test_the_small_end_is_what_the_lab_measured() -> None:
    found = dial(size="1.3M")
    assert (found.config.width, found.config.num_layers, found.config.num_heads) == (128, 6, 4)
    assert found.run["optim"]["matrix_rate"] == OptimSettings().matrix_rate == 0.03
    assert dial(size="3.5M").run["optim"]["matrix_rate"] == pytest.approx(0.4 * 0.03)


@pytest.mark.parametrize("size", ["30X", "0.1M", "20B", "", "M", "-3M", "0", "1e400", "nan", "30 M B", True, [1]])
def test_a_bad_size_is_one_clear_line(size: Any) -> None:
    with pytest.raises(ConfigError) as caught:
        TrainSettings.parse({"size": size}, where="configs/mine.yaml")
    assert "\n" not in str(caught.value)
    assert str(caught.value).startswith("configs/mine.yaml: ")
    assert "size" in str(caught.value)


@pytest.mark.parametrize("flops", ["much", -1, 0, 1e10, 1e30, "nan", [1]])
def test_a_bad_budget_is_one_clear_line(flops: Any) -> None:
    with pytest.raises(ConfigError, match="flops") as caught:
        TrainSettings.parse({"flops": flops})
    assert "\n" not in str(caught.value)


def test_size_and_flops_contradict_one_another() -> None:
    with pytest.raises(ConfigError, match="both choose the size"):
        TrainSettings.parse({"size": "30M", "flops": 1e18})


def test_explicit_keys_win() -> None:
    values = {"size": "30M", "model": {"block": 16}, "optim": {"rate": {"decay_share": 0.5}}, "total_tokens": 1000}
    read = TrainSettings.parse(values)
    found = dial(size="30M")
    assert (read.model.block, read.total_tokens, read.optim.rate.decay_share) == (16, 1000, 0.5)
    assert read.model.width == found.model.width
    assert read.optim.rate.warmup_steps == found.run["optim"]["rate"]["warmup_steps"]
    assert values["model"] == {"block": 16}, "the values given are not changed"


def test_a_size_may_be_a_number_in_the_file(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text("size: 30000000\n", encoding="utf-8")
    assert TrainSettings.load(path).model == TrainSettings.parse({"size": "30M"}).model


def test_settings_objects_count_as_given() -> None:
    read = TrainSettings(size="30M", optim=OptimSettings(matrix_rate=0.5))
    assert read.optim.matrix_rate == 0.5
    assert read.optim.head_rate == dial(size="30M").run["optim"]["head_rate"]


@pytest.mark.parametrize("values", [{"size": "30M"}, {"flops": "1e18"}, {"size": "2M", "model": {"num_concepts": 9}}])
def test_what_was_resolved_reads_back_to_itself(values: Mapping[str, Any]) -> None:
    read = TrainSettings.parse(values)
    assert TrainSettings.parse(read.model_dump(mode="json")) == read


@pytest.mark.parametrize(
    "model",
    [
        {"vocab_size": 8192, "num_concepts": 40},
        {"vocab_size": 50_000, "num_concepts": 3000},
        {"interpretable": False},
        {"backbone": "ar"},
        {"factorize_discovered": False},
        {"discovered_ratio": 0.0},
    ],
)
def test_the_size_holds_with_what_is_given(model: dict[str, Any]) -> None:
    found = dial(size="60M", model=model)
    assert found.parameters == pytest.approx(60e6, rel=0.25)
    assert {name: getattr(found.config, name) for name in ("vocab_size", "num_concepts") if name in model} == {
        name: value for name, value in model.items() if name in ("vocab_size", "num_concepts")
    }


def test_a_size_that_a_vocabulary_forbids() -> None:
    with pytest.raises(ConfigError, match=r"size 1M cannot be met with model.vocab_size 100281"):
        dial(size="1M", model={"vocab_size": 100_281})


def test_without_size_nothing_changes() -> None:
    values = {"model": {"width": 64}}
    assert with_dial(values) is values


def test_sizes_in_words() -> None:
    assert [parse_size(size) for size in ("30M", "1.5b", "2_000k", 4e6)] == [30e6, 1.5e9, 2e6, 4e6]


def test_predicted_share_is_the_mean_noise() -> None:
    noise = NoiseSettings(low=0.05, high=((0.0, 0.95),))
    assert predicted_share("cdlm", noise) == pytest.approx(0.5)
    assert predicted_share("ar", noise) == 1.0
