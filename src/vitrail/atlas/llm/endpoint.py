"""Which language model is asked, and where it is served.

Two groups, because they have different fates: `LanguageModel` and the prompts decide what is answered and enter the id
of an artifact; `Endpoint` says where the model is, how fast it may be asked and what it costs, and enters nothing. Any
server that speaks `/v1/chat/completions` will do: vLLM, SGLang, llama.cpp, Ollama, LM Studio, hosted ones.
"""

from collections.abc import Mapping
from typing import Any, Literal
from urllib.parse import urlsplit

from pydantic import Field, SecretStr, field_validator, model_validator

from vitrail.atlas.llm.prompts import Prompt
from vitrail.errors import ConfigError
from vitrail.settings import Seed, Settings


class LanguageModel(Settings):
    """What decides the answers of a language model; enters the id of what is made from them."""

    model: str = Field(min_length=1)
    """Name of the model, as its server knows it."""
    temperature: float | None = Field(default=0.0, ge=0)
    """Of sampling; none is not sent (some models take no other than their own)."""
    seed: Seed | None = 0
    """Seed of sampling, raised by one for each further attempt; none is not sent."""
    max_tokens: int = Field(default=512, ge=1)
    """Longest answer in tokens of the model."""
    structured: Literal["json_schema", "json_object", "none"] = "json_schema"
    """How the server is held to JSON: by the schema, by the format alone, or only by the words of the prompt."""
    attempts: int = Field(default=2, ge=1, le=10)
    """How often a question is put until an answer fits."""
    extra: Mapping[str, Any] = Field(default_factory=dict)
    """Further fields of the request, such as `{"chat_template_kwargs": {"enable_thinking": false}}` for vLLM."""


class TaggingModel(LanguageModel):
    """A language model that tags chunks and names concepts."""

    chunks_per_request: int = Field(default=1, ge=1, le=64)
    """Chunks in one request for tags. One keeps each answer independent of its neighbours; more spare the prompt."""
    tags: Prompt = Field(default_factory=lambda: Prompt.builtin("tags"))
    """Prompt that asks for the tags of a chunk."""
    concept: Prompt = Field(default_factory=lambda: Prompt.builtin("concept"))
    """Prompt that asks for a concept's name, description and kind."""


class RatingModel(LanguageModel):
    """A language model that rates how well a concept fits a chunk."""

    relevance: Prompt = Field(default_factory=lambda: Prompt.builtin("relevance"))
    """Prompt that asks for the rating."""


class Endpoint(Settings):
    """Where a language model is served, how it may be asked, what it costs; changes no answer."""

    url: str
    """Base address, with `/v1` where the server has it: `http://localhost:8000/v1`."""
    api_key_env: str | None = None
    """Name of the environment variable that holds the key; the key itself is never stored."""
    api_key: SecretStr | None = Field(default=None, exclude=True, repr=False)
    """The key, put here by the command line; not for files or flags."""
    timeout_s: float = Field(default=120.0, gt=0)
    """Longest wait for one answer."""
    max_concurrency: int = Field(default=16, ge=1)
    """Requests in flight."""
    requests_per_minute: float | None = Field(default=None, gt=0)
    """Most requests a minute; none is no limit."""
    tokens_per_minute: float | None = Field(default=None, gt=0)
    """Most tokens a minute, in and out together; none is no limit."""
    max_retries: int = Field(default=5, ge=0)
    """Repeats of a request that found no server, a full one (429) or a broken one (5xx), ever longer apart."""
    max_fault_share: float = Field(default=0.1, ge=0, le=1)
    """Share of questions without a usable answer above which a run stops."""
    price_in: float | None = Field(default=None, ge=0)
    """Price of a million tokens that are read, in any currency."""
    price_out: float | None = Field(default=None, ge=0)
    """Price of a million tokens that are written."""
    max_cost: float | None = Field(default=None, ge=0)
    """Stop before the run if the estimate is above this price; needs both prices."""

    @field_validator("url")
    @classmethod
    def _is_address(cls, url: str) -> str:
        if not url.startswith(("http://", "https://")):
            raise ValueError("the address must begin with http:// or https://, as http://localhost:8000/v1 does")
        try:
            parts = urlsplit(url)
            is_whole = bool(parts.hostname) and parts.port != 0 and not any(sign.isspace() for sign in url)
        except ValueError:  # half a bracket, or a port that is none
            is_whole = False
        if not is_whole:
            raise ValueError("no host or no port that could be; an address looks like http://localhost:8000/v1")
        if parts.username is not None:
            raise ValueError("names and passwords do not belong in an address; name a variable: api_key_env")
        return url.rstrip("/")

    @model_validator(mode="after")
    def _has_prices(self) -> "Endpoint":
        if self.max_cost is not None and (self.price_in is None or self.price_out is None):
            raise ValueError("max_cost needs both price_in and price_out, or no cost can be estimated")
        return self

    def with_key(self, environment: Mapping[str, str]) -> "Endpoint":
        """The endpoint with the key that its environment variable holds.

        Args:
            environment: the variables of the process.

        Returns:
            itself where no variable is named.

        Raises:
            ConfigError: the variable is named but not set, or holds what can be no key.
        """
        if self.api_key_env is None:
            return self
        key = environment.get(self.api_key_env)
        if not key:
            raise ConfigError(f"{self.url}: the environment variable {self.api_key_env} is not set; export the key")
        if not key.isascii() or not key.isprintable() or " " in key:
            raise ConfigError(
                f"{self.url}: the environment variable {self.api_key_env} holds a blank, a line break or an accent, "
                "which no key has; export the bare key"
            )
        return self.model_copy(update={"api_key": SecretStr(key)})
