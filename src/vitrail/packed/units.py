"""Units: what is packed as a whole. A chunk between its control tokens, or a conversation with its answers marked."""

from dataclasses import dataclass

import numpy as np
from jaxtyping import UInt32

from vitrail.corpus import Split


@dataclass(frozen=True)
class PackedChunk:
    """The chunk in a unit, with its labels; places count from the unit's first token.

    Attributes:
        row: in the annotated corpus.
        start: its first token.
        size: its tokens, without control tokens.
        num_bytes: of its text.
        label_concept: concepts that it carries.
        span_pos: with `span_concept` the token-level labels.
        span_concept: concepts.
    """

    row: int
    start: int
    size: int
    num_bytes: int
    label_concept: list[int]
    span_pos: list[int]
    span_concept: list[int]


@dataclass(frozen=True)
class Answer:
    """Tokens start..stop-1 of a unit that the model is to learn to say, and the bytes of the answer's text."""

    start: int
    stop: int
    num_bytes: int


@dataclass(frozen=True)
class Unit:
    """Tokens that stay together, control tokens included.

    Attributes:
        tokens: [n] ids.
        chunk: of a document; None in conversations.
        answers: of a conversation.
    """

    tokens: UInt32[np.ndarray, " n"]
    chunk: PackedChunk | None = None
    answers: tuple[Answer, ...] = ()


@dataclass(frozen=True)
class Dropped:
    """A chunk or conversation that does not fit a sequence."""

    chunk_id: str
    reason: str


@dataclass(frozen=True)
class PackedDocument:
    """Units that follow one another, and what decides where they may go.

    Attributes:
        split: train or heldout (of others nothing is packed).
        group: that its sequences belong to; empty where sequences are not grouped.
        units: in order.
        dropped: what was left out of it.
    """

    split: Split
    group: str
    units: list[Unit]
    dropped: tuple[Dropped, ...] = ()
