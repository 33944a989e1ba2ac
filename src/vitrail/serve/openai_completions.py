"""POST /v1/completions: continue prompts, in OpenAI's format."""

from collections.abc import Sequence

from fastapi import APIRouter, Request, Response
from pydantic import BaseModel

from vitrail.serve.answering import Head, Part, Writer
from vitrail.serve.asking import Wanted, read_prompts, wanted
from vitrail.serve.body import JsonRoute
from vitrail.serve.documented import event_stream, faults
from vitrail.serve.openai_schemas import (
    CompletionAnswer,
    CompletionChoice,
    CompletionLogprobs,
    CompletionRequest,
    Usage,
)
from vitrail.serve.service import Here, Service
from vitrail.serve.tokens import Scored, token_texts
from vitrail.text import Tokenizer

router = APIRouter(route_class=JsonRoute, tags=["OpenAI"])


@router.post(
    "/v1/completions",
    response_model=CompletionAnswer,
    responses={200: event_stream(CompletionAnswer), **faults(400, 404, 413, 429, 503)},
    summary="Continue a prompt",
)
async def complete(asked: CompletionRequest, service: Here, request: Request) -> BaseModel | Response:
    """Continue one prompt or several; whole, or as a stream (`stream: true`)."""
    writer = Writer(service, completion_wanted(service, asked), CompletionForm(service.model.tokenizer))
    return await writer.respond(request, asked)


def completion_wanted(service: Service, asked: CompletionRequest) -> Wanted:
    """The answers that a completion request asks for.

    Args:
        service: the server.
        asked: the request.

    Returns:
        the answers.
    """
    prompts = read_prompts(service, asked.prompt)
    return wanted(service, asked, prompts, prefix="cmpl", max_tokens=asked.max_tokens, alternatives=asked.logprobs)


class CompletionForm:
    """How completions are worded."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        """Remember what names tokens.

        Args:
            tokenizer: of the model.
        """
        self._tokenizer = tokenizer

    def whole(self, head: Head, parts: Sequence[Part], usage: Usage) -> CompletionAnswer:
        """The answer to a request that is not streamed.

        Args:
            head: its beginning.
            parts: all answers.
            usage: tokens used.

        Returns:
            the answer.
        """
        return self.chunk(head, parts, usage)

    def chunk(self, head: Head, parts: Sequence[Part], usage: Usage | None) -> CompletionAnswer:
        """One event of a stream.

        Args:
            head: its beginning.
            parts: what answers gained.
            usage: tokens used, at the end.

        Returns:
            the event.
        """
        choices = [self._choice(part) for part in parts]
        return CompletionAnswer(id=head.id, created=head.created, model=head.model, choices=choices, usage=usage)

    def _choice(self, part: Part) -> CompletionChoice:
        logprobs = None if part.scored is None else self._logprobs(part.scored)
        return CompletionChoice(
            index=part.index, text=part.text, finish_reason=part.reason, logprobs=logprobs, vitrail=part.extras
        )

    def _logprobs(self, scored: Sequence[Scored]) -> CompletionLogprobs:
        text = self._tokenizer.token_text
        return CompletionLogprobs(
            tokens=token_texts(self._tokenizer, [token.id for token in scored]),
            token_logprobs=[token.logprob for token in scored],
            # Two tokens can look the same (parts of characters): the likelier one stays.
            top_logprobs=[{text(id_): logprob for id_, logprob in reversed(token.alternatives)} for token in scored],
            text_offset=[token.offset for token in scored],
        )
