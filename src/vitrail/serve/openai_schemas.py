"""The request and answer of OpenAI's completions, with ours beside them (`steer`, `commits`, `explain` …)."""

from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field, Tag

from vitrail.explain import Document
from vitrail.serve.engine import Reason
from vitrail.serve.schemas import (
    A_LIST,
    A_SWITCH,
    A_TEXT,
    AN_OBJECT,
    MAX_IDS,
    MAX_ITEMS,
    Answered,
    Asked,
    CommitPart,
    ExplainOptions,
    SteerRequest,
    is_absent,
    kind_of,
    one_of,
    only,
)
from vitrail.settings import MAX_SEED

IDS, LISTS_OF_IDS, TEXTS = "token ids", "lists of token ids", "a list of texts"

Text = Annotated[str, Field(max_length=2**20)]
TokenIds = Annotated[
    list[Annotated[int, Field(ge=0, le=2**31)]], Field(min_length=1, max_length=MAX_IDS, fail_fast=True)
]


def kind_of_prompt(value: Any) -> str | None:
    """The branch of `prompt` that a value means, by the first entry of a list.

    Args:
        value: plain value.

    Returns:
        the name of the branch.
    """
    if not isinstance(value, list):
        return kind_of(value)
    first = value[0] if value else ""
    return {str: TEXTS, int: IDS, list: LISTS_OF_IDS}.get(type(first))


Prompt = Annotated[
    Annotated[Text, Tag(A_TEXT)]
    | Annotated[list[Text], Field(min_length=1, max_length=MAX_ITEMS, fail_fast=True), Tag(TEXTS)]
    | Annotated[TokenIds, Tag(IDS)]
    | Annotated[list[TokenIds], Field(min_length=1, max_length=MAX_ITEMS, fail_fast=True), Tag(LISTS_OF_IDS)],
    one_of(A_TEXT, TEXTS, IDS, LISTS_OF_IDS, of=kind_of_prompt),
]

Stop = Annotated[
    Annotated[Text, Tag(A_TEXT)] | Annotated[list[Text], Field(max_length=MAX_ITEMS, fail_fast=True), Tag(A_LIST)],
    one_of(A_TEXT, A_LIST),
]

Explain = Annotated[
    Annotated[bool, Tag(A_SWITCH)] | Annotated[ExplainOptions, Tag(AN_OBJECT)],
    one_of(A_SWITCH, AN_OBJECT),
]


class StreamOptions(Asked):
    """Options of a stream."""

    include_usage: bool | None = None
    """Send the usage in a last chunk without choices."""
    include_obfuscation: Annotated[Literal[False] | None, only(False)] = None
    """Not supported: only false."""


class Ignored(Asked):
    """Fields that are accepted and change nothing, and fields that are refused unless they change nothing."""

    user: Annotated[str, Field(max_length=512)] | None = None
    """Accepted, not used."""
    metadata: Annotated[dict[str, str], Field(max_length=16)] | None = None
    """Accepted, not used."""
    store: Annotated[Literal[False] | None, only(False)] = None
    """Nothing is stored beyond the last answers in memory: only false."""
    logit_bias: Annotated[dict[str, float] | None, Field(max_length=0), only({})] = None
    """Not supported; see `steer`."""
    presence_penalty: Annotated[float | None, Field(ge=0, le=0), only(0, 0.0)] = None
    """Not supported: only 0; see `repetition_penalty`."""
    frequency_penalty: Annotated[float | None, Field(ge=0, le=0), only(0, 0.0)] = None
    """Not supported: only 0; see `repetition_penalty`."""


