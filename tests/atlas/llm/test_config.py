"""The configuration that users copy, and how a command parts it."""

from pathlib import Path

import pytest

from vitrail.atlas.judge.relevance import RelevanceSettings
from vitrail.atlas.llm import Endpoint, TaggingModel
from vitrail.cli.endpoints import split_endpoint
from vitrail.errors import ConfigError

CONFIG = Path(__file__).parents[3] / "configs" / "atlas" / "endpoint.yaml"


def test_example_fits_builds_and_evaluations() -> None:
    endpoint, values = split_endpoint({"judge": "endpoint"}, CONFIG, None, [])
    assert endpoint == Endpoint(url="http://localhost:8000/v1", max_concurrency=32)
    settings = RelevanceSettings.load(overrides=values)
    assert settings.llm is not None
    assert TaggingModel.parse(values["llm"]).model == settings.llm.model


def test_flags_go_before_the_file() -> None:
    flags = {"endpoint.url": "http://other/v1/", "llm.model": "mine", "judge": "endpoint"}
    endpoint, values = split_endpoint(flags, CONFIG, None, [])
    assert endpoint is not None
    assert (endpoint.url, endpoint.max_concurrency) == ("http://other/v1", 32)
    settings = RelevanceSettings.load(overrides=values)
    assert settings.llm is not None
    assert (settings.llm.model, settings.llm.max_tokens) == ("mine", 512)


def test_address_enters_no_settings() -> None:
    _, one = split_endpoint({"endpoint.url": "http://one", "llm.model": "m"}, None, None, [])
    _, other = split_endpoint(
        {"endpoint.url": "http://other", "endpoint.max_retries": 1, "llm.model": "m"}, None, None, []
    )
    assert one == other == {"llm.model": "m"}


def test_no_address_is_no_endpoint() -> None:
    assert split_endpoint({"sample": 3}, None, None, []) == (None, {"sample": 3})


def test_only_wanted_prompts_are_taken(tmp_path: Path) -> None:
    for name, words in (("tags", "{text}"), ("relevance", "{name} {description} {text}")):
        (tmp_path / f"{name}.md").write_text(f"Do.\n---\n{words}\n", encoding="utf-8")
    _, values = split_endpoint({}, None, tmp_path, ["relevance"])
    assert list(values) == ["llm.relevance"]


def test_group_that_is_none_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "c.yaml").write_text("endpoint: http://x\n", encoding="utf-8")
    with pytest.raises(ConfigError, match="'endpoint' is a group of settings"):
        split_endpoint({}, tmp_path / "c.yaml", None, [])


@pytest.mark.parametrize(
    "url", ["http://", "http:///v1", "http://[::1", "http://host:99999/v1", "http://host:0", "http://a b/v1", "host:80"]
)
def test_address_that_cannot_be_is_refused_before_anything_is_asked(url: str) -> None:
    with pytest.raises(ConfigError, match=r"endpoint: setting 'url' = .*http://localhost:8000/v1"):
        split_endpoint({"endpoint.url": url}, None, None, [])


def test_budget_needs_prices() -> None:
    """Known before the first request is paid for."""
    with pytest.raises(ConfigError, match="max_cost needs both price_in and price_out"):
        split_endpoint({"endpoint.url": "http://x", "endpoint.max_cost": 3, "endpoint.price_in": 1}, None, None, [])


@pytest.mark.parametrize("key", ["sk-1\n", "clé", "a key", "\x07"])
def test_key_that_can_be_none_is_refused_and_not_shown(key: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ODD_KEY", key)
    with pytest.raises(ConfigError, match="ODD_KEY holds a blank, a line break or an accent") as caught:
        split_endpoint({"endpoint.url": "http://x", "endpoint.api_key_env": "ODD_KEY"}, None, None, [])
    assert key not in str(caught.value)
