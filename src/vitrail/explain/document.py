"""The explanation of one answer: one schema for Python, `--json`, the page and the HTTP API (design §5).

Every list of ranked things is signed and sorted by magnitude. Contributions and scores are in logits.
Positions count from 0 at the first prompt token (`where: prompt`) or at the first generated token;
spans are half-open.
"""

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

SIMILARITY_NOTE = "similarity is not influence"


class Part(BaseModel):
    """Base of all parts: frozen, no unknown keys, no NaN or infinity."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class GeneratedToken(Part):
    """A token of the answer: the denoising step that committed it, its logit and probability then."""

    pos: int
    id: int
    text: str
    step: int
    logit: float
    prob: float


class PromptToken(Part):
    """A token of the prompt."""

    pos: int
    id: int
    text: str


class ChunkSpan(Part):
    """A stretch of generated tokens `[start, stop)`."""

    chunk: int
    start: int
    stop: int
    text: str


class RankedInput(Part):
    """One input token and what it added to the explained logit."""

    pos: int
    where: Literal["prompt", "generated"]
    text: str
    score: float


class InputsOfToken(Part):
    """Inputs that one generated token rests on.

    Attributes:
        pos: the generated token.
        ranked: input tokens, largest |score| first.
        change: its logit minus the logit where every input is `[MASK]` and nothing is injected.
        completeness_gap: |sum of all scores − change| / |change|: the error of the numerical integral.
    """

    pos: int
    ranked: list[RankedInput]
    change: float
    completeness_gap: float


class InputsOfChunk(Part):
    """Inputs that a generated chunk rests on: scores summed over its tokens.

    Attributes:
        chunk: its number.
        scores: one score for each prompt token, logits.
        ranked: prompt and earlier generated tokens, largest |score| first.
        prompt_share: part of all |score| that lies on the prompt; the three shares sum to 1.
        generated_share: part on generated tokens.
        injection_share: part on the injected steering direction.
        injection: score of the injection, logits.
        change: sum of the tokens' logits minus the same sum at the baseline.
        completeness_gap: |sum of all scores − change| / |change|.
    """

    chunk: int
    scores: list[float]
    ranked: list[RankedInput]
    prompt_share: float
    generated_share: float
    injection_share: float
    injection: float
    change: float
    completeness_gap: float


class Inputs(Part):
    """Integrated Gradients from the `[MASK]` embedding (§6.1.1).

    Attributes:
        baseline: what an absent token is; an `ar` model never saw the mask in training (`untrained_mask`).
        steps: nodes of the integral.
        chunks: for each generated chunk.
        tokens: for each generated token; empty where only chunks were asked for.
    """

    baseline: Literal["mask", "untrained_mask"]
    steps: int
    chunks: list[InputsOfChunk]
    tokens: list[InputsOfToken]


class RankedConcept(Part):
    """One concept's contribution `a_c K_c·W_y`.

    Attributes:
        head: known or discovered.
        concept_id: row in its head.
        name: from the concept library.
        contribution: logits; over a chunk, summed over its tokens.
        centred: the same minus its mean over the vocabulary, which softmax ignores.
        weight: a_c in (0, 1); over a chunk, the mean over its tokens.
    """

    head: Literal["known", "discovered"]
    concept_id: int
    name: str
    contribution: float
    centred: float
    weight: float


class Shares(Part):
    """The parts of a logit: `known + discovered + residual` is the logit exactly (§5.3).

    Attributes:
        known: all known concepts together.
        discovered: all discovered concepts together.
        residual: what entered from outside the concepts.
        known_centred: `known` minus its mean over the vocabulary.
        discovered_centred: likewise.
        residual_centred: likewise.
        unlisted_known: the part of `known` that `ranked` does not list.
        unlisted_discovered: the part of `discovered` that `ranked` does not list.
        ranked: concepts, largest |centred| first.
    """

    known: float
    discovered: float
    residual: float
    known_centred: float
    discovered_centred: float
    residual_centred: float
    unlisted_known: float
    unlisted_discovered: float
    ranked: list[RankedConcept]


class ConceptsOfChunk(Shares):
    """The parts summed over the tokens of a chunk."""

    chunk: int


class ConceptsOfToken(Shares):
    """The parts of one token's logit.

    Attributes:
        pos: the generated token.
        token_logit: known + discovered + residual.
        steering_penalty: subtracted from it while steering (suppression); 0 where none.
    """

    pos: int
    token_logit: float
    steering_penalty: float


class Concepts(Part):
    """The exact decomposition (§6.1.2), per chunk and per token."""

    chunks: list[ConceptsOfChunk]
    tokens: list[ConceptsOfToken]


class Overlap(Part):
    """The longest run of tokens that answer and passage share word for word."""

    text: str
    num_tokens: int


class SourceHit(Part):
    """A training chunk near the answer; `similarity` is a cosine in the annotator's space."""

    row: int
    chunk_id: str
    document_id: str
    title: str
    source: str
    license: str
    similarity: float
    text: str
    overlap: Overlap


class SourcesOfChunk(Part):
    """Training chunks nearest to one generated chunk, most similar first."""

    chunk: int
    hits: list[SourceHit]


class Sources(Part):
    """Training data that resembles the answer (§6.1.3).

    Attributes:
        note: what similarity does not say.
        chunks: for each generated chunk; empty where no index was given.
    """

    note: str = SIMILARITY_NOTE
    chunks: list[SourcesOfChunk]


class Certificate(Part):
    """Whether the reported parts are what the stored weights give (design §5).

    Attributes:
        passed: every error is within `tolerance`.
        dtype: arithmetic of the generation pass.
        max_abs_error: largest error of any part, logits (activations for `weight`).
        tolerance: what rounding in `dtype` may cost.
        num_tokens: how many tokens were checked.
        deletion_max_abs_error: largest |measured + contribution| when one concept is deleted and all
            else is held.
        num_deletions: how many deletions were measured.
        parts: largest error of each reported part.
    """

    passed: bool
    dtype: str
    max_abs_error: float
    tolerance: float
    num_tokens: int
    deletion_max_abs_error: float
    num_deletions: int
    parts: dict[str, float]


class Document(Part):
    """Why an answer reads as it does: inputs, concepts, training passages, and the certificate."""

    format: Literal["vitrail.explanation/1"] = "vitrail.explanation/1"
    model_id: str
    prompt: str
    text: str
    steer: str
    sampling: dict[str, Any]
    prompt_tokens: list[PromptToken]
    tokens: list[GeneratedToken]
    chunks: list[ChunkSpan]
    inputs: Inputs
    concepts: Concepts
    sources: Sources
    certificate: Certificate

    def to_json(self, indent: int | None = None) -> str:
        """The document as JSON text.

        Args:
            indent: spaces per level; None for one line.

        Returns:
            the text; `model_validate_json` reads it back.
        """
        return self.model_dump_json(indent=indent)