class Sampled(Ignored):
    """What every request for an answer may say about it."""

    model: Annotated[str, Field(max_length=256)] | None = None
    """Name of the model; the one of this server where it is left out."""
    temperature: Annotated[float, Field(ge=0, le=2)] | None = 1.0
    """0 takes the most likely token."""
    top_p: Annotated[float, Field(gt=0, le=1)] | None = 1.0
    """Nucleus: the smallest probability mass that a draw is cut to."""
    n: Annotated[int, Field(ge=1, le=1024)] | None = 1
    """Answers to each prompt."""
    stop: Stop | None = None
    """Texts that end the answer; they are not part of it."""
    seed: Annotated[int, Field(ge=0, le=MAX_SEED)] | None = None
    """Of the sampling: the same seed gives the same text. Drawn and reported where it is left out; the
    answers of `n` take consecutive ones."""
    stream: bool | None = False
    """Send the answer while it is written, as server-sent events."""
    stream_options: StreamOptions | None = None
    """Options of the stream."""
    steer: SteerRequest | None = None
    """Concepts to turn up, down or off: `"NAME=+1.0; OTHER=off"`, or a list."""
    top_k: Annotated[int, Field(ge=1, le=2**31)] | None = None
    """Draw among so many of the most likely tokens."""
    tokens_per_step: Annotated[int, Field(ge=1, le=1024)] = 1
    """Tokens that each denoising step commits."""
    steps_per_block: Annotated[int, Field(ge=1, le=2**31)] | None = None
    """Denoising steps a block, its tokens spread evenly over them."""
    threshold: Annotated[float, Field(gt=0, le=1)] | None = None
    """Commit every token at least this probable, and the surest always."""
    factor: Annotated[float, Field(gt=0, le=1e6)] | None = None
    """Commit the n surest tokens, for the largest n with n + 1 times the n-th doubt below it."""
    order: Literal["confidence", "left_to_right"] = "confidence"
    """Fill in the surest positions first, or the leftmost."""
    guidance: Annotated[float, Field(ge=0, le=100)] = 0.0
    """How far to lean on the prompt: w of classifier-free guidance."""
    repetition_penalty: Annotated[float, Field(ge=0.01, le=100)] = 1.0
    """Above 1, tokens already there become less likely."""
    commits: bool = False
    """Report the order of denoising."""
    explain: Explain = False
    """Explain the answer: true, or options."""


class CompletionRequest(Sampled):
    """A request for the continuation of a prompt."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {"prompt": "The economy of France", "max_tokens": 32, "temperature": 0.7, "seed": 1},
                {"prompt": "The economy of France", "steer": "exports=+1.0", "stream": True, "commits": True},
            ]
        }
    )

    prompt: Prompt
    """What to continue: a text, several, token ids, or several lists of them. Control tokens typed in a text
    are text."""
    max_tokens: Annotated[int, Field(ge=1, le=2**31)] | None = None
    """Length of the answer; 64, or what the context still holds, where it is left out."""
    logprobs: Annotated[int, Field(ge=0, le=5)] | None = None
    """Report log-probabilities, and of so many alternatives."""
    echo: Annotated[Literal[False] | None, only(False)] = None
    """Not supported: only false."""
    best_of: Annotated[int | None, Field(ge=1, le=1), only(1)] = None
    """Not supported: only 1."""
    suffix: Annotated[None, only()] = None
    """Not supported."""


class CompletionLogprobs(Answered):
    """Log-probabilities at temperature 1, in nats, one entry for each token."""

    tokens: list[str]
    """Texts of the tokens."""
    token_logprobs: list[float]
    """Their log-probabilities."""
    top_logprobs: list[dict[str, float]]
    """The most likely tokens of the same place."""
    text_offset: list[int]
    """Where each token begins, in characters of the answer."""


class Extras(Answered):
    """What OpenAI's format has no place for."""

    seed: int | None = Field(default=None, exclude_if=is_absent)
    """Of the sampling."""
    prompt_tokens: int | None = Field(default=None, exclude_if=is_absent)
    """Length of the prompt as the model reads it; in a stream, said at its first event."""
    steer: str | None = Field(default=None, exclude_if=is_absent)
    """The steering in force, as text; empty for none."""
    token_ids: list[int] | None = Field(default=None, exclude_if=is_absent)
    """The answer as ids, control tokens included."""
    commits: list[CommitPart] | None = Field(default=None, exclude_if=is_absent)
    """The order of denoising, where it was asked for."""
    explanation: Document | None = Field(default=None, exclude_if=is_absent)
    """Why the answer reads as it does, where it was asked for."""


class CompletionChoice(Answered):
    """One answer, or a part of it."""

    index: int
    """Its number: prompts in order, the answers of each beside one another."""
    text: str
    """The answer; in a stream, what it gained."""
    finish_reason: Reason | None
    """stop: by itself or at a stop string; length: at `max_tokens`; null while it is being written."""
    logprobs: CompletionLogprobs | None
    """Log-probabilities, where they were asked for."""
    vitrail: Extras
    """Seed, steering, ids, and what else was asked for."""


class Usage(Answered):
    """Tokens of a request."""

    prompt_tokens: int
    """Of all prompts, start marks included."""
    completion_tokens: int
    """Of all answers."""
    total_tokens: int
    """Their sum."""


class CompletionAnswer(Answered):
    """The answer to a request, or one event of its stream."""

    id: str
    """Name of the answer, to ask for its explanation."""
    object: Literal["text_completion"] = "text_completion"
    """Always `text_completion`."""
    created: int
    """When it was asked for, in seconds since 1970."""
    model: str
    """Name of the model."""
    choices: list[CompletionChoice]
    """The answers."""
    usage: Usage | None = Field(default=None, exclude_if=is_absent)
    """Tokens used; in a stream only in its last event, if asked for."""
