"""Several answers of one request, read together as their steps happen; work stops when the reader leaves."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from fastapi import Request

from vitrail.explain import Document
from vitrail.serve.engine import Finished, Progress, Ticket
from vitrail.serve.errors import ApiError

_LOOK_S = 0.2

R = TypeVar("R")


@dataclass(frozen=True)
class Concluded:
    """An answer that is whole.

    Attributes:
        finished: its end.
        explanation: why it reads as it does, where that was asked for.
    """

    finished: Finished
    explanation: Document | None


Conclude = Callable[[int, Finished], Awaitable[Concluded]]
Event = tuple[int, Progress | Concluded]


async def merged(tickets: Sequence[Ticket], conclude: Conclude, ping_s: float) -> AsyncGenerator[Event | None, None]:
    """Events of several answers in the order in which they happen; leaving it cancels all of them.

    Args:
        tickets: the answers, by number.
        conclude: called with each end; what it gives stands in the end's place.
        ping_s: seconds between two signs of life.

    Yields:
        number and event of an answer; None as a sign of life.

    Raises:
        Exception: what made an answer fail.
    """
    queue: asyncio.Queue[Event | Exception | None] = asyncio.Queue()

    async def pump(number: int, ticket: Ticket) -> None:
        try:
            async for event in ticket:
                queue.put_nowait((number, event if isinstance(event, Progress) else await conclude(number, event)))
        except Exception as error:  # told to the reader below
            queue.put_nowait(error)

    async def tick() -> None:
        while True:
            await asyncio.sleep(ping_s)
            queue.put_nowait(None)

    tasks = [asyncio.create_task(pump(number, ticket)) for number, ticket in enumerate(tickets)]
    tasks.append(asyncio.create_task(tick()))
    try:
        open_answers = len(tickets)
        while open_answers:
            event = await queue.get()
            if isinstance(event, Exception):
                raise event
            yield event
            open_answers -= event is not None and isinstance(event[1], Concluded)
    finally:
        for ticket in tickets:
            ticket.cancel()
        for task in tasks:
            task.cancel()


async def while_connected(request: Request, work: Coroutine[Any, Any, R]) -> R:
    """Wait for work, and stop it when the client is gone.

    Args:
        request: of the client.
        work: what to wait for.

    Returns:
        its result.

    Raises:
        ApiError: the client left; nobody reads it.
    """
    task = asyncio.create_task(work)
    try:
        while not (await asyncio.wait({task}, timeout=_LOOK_S))[0]:
            if await request.is_disconnected() and not task.done():
                raise ApiError(499, "the client left")
        return task.result()
    finally:
        task.cancel()
