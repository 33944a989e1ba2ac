"""Settings of the atlas: how large the chunks are, how many tags and concepts are wanted."""

from typing import Literal

from pydantic import Field, model_validator

from vitrail.atlas.concepts.decisions import Decisions
from vitrail.atlas.llm import TaggingModel
from vitrail.corpus import DEFAULT_MAX_CHARS, DEFAULT_MAX_TOKENS
from vitrail.settings import Seed, Settings


class AtlasSettings(Settings):
    """What `build_atlas` needs to know; the chunk sizes also rule `annotate_corpus`."""

    num_concepts: int = Field(default=128, ge=4)
    """Concepts wanted (C); a small or uniform corpus gives fewer."""
    chunk_tokens: int = Field(default=DEFAULT_MAX_TOKENS, ge=16)
    """Longest chunk in estimated tokens, so that it fits a short training sequence."""
    chunk_chars: int = Field(default=DEFAULT_MAX_CHARS, ge=64)
    """Longest chunk in characters."""
    max_chunks: int = Field(default=40_000, ge=50)
    """Chunks sampled to build from (by document id; the last document may be cut); annotation has no such limit."""
    max_tags: int = Field(default=24_000, ge=100)
    """Unique tags kept, by the number of chunks they stand for."""
    min_prevalence: float | None = Field(default=None, gt=0, lt=1)
    """Share of chunks a concept should reach, where the corpus allows; none: 1.28 / num_concepts, 0.01 at most."""
    max_prevalence: float = Field(default=0.08, gt=0, le=1)
    """Share of chunks a concept may not pass: broader ones say little."""
    max_labels: int = Field(default=8, ge=1)
    """Labels a chunk can carry."""
    tagger: Literal["embedded", "endpoint"] = "embedded"
    """Who gives tags: key phrases of the text itself, or a language model behind an OpenAI-compatible server."""
    namer: Literal["embedded", "endpoint"] = "embedded"
    """Who names and describes concepts."""
    tag_encoder: Literal["both", "minilm", "company"] = "both"
    """Vectors in which tags are clustered: meaning (MiniLM), company kept in the corpus, or both side by side."""
    encoder: str = Field(default="tags", pattern=r"^(tags|minilm|endpoint:.+)$")
    """Vectors of chunks: tags (mean of their tags' vectors), minilm (of the text), or endpoint:MODEL (a server's)."""
    loss: Literal["pu", "bce"] = "pu"
    """Loss of the annotator's heads: positive-unlabelled risk, or plain binary cross-entropy."""
    visible_labels: bool = True
    """Whether a label needs one of the concept's tags or phrases in the text, where the concept has any."""
    starter: bool = True
    """Whether to add the project's own concepts of tone, groups of people and alignment that the text speaks of."""
    llm: TaggingModel | None = None
    """The language model that tags or names."""
    decisions: Decisions = Decisions()
    """What people decided about concepts; applied again at every build."""
    given: str = Field(default="", repr=False)
    """Hash of the concepts and texts of an atlas that was made of a user's own labels; set by the import."""
    seed: Seed = 0
    """Seed of clustering and of the co-occurrence factorisation."""

    @model_validator(mode="after")
    def _has_model(self) -> "AtlasSettings":
        if self.llm is None and "endpoint" in (self.tagger, self.namer):
            raise ValueError("tagger or namer is 'endpoint', but no language model is named; give --llm.model NAME")
        return self

    @model_validator(mode="after")
    def _has_range(self) -> "AtlasSettings":
        if self.least_prevalence >= self.max_prevalence:
            raise ValueError(
                f"no concept could have a prevalence of at least {self.least_prevalence:g} and at most "
                f"{self.max_prevalence:g}; lower min_prevalence or raise max_prevalence"
            )
        return self

    @property
    def least_prevalence(self) -> float:
        """Share of chunks a concept should reach: a larger library has rarer concepts."""
        return min(0.01, 1.28 / self.num_concepts) if self.min_prevalence is None else self.min_prevalence
