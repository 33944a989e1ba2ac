"""One dial: a size, or a compute budget, sets the shape, the run and the library; keys given beside it win.

`size: 30M` takes the rung of the ladder (`train/ladder.py`, where each rule and its source stands) whose parameters
are nearest, and 20 tokens a parameter (C: Chinchilla's ratio; the 8B model itself had 160). `flops: 1e18` takes the
rung at which 20 tokens a parameter cost about that much, counted part by part (`model/flops.py`; nearly 6·N·D), and as
many tokens as the budget buys there: 14 to 29 a parameter. Vocabulary and library come from the corpus: where
`model.vocab_size` or `model.num_concepts` is given, the size is met with it, otherwise with what the ladder suggests.
"""

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from pydantic import BaseModel

from vitrail.errors import ConfigError
from vitrail.model import ModelConfig, empty_model
from vitrail.model.flops import parameter_count, training_flops
from vitrail.train.ladder import Rung, assumed_config, ladder, run_values
from vitrail.train.masking import NoiseSettings, expected_noise
from vitrail.train.objective import ComposeSettings
from vitrail.train.schedules import Curve
from vitrail.train.shape import ModelSettings

TOKENS_PER_PARAMETER = 20
_SMALLEST, _LARGEST = 1_000_000, 8_000_000_000
_UNITS = {"": 1, "K": 1e3, "M": 1e6, "B": 1e9}
_FARTHEST = 1.3
_COUNTED = {
    *("backbone", "interpretable", "vocab_size", "num_concepts"),
    *("discovered_ratio", "discovered_rank", "factorize_discovered"),
}
"""Settings that, given beside the dial, change how many parameters a rung has."""


@dataclass(frozen=True)
class _Given:
    """What is set beside the dial and matters for size or compute."""

    model: Mapping[str, Any]
    predicted_share: float
    compose: ComposeSettings


@dataclass(frozen=True)
class Dial:
    """What the dial sets.

    Attributes:
        model: shape of the model.
        run: everything else, as nested plain values: tokens, batch, rates.
        config: the model as it would be built, with the suggested library, vocabulary and length where none is given.
        parameters: of that model.
        flops: of the whole run.
    """

    model: ModelSettings
    run: Mapping[str, Any]
    config: ModelConfig
    parameters: int
    flops: float

    @property
    def total_tokens(self) -> int:
        """Tokens of the run."""
        tokens: int = self.run["total_tokens"]
        return tokens

    @property
    def num_concepts(self) -> int:
        """C, the size of the library it suggests."""
        return self.config.num_concepts

    def values(self) -> dict[str, Any]:
        """All that it sets, nested as in a settings file."""
        return {"model": self.model.model_dump(exclude_unset=True), **self.run}


def dial(
    *,
    size: str | int | float | None = None,
    flops: int | float | None = None,
    model: Mapping[str, Any] | None = None,
    predicted_share: float = 0.5,
    compose: ComposeSettings | None = None,
) -> Dial:
    """Shape, run and library of a size or of a budget.

    Args:
        size: parameters, such as "30M", "1.5B" or a number.
        flops: operations of the whole run.
        model: settings of the model that are given beside it (vocabulary, library, backbone, with or without concepts).
        predicted_share: share of positions at which the model predicts; matters for the compute alone.
        compose: sparsity over training, which matters for the compute too; None: the model's own top-k.

    Returns:
        what the dial sets.

    Raises:
        ConfigError: neither or both are given, one cannot be read, or no rung is near.
    """
    beside = {name: value for name, value in (model or {}).items() if name in _COUNTED}
    beside = ModelSettings.parse(beside, where="model").model_dump(exclude_unset=True)
    given = _Given(beside, predicted_share, compose or ComposeSettings())
    if size is not None and flops is not None:
        raise ConfigError(
            f"size {size} and flops {flops} both choose the size; keep one (with size, total_tokens sets the budget)"
        )
    if size is not None:
        return _for_size(size, given)
    if flops is None:
        raise ConfigError("the dial needs a size or flops, such as size 30M")
    return _for_flops(float(flops), given)


