"""The engine: one thread that writes all answers, batched at block boundaries, and tells of each step.

Requests come from an event loop and wait; between two blocks the thread lets in as many as there is room for.
What a step commits goes back to the loop as `Progress`, the end as `Finished`. Computing that is not
generation runs beside it in lanes, one piece at a time in each: explanations in one, in another the
measuring of concepts that are steered for the first time, so that neither waits for the other.
"""

import asyncio
import logging
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from typing import Any, Literal, TypeVar

import torch

from vitrail.api import LoadedModel
from vitrail.generate import Batch, Beginning, Commit, Request, Sampling, Trace, batch_for, stop_ids
from vitrail.steer import Steer, SteerPlan

R = TypeVar("R")
Reason = Literal["stop", "length"]
_log = logging.getLogger(__name__)


class Overloaded(Exception):
    """Too many requests wait; try again later."""


class Stopping(Exception):
    """The server is shutting down."""


@dataclass(frozen=True)
class Job:
    """One answer to write.

    Attributes:
        prompt_ids: the prompt.
        sampling: how tokens are chosen.
        steers: concepts to turn up or down.
        stop: strings that end the text; they are not part of it.
    """

    prompt_ids: tuple[int, ...]
    sampling: Sampling
    steers: tuple[Steer, ...] = ()
    stop: tuple[str, ...] = ()


@dataclass(frozen=True)
class Progress:
    """One denoising step of an answer.

    Attributes:
        text: what the finished beginning of the answer gained; may be empty.
        tokens: ids that the finished beginning gained.
        commit: what was filled in, at absolute positions.
    """

    text: str
    tokens: tuple[int, ...]
    commit: Commit


@dataclass(frozen=True)
class Finished:
    """The end of an answer.

    Attributes:
        text: the rest of its text.
        trace: the whole answer.
        reason: `stop` where a stop string or the end of the text ended it, `length` otherwise.
    """

    text: str
    trace: Trace
    reason: Reason


@dataclass(eq=False)
class Ticket:
    """An answer in the making: iterate over it for `Progress` and, at last, `Finished`."""

    request: Request
    _beginning: Beginning
    _loop: asyncio.AbstractEventLoop
    is_cancelled: bool = False
    """Whether nobody waits for this answer."""
    _events: "asyncio.Queue[Progress | Finished | Exception]" = field(default_factory=asyncio.Queue)
    _is_over: bool = False

    def __aiter__(self) -> "Ticket":
        """The ticket itself."""
        return self

    async def __anext__(self) -> Progress | Finished:
        """The next event.

        Returns:
            progress, or the end.

        Raises:
            StopAsyncIteration: the end was given before.
            Stopping: the server shuts down.
        """
        if self._is_over:
            raise StopAsyncIteration
        event = await self._events.get()
        self._is_over = not isinstance(event, Progress)
        if isinstance(event, Exception):
            raise event
        return event

    def cancel(self) -> None:
        """Stop the work at the next step; no further event is needed."""
        # Only a mark: the request itself belongs to the engine's thread, which reads it between two steps.
        self.is_cancelled = True

    def tell(self, event: Progress | Finished | Exception) -> None:
        """Hand an event to the reader's event loop, from the engine's thread.

        Args:
            event: what happened.
        """
        try:
            self._loop.call_soon_threadsafe(self._events.put_nowait, event)
        except RuntimeError:  # the loop is closed: its reader is gone
            self.cancel()

    def take(self, commit: Commit) -> None:
        """Pass a commit on, and end the answer where it completes a stop string or nobody waits for it.

        Args:
            commit: of this answer.
        """
        if self.is_cancelled:
            self.request.cut(0)
            return
        gain = self._beginning.add(commit.positions, commit.tokens)
        if self._beginning.is_stopped:
            self.request.cut(self._beginning.end)
        self.tell(Progress(gain.text, gain.tokens, commit))

    def finish(self, model_id: str) -> None:
        """Give the end, or why there is none.

        Args:
            model_id: of the model that wrote it.
        """
        if self.request.failure is not None:
            self.tell(self.request.failure)
            return
        rest = self._beginning.close()
        reason: Reason = "stop" if self._beginning.is_stopped else "length"
        self.tell(Finished(rest, self.request.trace(model_id), reason))


class _Lane:
    """A thread beside generation that computes one piece at a time."""

    def __init__(self, name: str, max_waiting: int) -> None:
        self._pool, self._max_waiting = ThreadPoolExecutor(1, name), max_waiting
        self._pending: set[asyncio.Future[Any]] = set()
        self._is_closing = False

    async def run(self, work: Callable[[], R]) -> R:
        """Wait for a piece; one that nobody waits for any more is not begun."""
        if len(self._pending) >= self._max_waiting:
            raise Overloaded
        try:
            pending = asyncio.wrap_future(self._pool.submit(work))
        except RuntimeError:  # the pool takes nothing more
            raise Stopping from None
        self._pending.add(pending)
        if self._is_closing:  # `close` may have looked just before
            pending.cancel()
        try:
            return await pending
        except asyncio.CancelledError:
            if self._is_closing:
                raise Stopping from None
            raise
        finally:
            self._pending.discard(pending)

    def close(self) -> None:
        """Whoever waits gets `Stopping` at once; what is being computed is of no use to anyone."""
        self._is_closing = True
        self._pool.shutdown(wait=False, cancel_futures=True)
        for pending in list(self._pending):
            with suppress(RuntimeError):  # its loop is closed
                pending.get_loop().call_soon_threadsafe(pending.cancel)


