"""The engine: one thread that writes all answers, batched at block boundaries, and tells of each step.

Requests come from an event loop and wait; between two blocks the thread lets in as many as there is room for.
What a step commits goes back to the loop as `Progress`, the end as `Finished`. Computing that is not
generation (explanations) runs in a second thread, one piece at a time.
"""

import asyncio
import logging
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import count
from typing import Literal, TypeVar

import torch

from vitrail.api import LoadedModel
from vitrail.generate import Batch, Commit, Request, Sampling, Trace, require_cdlm, stop_ids
from vitrail.serve.writing import Beginning
from vitrail.steer import Steer, SteerPlan

R = TypeVar("R")
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
    reason: Literal["stop", "length"]


@dataclass(eq=False)
class Ticket:
    """An answer in the making: iterate over it for `Progress` and, at last, `Finished`."""

    request: Request
    _beginning: Beginning
    _loop: asyncio.AbstractEventLoop
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
        self.request.cut(0)

    @property
    def is_cancelled(self) -> bool:
        """Whether nobody waits for this answer."""
        return self.request.stop == 0

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
        """Pass a commit on, and end the answer where it completes a stop string.

        Args:
            commit: of this answer.
        """
        gain = self._beginning.add(commit.positions, commit.tokens)
        if self._beginning.is_stopped:
            self.request.cut(self._beginning.end)
        self.tell(Progress(gain.text, gain.tokens, commit))

    def finish(self, model_id: str, stop_ids: frozenset[int]) -> None:
        """Give the end.

        Args:
            model_id: of the model that wrote it.
            stop_ids: ids that end a text by themselves.
        """
        trace = self.request.trace(model_id)
        rest = self._beginning.close()
        is_ended = self._beginning.is_stopped or trace.token_ids[-1] in stop_ids
        self.tell(Finished(rest, trace, "stop" if is_ended else "length"))


class Engine:
    """Writes the answers of one model."""

    def __init__(self, model: LoadedModel, *, max_batch: int = 16, max_waiting: int = 256) -> None:
        """Prepare; `start` begins.

        Args:
            model: a `cdlm` model.
            max_batch: answers written at once.
            max_waiting: requests that may wait, for each of answers and other computing.

        Raises:
            ConfigError: a model that cannot generate.
        """
        require_cdlm(model.network)
        self.tokens_written = 0
        self._model, self._max_batch, self._max_waiting = model, max_batch, max_waiting
        self._waiting: list[Ticket] = []
        self._active: dict[int, Ticket] = {}
        self._numbers = count()
        self._is_closing = False
        self._changed = threading.Condition()
        self._planning = threading.Lock()
        self._thread = threading.Thread(target=self._work, name="vitrail-engine", daemon=True)
        self._computing = ThreadPoolExecutor(1, "vitrail-explain")
        self._num_computing = 0

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
        """Stop at the next block; what is not finished fails with `Stopping`."""
        with self._changed:
            self._is_closing = True
            for ticket in [*self._waiting, *self._active.values()]:
                ticket.cancel()
                ticket.tell(Stopping())
            self._waiting.clear()
            self._changed.notify()
        self._computing.shutdown(wait=False, cancel_futures=True)
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
        # A discovered concept is calibrated when it is first asked for: that is computing, not waiting.
        plan = await asyncio.to_thread(self._plan, job.steers) if job.steers else None
        request = Request(next(self._numbers), self._model.network.config, job.prompt_ids, job.sampling, plan)
        beginning = Beginning(self._model.tokenizer, len(job.prompt_ids), job.stop)
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
        """Compute something beside generation, one piece at a time.

        Args:
            work: what to compute.

        Returns:
            its result.

        Raises:
            Overloaded: too much waits already.
            Stopping: the server shuts down.
        """
        if self._is_closing:
            raise Stopping
        if self._num_computing >= self._max_waiting:
            raise Overloaded
        self._num_computing += 1
        try:
            return await asyncio.get_running_loop().run_in_executor(self._computing, work)
        finally:
            self._num_computing -= 1

    def _plan(self, steers: tuple[Steer, ...]) -> SteerPlan | None:
        with self._planning:  # it may add to the calibration
            return self._model.plan(steers)

    def _work(self) -> None:
        batch = Batch(self._model.network, self._max_batch)
        with torch.inference_mode():
            while (joining := self._next(batch)) is not None:
                try:
                    batch.join(joining)
                    finished = batch.advance(self._on_commit)
                except Exception as error:  # whatever it was, the next requests must not suffer from it
                    _log.exception("generation failed")
                    self._fail(error)
                    batch = Batch(self._model.network, self._max_batch)
                else:
                    self._finish(finished)

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
            ticket = self._active.pop(request.number)
            if not ticket.is_cancelled:
                ticket.finish(self._model.model_id, stop_ids(self._model.network.config, request.sampling))

    def _fail(self, error: Exception) -> None:
        with self._changed:
            failed, self._active = self._active, {}
        for ticket in failed.values():
            ticket.tell(error)