def with_dial(values: dict[str, Any]) -> dict[str, Any]:
    """Settings of a training run as given, over what their `size` or `flops` sets.

    Args:
        values: nested plain values (or settings) of a run; not changed.

    Returns:
        the same where there is neither `size` nor `flops`; otherwise the dial's values, with those given on top.

    Raises:
        ValueError: size or flops cannot be met, in one line.
    """
    size, flops = values.get("size"), values.get("flops")
    if size is None and flops is None:
        return values
    plain = {name: _plain(value) for name, value in values.items()}
    model, noise, compose = plain.get("model"), plain.get("noise"), plain.get("compose")
    model = model if isinstance(model, dict) else {}
    try:
        schedule = NoiseSettings.parse(noise if isinstance(noise, dict) else {}, where="noise")
        share = predicted_share(model.get("backbone", "cdlm"), schedule)
        found = dial(
            size=size if size is None or isinstance(size, int | float) else str(size),
            flops=None if flops is None else _number(flops),
            model=model,
            predicted_share=share,
            compose=ComposeSettings.parse(compose if isinstance(compose, dict) else {}, where="compose"),
        )
    except ConfigError as error:
        raise ValueError(str(error)) from error
    return _over(found.values(), plain | ({} if size is None else {"size": str(size)}))


def predicted_share(backbone: str, noise: NoiseSettings) -> float:
    """Share of positions at which a model predicts, as the mean over training.

    Args:
        backbone: `cdlm` or `ar`.
        noise: the noise schedule.

    Returns:
        the mean noise level; 1 for `ar`.
    """
    if backbone == "ar":
        return 1.0
    points = 100
    return sum(expected_noise(noise, (point + 0.5) / points) for point in range(points)) / points


def at_widest(config: ModelConfig, compose: ComposeSettings) -> ModelConfig:
    """The model with the largest top-k of the run, which decides what its heads cost.

    Args:
        config: the model.
        compose: its curves of top-k, if any.

    Returns:
        the model with that top-k, or none where all concepts are summed.
    """
    known, discovered = config.top_k_known_features, config.top_k_discovered
    if compose.top_k_known:
        known = _kept(compose.top_k_known, config.known_count)
    if compose.top_k_discovered:
        discovered = _kept(compose.top_k_discovered, config.discovered_count)
    return config.model_copy(
        update={"top_k_known": known, "top_k_known_features": known, "top_k_discovered": discovered}
    )


def parse_size(size: str | int | float) -> float:
    """Parameters of a size in words.

    Args:
        size: "30M", "1.5B", "8b", "250_000_000", or a number.

    Returns:
        the number of parameters asked for.

    Raises:
        ConfigError: it is no size, or outside what the ladder reaches.
    """
    found = re.fullmatch(r"\s*([\d_]*\.?\d+(?:e\+?\d+)?)\s*([KMB]?)\s*", str(size), re.IGNORECASE)
    if not found:
        raise ConfigError(f"size {size!r} is no number of parameters; write it as 30M, 1.5B or 8B")
    wanted = float(found[1].replace("_", "")) * _UNITS[found[2].upper()]
    if not _SMALLEST <= wanted <= _LARGEST:
        raise ConfigError(f"size {size} is outside 1M to 8B parameters; choose one inside, or set the model by hand")
    return wanted


def is_near(size: str | int | float, parameters: int) -> bool:
    """Whether a model has about the size asked for.

    Args:
        size: what was asked for.
        parameters: of the model.

    Returns:
        false where the two are more than a factor of 1.3 apart.
    """
    return abs(math.log(parameters / parse_size(size))) <= math.log(_FARTHEST)


