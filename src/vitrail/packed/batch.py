"""A batch of packed sequences with its labels, aligned token by token."""

from dataclasses import dataclass

from jaxtyping import Bool, Int64
from torch import Tensor


@dataclass(frozen=True)
class PackedBatch:
    """B sequences of T tokens that hold J chunks; what a training step and a metric read.

    Attributes:
        tokens: [B T] token ids.
        loss_mask: [B T] True at tokens that the language loss may ask for: all but padding, and in packed
            conversations only the answers and their end marks.
        chunk: [B T] number 0..J-1 of the chunk each token belongs to; -1 at control tokens, padding and in
            conversations, which have no chunks.
        num_chunks: J.
        label_chunk: [n] with `label_concept` the pairs "chunk carries concept".
        label_concept: [n] known concepts 0..C-1.
        span_pos: [s] with `span_concept` the token-level labels; place b·T + pos.
        span_concept: [s] known concepts.
        rows: [J] row of each chunk in the annotated corpus.
        num_bytes: UTF-8 bytes of the chunks' texts; in conversations, of the answers.
    """

    tokens: Int64[Tensor, "B T"]
    loss_mask: Bool[Tensor, "B T"]
    chunk: Int64[Tensor, "B T"]
    num_chunks: int
    label_chunk: Int64[Tensor, " n"]
    label_concept: Int64[Tensor, " n"]
    span_pos: Int64[Tensor, " s"]
    span_concept: Int64[Tensor, " s"]
    rows: Int64[Tensor, " J"]
    num_bytes: int
