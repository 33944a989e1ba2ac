"""One request's answers from the queue to the client: the same steps for completions and chat, whole or streamed.

A `Form` says how an endpoint words its answers; everything else is the same.
"""

import json
import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from fastapi import Request, Response
from fastapi.sse import KEEPALIVE_COMMENT, EventSourceResponse, format_sse_event
from pydantic import BaseModel
from starlette.types import Receive, Scope, Send

from vitrail.serve.asking import Wanted, submit
from vitrail.serve.engine import Finished, Progress, Reason, Ticket
from vitrail.serve.errors import told
from vitrail.serve.gathering import Concluded, merged, while_connected
from vitrail.serve.openai_schemas import Extras, Sampled, Usage
from vitrail.serve.schemas import CommitPart
from vitrail.serve.service import Service
from vitrail.serve.tokens import Scored, ScoredTokens, commit_part


@dataclass(frozen=True)
class Head:
    """What every message about a request begins with."""

    id: str
    created: int
    model: str


@dataclass(frozen=True)
class Part:
    """An answer, or what it gained.

    Attributes:
        index: number of the answer.
        text: text of the part.
        reason: why the answer ended; None while it goes on.
        scored: its tokens with log-probabilities; None where nobody asked.
        extras: what OpenAI's format has no place for.
        is_first: whether it is the first of its answer.
    """

    index: int
    text: str
    reason: Reason | None
    scored: Sequence[Scored] | None
    extras: Extras
    is_first: bool = False


@runtime_checkable
class Form(Protocol):
    """How an endpoint words its answers."""

    def whole(self, head: Head, parts: Sequence[Part], usage: Usage) -> BaseModel:
        """The answer to a request that is not streamed."""

    def chunk(self, head: Head, parts: Sequence[Part], usage: Usage | None) -> BaseModel:
        """One event of a stream."""


class Writer:
    """Follows the answers of one request."""

    def __init__(self, service: Service, wanted: Wanted, form: Form) -> None:
        """Prepare.

        Args:
            service: the server.
            wanted: the answers.
            form: of the endpoint.
        """
        self._service, self._wanted, self._form = service, wanted, form
        self._head = Head(wanted.id, int(time.time()), service.name)
        self._num_new = 0
        self._followed = [
            _Followed(service, job.sampling.seed, len(job.prompt_ids), index, wanted)
            for index, job in enumerate(wanted.jobs)
        ]

    async def respond(self, request: Request, asked: Sampled) -> BaseModel | Response:
        """Write the answers: whole, or as a stream where that is asked for.

        Args:
            request: stops the work when its client leaves.
            asked: what it asks for.

        Returns:
            the answer, or the stream as a response.
        """
        tickets = await self._tickets(request)
        if not asked.stream:
            return await while_connected(request, self._whole(tickets))
        options = asked.stream_options
        return Stream(self._events(tickets, bool(options and options.include_usage)), tickets)

    async def _tickets(self, request: Request) -> list[Ticket]:
        tickets = await while_connected(request, submit(self._service, self._wanted.jobs))
        self._service.meters.count_prompts(self._wanted.prompt_tokens)
        return tickets

    async def _whole(self, tickets: Sequence[Ticket]) -> BaseModel:
        parts: dict[int, list[Part]] = {}
        async with aclosing(merged(tickets, self._conclude, self._service.settings.ping_s)) as events:
            async for event in events:
                if event is not None:
                    parts.setdefault(event[0], []).append(self._part(*event))
        return self._form.whole(self._head, [_joined(parts[index]) for index in sorted(parts)], self._usage())

    async def _events(self, tickets: Sequence[Ticket], with_usage: bool) -> AsyncGenerator[bytes, None]:
        try:
            async with aclosing(merged(tickets, self._conclude, self._service.settings.ping_s)) as events:
                async for event in events:
                    if event is None:
                        yield KEEPALIVE_COMMENT
                    elif (part := self._part(*event)).reason or self._says_something(part):
                        yield _event(self._form.chunk(self._head, [part], None))
            if with_usage:
                yield _event(self._form.chunk(self._head, [], self._usage()))
            yield format_sse_event(data_str="[DONE]")
        except Exception as error:  # the status is sent: what went wrong is an event
            yield format_sse_event(data_str=json.dumps(told(error, self._service.settings.retry_after_s).body))

    def _says_something(self, part: Part) -> bool:
        return bool(part.text or part.extras.commits or part.scored)

    def _part(self, index: int, event: Progress | Concluded) -> Part:
        followed = self._followed[index]
        if isinstance(event, Progress):
            return followed.progress(event)
        self._num_new += len(event.finished.trace.token_ids)
        self._service.meters.count_answer(event.finished.reason)
        return followed.end(event)

    async def _conclude(self, index: int, finished: Finished) -> Concluded:
        wanted = self._wanted
        self._service.answers.keep(wanted.id, index, finished.trace)
        if wanted.explain is None:
            return Concluded(finished, None)
        return Concluded(finished, await self._service.explain(finished.trace, wanted.explain))

    def _usage(self) -> Usage:
        num_prompt = self._wanted.prompt_tokens
        return Usage(prompt_tokens=num_prompt, completion_tokens=self._num_new, total_tokens=num_prompt + self._num_new)