def _for_size(size: str | int | float, given: _Given) -> Dial:
    wanted = parse_size(size)
    rung = _nearest(wanted, ladder(), lambda rung: _parameters(rung, given.model))
    parameters = _parameters(rung, given.model)
    if not is_near(wanted, parameters):
        beside = ", ".join(f"model.{name} {value}" for name, value in given.model.items())
        raise ConfigError(
            f"size {size} cannot be met with {beside}: the nearest model has {parameters:,} parameters; "
            f"change the size, or those"
        )
    return _dial(rung, given, TOKENS_PER_PARAMETER * parameters)


def _for_flops(flops: float, given: _Given) -> Dial:
    def budget(rung: Rung) -> float:
        return TOKENS_PER_PARAMETER * _parameters(rung, given.model) * _cost(rung, given)

    rungs = [rung for rung in ladder() if _parameters(rung, given.model) * _FARTHEST >= _SMALLEST]
    lowest, highest = budget(rungs[0]), budget(rungs[-1])
    if not lowest / _FARTHEST <= flops <= highest * _FARTHEST:
        raise ConfigError(
            f"flops {flops:g} buys no model of 1M to 8B at {TOKENS_PER_PARAMETER} tokens a parameter: choose "
            f"{lowest:.1e} to {highest:.1e}, or set size and total_tokens"
        )
    rung = _nearest(flops, rungs, budget)
    return _dial(rung, given, max(1, round(flops / _cost(rung, given))))


def _dial(rung: Rung, given: _Given, total_tokens: int) -> Dial:
    config, parameters = _config(rung, given.model), _parameters(rung, given.model)
    shape = rung.model()
    kept = {
        "top_k_known": min(shape.top_k_known or 0, config.num_concepts),
        "top_k_discovered": min(shape.top_k_discovered or 0, config.discovered_count or shape.top_k_discovered or 0),
    }
    return Dial(
        model=shape.model_copy(update=kept),
        run=run_values(rung.width, parameters, total_tokens),
        config=config,
        parameters=parameters,
        flops=total_tokens * _cost(rung, given),
    )


def _cost(rung: Rung, given: _Given) -> float:
    config = _config(rung, given.model)
    return training_flops(at_widest(config, given.compose), config.max_length, given.predicted_share).total


def _nearest(wanted: float, rungs: Sequence[Rung], measure: Callable[[Rung], int | float]) -> Rung:
    """The rung whose measure is nearest by ratio."""
    return min(rungs, key=lambda rung: abs(math.log(measure(rung) / wanted)))


def _config(rung: Rung, given: Mapping[str, Any]) -> ModelConfig:
    return assumed_config(ModelSettings.parse(rung.model().model_dump() | dict(given), where="model settings"))


def _parameters(rung: Rung, given: Mapping[str, Any]) -> int:
    fixed, per_layer = _linear_parameters(rung.width, tuple(sorted(given.items())))
    return fixed + rung.num_layers * per_layer


@lru_cache(maxsize=1024)
def _linear_parameters(width: int, given: tuple[tuple[str, Any], ...]) -> tuple[int, int]:
    """Parameters without layers, and of one layer: counted on a model of one layer without memory."""
    model = empty_model(_config(Rung(width, 1), dict(given)))
    total = parameter_count(model).total
    layer = sum(parameter.numel() for parameter in model.transformer.blocks[0].parameters())
    return total - layer, layer


def _number(flops: Any) -> float:
    try:
        wanted = float(flops)
    except (TypeError, ValueError):
        wanted = math.nan
    if not 0 < wanted < math.inf:
        raise ConfigError(f"flops {flops!r} is no number of operations; write it as 1e18")
    return wanted


def _plain(value: Any) -> Any:
    return value.model_dump(exclude_unset=True) if isinstance(value, BaseModel) else value


def _over(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """Nested values, those `above` winning key by key."""
    merged = dict(below)
    for name, value in above.items():
        inner = merged.get(name)
        merged[name] = _over(inner, value) if isinstance(inner, Mapping) and isinstance(value, Mapping) else value
    return merged


def _kept(curve: Curve, count: int) -> int | None:
    highest = round(max(knot[1] for knot in curve))
    return highest if highest < count else None
