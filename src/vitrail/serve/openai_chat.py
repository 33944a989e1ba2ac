"""POST /v1/chat/completions: the next message of a conversation, in OpenAI's format.

The model's chat template writes the prompt. A model without one has no roles: the texts of the messages stand below
one another with a blank line between, and the answer continues them.
"""

from collections.abc import Sequence

from fastapi import APIRouter, Request, Response
from pydantic import BaseModel

from vitrail.serve.answering import Head, Part, Writer
from vitrail.serve.asking import Wanted, at_most, wanted
from vitrail.serve.body import JsonRoute
from vitrail.serve.chat_schemas import (
    ChatAnswer,
    ChatChoice,
    ChatChunk,
    ChatChunkChoice,
    ChatDelta,
    ChatLogprobs,
    ChatMessage,
    ChatRequest,
    ChatTokenLogprob,
    TokenLogprob,
)
from vitrail.serve.documented import event_stream, faults
from vitrail.serve.errors import refused
from vitrail.serve.openai_schemas import Usage
from vitrail.serve.service import Here, Service
from vitrail.serve.templates import conversation_ids
from vitrail.serve.tokens import Scored
from vitrail.text import Tokenizer

router = APIRouter(route_class=JsonRoute, tags=["OpenAI"])


@router.post(
    "/v1/chat/completions",
    response_model=ChatAnswer,
    responses={200: event_stream(ChatChunk), **faults(400, 404, 413, 429, 503)},
    summary="Continue a conversation",
)
async def chat(asked: ChatRequest, service: Here, request: Request) -> BaseModel | Response:
    """Write the next message; whole, or as a stream (`stream: true`)."""
    writer = Writer(service, chat_wanted(service, asked), ChatForm(service.model.tokenizer))
    return await writer.respond(request, asked)


def chat_wanted(service: Service, asked: ChatRequest) -> Wanted:
    """The answers that a chat request asks for.

    Args:
        service: the server.
        asked: the request.

    Returns:
        the answers.

    Raises:
        ApiError: a value that the server does not allow.
    """
    at_most(len(asked.messages), service.settings.max_messages, "messages", "messages")
    lengths = {asked.max_tokens, asked.max_completion_tokens} - {None}
    if len(lengths) > 1:
        raise refused("max_tokens and max_completion_tokens differ; send one of them", "max_tokens")
    if asked.top_logprobs is not None and not asked.logprobs:
        raise refused("top_logprobs: only with logprobs: true", "top_logprobs")
    prompt = conversation_ids(service, asked.messages)
    return wanted(
        service,
        asked,
        [prompt],
        prefix="chatcmpl",
        max_tokens=next(iter(lengths), None),
        alternatives=(asked.top_logprobs or 0) if asked.logprobs else None,
    )


class ChatForm:
    """How chat answers are worded."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        """Remember what names tokens.

        Args:
            tokenizer: of the model.
        """
        self._tokenizer = tokenizer

    def whole(self, head: Head, parts: Sequence[Part], usage: Usage) -> ChatAnswer:
        """The answer to a request that is not streamed.

        Args:
            head: its beginning.
            parts: all answers.
            usage: tokens used.

        Returns:
            the answer.
        """
        choices = [
            ChatChoice(
                index=part.index,
                message=ChatMessage(content=part.text),
                finish_reason=part.reason or "length",
                logprobs=self._logprobs(part),
                vitrail=part.extras,
            )
            for part in parts
        ]
        return ChatAnswer(id=head.id, created=head.created, model=head.model, choices=choices, usage=usage)

    def chunk(self, head: Head, parts: Sequence[Part], usage: Usage | None) -> ChatChunk:
        """One event of a stream.

        Args:
            head: its beginning.
            parts: what answers gained.
            usage: tokens used, at the end.

        Returns:
            the event.
        """
        choices = [
            ChatChunkChoice(
                index=part.index,
                delta=_delta(part),
                finish_reason=part.reason,
                logprobs=self._logprobs(part),
                vitrail=part.extras,
            )
            for part in parts
        ]
        return ChatChunk(id=head.id, created=head.created, model=head.model, choices=choices, usage=usage)

    def _logprobs(self, part: Part) -> ChatLogprobs | None:
        if part.scored is None:
            return None
        return ChatLogprobs(content=[self._scored(token) for token in part.scored])

    def _scored(self, scored: Scored) -> ChatTokenLogprob:
        alternatives = [self._token(*alternative) for alternative in scored.alternatives]
        token = self._token(scored.id, scored.logprob)
        return ChatTokenLogprob(token=token.token, logprob=token.logprob, bytes=token.bytes, top_logprobs=alternatives)

    def _token(self, token: int, logprob: float) -> TokenLogprob:
        name = self._tokenizer.token_name(token)
        return TokenLogprob(token=name.decode("utf-8", "replace"), logprob=logprob, bytes=list(name))


def _delta(part: Part) -> ChatDelta:
    if part.is_first:
        return ChatDelta(role="assistant", content=part.text)
    return ChatDelta(content=part.text) if part.text or part.reason is None else ChatDelta()