class Stream(EventSourceResponse):
    """Server-sent events of answers; when the client leaves, their work stops."""

    def __init__(self, events: AsyncGenerator[bytes, None], tickets: Sequence[Ticket]) -> None:
        """Prepare.

        Args:
            events: encoded events.
            tickets: of the answers.
        """
        super().__init__(events, headers={"Cache-Control": "no-cache", "X-Accel-Buffering": "no"})
        self._events, self._tickets = events, tickets

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the events.

        Args:
            scope: of the request.
            receive: tells when the client leaves.
            send: takes the events.
        """
        try:
            await super().__call__(scope, receive, send)
        finally:
            for ticket in self._tickets:
                ticket.cancel()
            await self._events.aclose()


class _Followed:
    """One answer while it is being written."""

    def __init__(self, service: Service, seed: int, num_prompt: int, index: int, wanted: Wanted) -> None:
        self._tokenizer = service.model.tokenizer
        self._seed, self._num_prompt, self._index, self._wanted = seed, num_prompt, index, wanted
        self._scored = ScoredTokens(self._tokenizer, num_prompt)
        self._is_first = True

    def progress(self, event: Progress) -> Part:
        """What one step gained."""
        commits: list[CommitPart] | None = None
        if self._wanted.has_commits:
            commits = [commit_part(self._tokenizer, event.commit, self._num_prompt)]
        scored: list[Scored] | None = None
        if self._wanted.has_logprobs:
            self._scored.add(event.commit)
            scored = self._scored.read(len(event.tokens), event.text)
        return self._part(event.text, None, scored, Extras(commits=commits))

    def end(self, event: Concluded) -> Part:
        """The rest, and what is known of the whole."""
        trace = event.finished.trace
        scored = self._scored.read(0, event.finished.text) if self._wanted.has_logprobs else None
        extras = Extras(
            seed=self._seed, steer=trace.steer, token_ids=list(trace.token_ids), explanation=event.explanation
        )
        return self._part(event.finished.text, event.finished.reason, scored, extras)

    def _part(self, text: str, reason: Reason | None, scored: list[Scored] | None, extras: Extras) -> Part:
        if self._is_first or reason is not None:
            extras = extras.model_copy(update={"prompt_tokens": self._num_prompt})
        part = Part(self._index, text, reason, scored, extras, self._is_first)
        self._is_first = self._is_first and not (text or extras.commits or scored)
        return part


def _joined(parts: Sequence[Part]) -> Part:
    """All parts of one answer as one."""
    last = parts[-1]
    commits = [commit for part in parts for commit in part.extras.commits or ()]
    extras = last.extras.model_copy(update={"commits": commits} if commits else {})
    scored = None if last.scored is None else [token for part in parts for token in part.scored or ()]
    return Part(last.index, "".join(part.text for part in parts), last.reason, scored, extras, is_first=True)


def _event(message: BaseModel) -> bytes:
    return format_sse_event(data_str=message.model_dump_json())
