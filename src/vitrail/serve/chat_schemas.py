"""The request and answer of OpenAI's chat completions, with ours beside them."""

from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field, Tag

from vitrail.serve.engine import Reason
from vitrail.serve.openai_schemas import Extras, Sampled, Text, Usage
from vitrail.serve.schemas import A_LIST, A_TEXT, MAX_ITEMS, Answered, Asked, is_absent, one_of, only

Nothing = Annotated[list[Any] | None, Field(max_length=0), only([])]
Null = Annotated[None, only()]


class TextPart(Asked):
    """A piece of a message."""

    type: Literal["text"]
    """Only text is read."""
    text: Text
    """The text."""


class Message(Asked):
    """A message of the conversation."""

    role: Literal["system", "developer", "user", "assistant"]
    """Who wrote it."""
    content: Annotated[
        Annotated[Text, Tag(A_TEXT)]
        | Annotated[list[TextPart], Field(max_length=MAX_ITEMS, fail_fast=True), Tag(A_LIST)],
        one_of(A_TEXT, A_LIST),
    ]
    """Its text, or pieces that are joined."""
    name: Null = None
    """Not supported."""
    refusal: Null = None
    """Accepted where it is null, as answers have it."""
    tool_calls: Nothing = None
    """Not supported."""
    function_call: Null = None
    """Not supported."""
    audio: Null = None
    """Not supported."""
    annotations: Nothing = None
    """Not supported."""

    @property
    def text(self) -> str:
        """The message's text."""
        return self.content if isinstance(self.content, str) else "".join(part.text for part in self.content)


class TextFormat(Asked):
    """The only format of answers."""

    type: Literal["text"]
    """Only `text`."""


class ChatRequest(Sampled):
    """A request for the next message of a conversation."""

    model_config = ConfigDict(
        json_schema_extra={"examples": [{"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 32}]}
    )

    messages: Annotated[list[Message], Field(min_length=1, max_length=MAX_ITEMS, fail_fast=True)]
    """The conversation, written by the model's chat template; control tokens typed in it are text. Without a
    template the texts stand below one another, a blank line between."""
    max_tokens: Annotated[int, Field(ge=1, le=2**31)] | None = None
    """Older name of `max_completion_tokens`."""
    max_completion_tokens: Annotated[int, Field(ge=1, le=2**31)] | None = None
    """Length of the answer; 64, or what the context still holds, where it is left out."""
    logprobs: bool | None = False
    """Report log-probabilities."""
    top_logprobs: Annotated[int, Field(ge=0, le=5)] | None = None
    """And of so many alternatives; needs `logprobs`."""
    tools: Nothing = None
    """Not supported."""
    tool_choice: Annotated[Literal["none", "auto"] | None, only("none", "auto")] = None
    """Not supported: there are no tools to choose."""
    parallel_tool_calls: bool | None = None
    """Accepted: there are no tools."""
    functions: Nothing = None
    """Not supported."""
    function_call: Annotated[Literal["none", "auto"] | None, only("none", "auto")] = None
    """Not supported."""
    response_format: Annotated[TextFormat | None, only({"type": "text"})] = None
    """Only text."""
    modalities: Annotated[list[Literal["text"]] | None, only(["text"])] = None
    """Only text."""
    audio: Null = None
    """Not supported."""
    prediction: Null = None
    """Not supported."""
    reasoning_effort: Annotated[Literal["none"] | None, only("none")] = None
    """Not supported."""
    verbosity: Annotated[Literal["medium"] | None, only("medium")] = None
    """Not supported."""
    web_search_options: Null = None
    """Not supported."""
    service_tier: Annotated[Literal["auto", "default"] | None, only("auto", "default")] = None
    """There is one tier."""
    safety_identifier: Annotated[str, Field(max_length=512)] | None = None
    """Accepted, not used."""
    prompt_cache_key: Annotated[str, Field(max_length=512)] | None = None
    """Accepted, not used."""


class TokenLogprob(Answered):
    """A token and its log-probability at temperature 1, in nats."""

    token: str
    """Its text."""
    logprob: float
    """Its log-probability."""
    bytes: list[int]
    """Its bytes, for tokens that are a part of a character."""


class ChatTokenLogprob(TokenLogprob):
    """A token of the answer, with what else was likely in its place."""

    top_logprobs: list[TokenLogprob]
    """The most likely tokens of the same place."""


class ChatLogprobs(Answered):
    """Log-probabilities of an answer."""

    content: list[ChatTokenLogprob]
    """One entry for each token."""
    refusal: None = None
    """Always null."""


class ChatMessage(Answered):
    """The answer."""

    role: Literal["assistant"] = "assistant"
    """Always `assistant`."""
    content: str
    """Its text."""
    refusal: None = None
    """Always null."""


class ChatChoice(Answered):
    """One answer."""

    index: int
    """Its number."""
    message: ChatMessage
    """The answer."""
    finish_reason: Reason
    """stop: by itself or at a stop string; length: at `max_tokens`."""
    logprobs: ChatLogprobs | None
    """Log-probabilities, where they were asked for."""
    vitrail: Extras
    """Seed, steering, ids, and what else was asked for."""


class ChatAnswer(Answered):
    """The answer to a chat request."""

    id: str
    """Name of the answer, to ask for its explanation."""
    object: Literal["chat.completion"] = "chat.completion"
    """Always `chat.completion`."""
    created: int
    """When it was asked for, in seconds since 1970."""
    model: str
    """Name of the model."""
    choices: list[ChatChoice]
    """The answers."""
    usage: Usage
    """Tokens used."""


class ChatDelta(Answered):
    """What an answer gained."""

    role: Literal["assistant"] | None = Field(default=None, exclude_if=is_absent)
    """In the first event of a choice."""
    content: str | None = Field(default=None, exclude_if=is_absent)
    """Text."""


class ChatChunkChoice(Answered):
    """A part of an answer."""

    index: int
    """Its number."""
    delta: ChatDelta
    """What it gained."""
    finish_reason: Reason | None
    """null while it is being written."""
    logprobs: ChatLogprobs | None
    """Of the tokens that it gained, where they were asked for."""
    vitrail: Extras
    """Commits while it is written; seed, steering and ids at its end."""


class ChatChunk(Answered):
    """One event of a stream of a chat answer."""

    id: str
    """Name of the answer."""
    object: Literal["chat.completion.chunk"] = "chat.completion.chunk"
    """Always `chat.completion.chunk`."""
    created: int
    """When it was asked for, in seconds since 1970."""
    model: str
    """Name of the model."""
    choices: list[ChatChunkChoice]
    """Parts of answers; none in the event with the usage."""
    usage: Usage | None = Field(default=None, exclude_if=is_absent)
    """Tokens used; only in the last event, if asked for."""