class Engine:
    """Writes the answers of one model."""

    def __init__(self, model: LoadedModel, *, max_batch: int = 16, max_waiting: int = 256) -> None:
        """Prepare; `start` begins.

        Args:
            model: any.
            max_batch: answers written at once.
            max_waiting: requests that may wait, for each of answers and other computing.

        Raises:
            ArtifactError: a model without a manifest.
        """
        self.tokens_written = 0
        self._model, self._max_batch, self._max_waiting = model, max_batch, max_waiting
        self._model_id = model.model_id
        self._waiting: list[Ticket] = []
        self._active: dict[int, Ticket] = {}
        self._numbers = count()
        self._is_closing = False
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._work, name="vitrail-engine", daemon=True)
        self._explaining = _Lane("vitrail-explain", max_waiting)
        self._planning = _Lane("vitrail-plan", max_waiting)

    @property
    def num_active(self) -> int:
        """Answers being written."""
        return len(self._active)

    @property
    def num_waiting(self) -> int:
        """Requests that wait for room in the batch."""
        return len(self._waiting)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def close(self) -> None:
        """Stop at the next step; what is not finished fails with `Stopping`."""
        with self._changed:
            self._is_closing = True
            for ticket in [*self._waiting, *self._active.values()]:
                ticket.cancel()
                ticket.tell(Stopping())
            self._waiting.clear()
            self._changed.notify()
        self._explaining.close()
        self._planning.close()
        if self._thread.is_alive():
            self._thread.join()

    async def submit(self, job: Job) -> Ticket:
        """Put an answer in the queue.

        Args:
            job: what to write.

        Returns:
            its ticket; leave it by `cancel`.

        Raises:
            Overloaded: the queue is full.
            Stopping: the server shuts down.
            VitrailError: a prompt that does not fit, an unknown concept.
        """
        plan, config = await self._plan(job.steers), self._model.network.config
        request = self._model.request(next(self._numbers), job.prompt_ids, job.sampling, plan)
        end_ids = stop_ids(config, job.sampling)
        beginning = Beginning(self._model.tokenizer, len(job.prompt_ids), job.stop, end_ids)
        ticket = Ticket(request, beginning, asyncio.get_running_loop())
        with self._changed:
            self._waiting = [other for other in self._waiting if not other.is_cancelled]
            if self._is_closing:
                raise Stopping
            if len(self._waiting) >= self._max_waiting:
                raise Overloaded
            self._waiting.append(ticket)
            self._changed.notify()
        return ticket

    async def run(self, work: Callable[[], R]) -> R:
        """Compute something beside generation, such as an explanation.

        Args:
            work: what to compute.

        Returns:
            its result.

        Raises:
            Overloaded: too much waits already.
            Stopping: the server shuts down.
        """
        return await self._explaining.run(work)

    async def _plan(self, steers: tuple[Steer, ...]) -> SteerPlan | None:
        if not steers:
            return None
        # One by one: a concept that was never asked for is measured now, and who leaves meanwhile ends it there.
        for steer in steers:
            await self._planning.run(partial(self._model.plan, [steer]))
        return await self._planning.run(partial(self._model.plan, steers))

    def _work(self) -> None:
        batch = batch_for(self._model.network, self._max_batch)
        with torch.inference_mode():
            while (joining := self._next(batch)) is not None:
                try:
                    batch.join(joining)
                    self._finish(batch.advance(self._on_commit))
                except Exception as error:  # whatever it was, the next requests must not suffer from it
                    _log.exception("generation failed")
                    self._fail(error)
                    batch = batch_for(self._model.network, self._max_batch)

    def _next(self, batch: Batch) -> list[Request] | None:
        """Requests that may join now; None when the engine closes. Waits while there is nothing to do."""
        with self._changed:
            self._changed.wait_for(lambda: self._is_closing or self._waiting or batch.requests)
            if self._is_closing:
                return None
            joining = [ticket for ticket in self._waiting if not ticket.is_cancelled][: batch.room]
            self._waiting = [ticket for ticket in self._waiting if ticket not in joining and not ticket.is_cancelled]
            self._active |= {ticket.request.number: ticket for ticket in joining}
        return [ticket.request for ticket in joining]

    def _on_commit(self, commit: Commit) -> None:
        self.tokens_written += len(commit.tokens)
        self._active[commit.request].take(commit)

    def _finish(self, requests: list[Request]) -> None:
        for request in requests:
            ticket = self._active[request.number]
            if not ticket.is_cancelled:
                ticket.finish(self._model_id)
            with self._changed:
                del self._active[request.number]

    def _fail(self, error: Exception) -> None:
        with self._changed:
            failed, self._active = self._active, {}
        for ticket in failed.values():
            ticket.tell(error)
