"""From the user's settings and the corpus to the configuration of a model."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vitrail.errors import ConfigError
from vitrail.model import DenseHead, FactorizedHead, ModelConfig, NoHead, init_model
from vitrail.text import ControlIds
from vitrail.train.shape import ModelSettings, model_config

CONTROLS = ControlIds(pad=3, bos=1, eos=0, eoc=2, mask=4, start_header=5, end_header=6, eot=7)
SMALL = {"width": 24, "num_layers": 1, "num_heads": 2, "intermediate_size": 48, "block": 4, "discovered_rank": 5}


def _config(library: int = 11, **changes: object) -> ModelConfig:
    shape = ModelSettings.parse(SMALL | changes)
    return model_config(shape, vocab_size=97, num_concepts=library, max_length=33, controls=CONTROLS)


def test_the_corpus_gives_what_the_user_does_not() -> None:
    config = _config(backbone="ar", num_kv_heads=1)
    assert (config.vocab_size, config.max_length, config.num_concepts) == (97, 33, 11)
    assert (config.backbone, config.width, config.num_kv_heads) == ("ar", 24, 1)
    assert config.controls == CONTROLS


@pytest.mark.parametrize("name", ["vocab_size", "num_concepts"])
def test_sizes_that_are_given_must_be_those_of_the_corpus(name: str) -> None:
    right = {"vocab_size": 97, "num_concepts": 11}
    assert _config(**{name: right[name]}) == _config()
    with pytest.raises(ConfigError, match=rf"model\.{name} is 13, but the packed corpus has {right[name]}; set it"):
        _config(**{name: 13})


@settings(max_examples=25, deadline=None)
@given(ratio=st.floats(0.5, 3), num_concepts=st.integers(1, 500), top_k=st.none() | st.integers(1, 600))
def test_the_discovered_ratio_is_m_over_c(ratio: float, num_concepts: int, top_k: int | None) -> None:
    config = _config(num_concepts, discovered_ratio=ratio, top_k_discovered=top_k, top_k_known=top_k)
    assert config.use_discovered
    assert config.discovered_count == max(1, round(ratio * num_concepts))
    assert config.top_k_discovered == (None if top_k is None else min(top_k, config.discovered_count))
    assert config.top_k_known == config.top_k_known_features == (None if top_k is None else min(top_k, num_concepts))


@pytest.mark.parametrize("top_k", [None, 3])
def test_every_top_k_is_what_the_heads_sum(top_k: int | None) -> None:
    model = init_model(_config(top_k_known=top_k, top_k_discovered=top_k), 0)
    assert model.known_head.selection.summed == model.unknown_head.selection.summed == top_k


def test_heads_as_asked_for() -> None:
    assert isinstance(init_model(_config(), 0).unknown_head, FactorizedHead)
    dense = init_model(_config(factorize_discovered=False), 0).unknown_head
    assert isinstance(dense, DenseHead)
    assert dense.num_concepts == 33
    without = init_model(_config(discovered_ratio=0), 0)
    assert isinstance(without.unknown_head, NoHead)
    assert without.known_head.num_concepts == 11
    assert not init_model(_config(use_residual=False), 0).has_residual


@pytest.mark.parametrize("backbone", ["cdlm", "ar"])
def test_a_plain_model_starts_as_its_twin_with_concepts(backbone: str) -> None:
    """Same seed, same backbone; the known bias, a matter of the concepts, has no effect."""
    plain, twin = (
        init_model(_config(backbone=backbone, interpretable=flag), 3, known_bias=-4.0) for flag in (False, True)
    )
    assert isinstance(plain.known_head, NoHead)
    assert isinstance(plain.unknown_head, NoHead)
    weights, others = plain.state_dict(), twin.state_dict()
    assert set(weights) == {name for name in others if name.startswith("transformer.")}
    assert all(bool((weights[name] == others[name]).all()) for name in weights)


def test_without_residual_something_must_be_left() -> None:
    with pytest.raises(ConfigError, match="use_residual false needs a discovered head"):
        ModelSettings.parse({"use_residual": False, "discovered_ratio": 0})
    ModelSettings(use_residual=False, discovered_ratio=0, interpretable=False)
