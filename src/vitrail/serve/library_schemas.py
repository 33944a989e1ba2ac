"""Concepts, their cards, and training passages."""

from typing import Annotated, Literal

from pydantic import ConfigDict, Field

from vitrail.explain import SourceHit
from vitrail.serve.schemas import Answered, Asked, Named
from vitrail.steer import Head


class ConceptQuery(Named):
    """Which concepts to list."""

    query: Annotated[str, Field(max_length=1024, examples=["trade"])] = ""
    """Words to look for in names, characteristic words and descriptions; all concepts where it is empty."""
    head: Head | None = None
    """Only known or only discovered ones."""
    limit: Annotated[int, Field(ge=1, le=100_000)] = 50
    """How many; the server allows up to its limit (200 by default)."""
    offset: Annotated[int, Field(ge=0, le=2**31)] = 0
    """How many to pass over."""


class ConceptCard(Answered):
    """What a reader needs to know of a concept."""

    head: Head
    """known: named before training; discovered: found by it."""
    concept_id: int
    """Its number within its head."""
    name: str
    """Unique within its head."""
    description: str
    """One line."""
    kind: str
    """content for every concept of the embedded library."""
    words: list[str]
    """Characteristic words, most characteristic first."""
    lift: list[float]
    """How many times likelier each word is in the concept's chunks."""
    path: list[str]
    """Place in the taxonomy, from the root."""
    num_chunks: int
    """Labelled chunks."""
    threshold: float
    """Lowest annotator score of a label."""
    is_automatic: bool
    """Named by a program, not by a person."""


class ConceptList(Answered):
    """A page of concepts."""

    object: Literal["list"] = "list"
    """Always `list`."""
    total: int
    """Concepts that fit the query."""
    data: list[ConceptCard]
    """Best first, or known first and by id where there is no query."""


class RaisedToken(Answered):
    """A token that a concept raises."""

    id: int
    """Its id."""
    text: str
    """Its text."""
    score: float
    """Its logit along the concept's embedding, less the mean of its head."""


class Neighbour(Answered):
    """A concept that lies close."""

    head: Head
    """Where it belongs."""
    concept_id: int
    """Its number."""
    name: str
    """Its name."""
    cosine: float
    """Of the two embeddings, each less the mean of its head."""


class Passage(Answered):
    """A training passage that carries the concept."""

    chunk_id: str
    """Its id."""
    document_id: str
    """Of its document."""
    title: str
    """Of its document."""
    source: str
    """Where it comes from."""
    license: str
    """Of the text; empty where unknown."""
    text: str
    """The passage."""
    score: float
    """The annotator's."""
    spans: list[tuple[int, int]]
    """Where the concept shows, as characters `[start, stop)`."""


class ConceptScale(Answered):
    """Strength 1.0 of the concept."""

    scale: float
    """Norm of the injected vector."""
    change: float
    """The logit change that it causes."""


class ConceptDetail(Answered):
    """A concept and what is known of it."""

    card: ConceptCard
    """The card."""
    top_tokens: list[RaisedToken]
    """Tokens that it raises most."""
    neighbours: list[Neighbour]
    """Concepts that lie closest, of both heads."""
    examples: list[Passage]
    """Training passages that carry it best; none without an index, or of a discovered concept."""
    scale: ConceptScale | None
    """Strength 1.0, where it has been measured."""


class SourcesRequest(Asked):
    """A text whose training passages are wanted."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"text": "exports of crude oil", "limit": 3}]})

    text: Annotated[str, Field(min_length=1, max_length=2**20)]
    """Any text that fits the context."""
    limit: Annotated[int, Field(ge=1, le=1000)] = 5
    """How many passages; the server allows up to its limit (50 by default)."""


class SourcesAnswer(Answered):
    """Training passages that resemble a text."""

    note: str
    """What similarity does not say."""
    hits: list[SourceHit]
    """Most similar first."""
