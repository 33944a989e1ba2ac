"""Batches of a `cdlm` model: block by block, with an exact cache of finished blocks (§5.2).

Attention blocks lie on absolute positions, so a finished one never changes: one clean forward puts its keys and
values into the cache, and each denoising step then computes the current window only. A prompt tail that shares
a block with generated positions is denoised with it. Steering is injected at masked positions alone, so a
finished block has none.

Requests of different length share forwards: shorter prefixes are padded in the cache and attention skips the
padding. They join and leave between blocks. Guidance runs a second stream: the same rows with the prompt masked,
with a cache of its own.

Letters: B requests in a forward, T width of the window.
"""

from collections.abc import Sequence

import torch
from jaxtyping import Float, Int
from torch import Tensor

from vitrail.generate.batch import MAX_REQUESTS, Batch, device_of, grouped, injection_of, plan_layer
from vitrail.generate.requests import OnCommit, Request
from vitrail.generate.step import Step
from vitrail.model import BlockCache, ConceptLM


class BlockBatch(Batch):
    """Requests to a `cdlm` model; a stretch is the current block of each."""

    def __init__(self, model: ConceptLM, max_requests: int = MAX_REQUESTS) -> None:
        """Begin without requests.

        Args:
            model: a `cdlm` network.
            max_requests: how many are continued at once, at most.
        """
        super().__init__(model, max_requests, model.config.block)
        self._seen, self._blind = _Stream(model), _BlindStream(model)

    def join(self, requests: Sequence[Request]) -> None:
        """Take requests in; their prompts' whole blocks are run now.

        Args:
            requests: at most `room`.
        """
        self.requests += requests
        self._seen.join(requests)
        self._blind.join(requests)

    def advance(self, on_commit: OnCommit | None = None) -> list[Request]:
        """Write the current block of every request.

        Args:
            on_commit: called with each commit as it happens.

        Returns:
            requests that are finished or have failed; they have left the batch.
        """
        for group in grouped(self.requests, lambda request: (_width(request), self._layer(request))):
            self._denoise(group, on_commit)
        finished = [request for request in self.requests if request.is_finished]
        self.requests = [request for request in self.requests if not request.is_finished]
        for stream in (self._seen, self._blind):
            stream.finish_block(self.requests)
        for request in self.requests:
            request.done += self.model.config.block
        return finished

    def _denoise(self, going: list[Request], on_commit: OnCommit | None) -> None:
        """Fill the open positions of the current window of each request."""
        for request in going:
            request.begin(len(request.open_places))
        step: Step | None = None
        # Read anew at each step: a stop id, or whoever asked, may end a request early.
        while going := [request for request in going if request.open_places]:
            if step is None or len(going) < len(step.requests):
                # Requests that are done leave, so that the rest do not pay for them.
                step, guided = Step(self.model, going), [request for request in going if _is_guided(request)]
                cache, blind_cache = self._seen.rows(going), self._blind.rows(guided)
            states, rows, places = _open(going, self._seen.states(going, cache))
            unguided = _open(guided, self._blind.states(guided, blind_cache))[0] if guided else None
            step(states, rows, places, [request.window.stop for request in going], on_commit, unguided)

    def _layer(self, request: Request) -> int:
        """Where a request is steered; one that is not goes with any, as an injection of zeros."""
        if request.plan is not None:
            return request.plan.layer
        return min((plan_layer(other) for other in self.requests if other.plan is not None), default=0)


class _Stream:
    """Finished blocks of requests as the network sees them: a cache with one row each, in the order of `requests`."""

    def __init__(self, model: ConceptLM) -> None:
        self.requests: list[Request] = []
        self._model = model
        self._cache = BlockCache(0)

    def takes(self, _request: Request) -> bool:
        """Whether a request runs in this stream."""
        return True

    def view(self, request: Request, start: int, stop: int) -> list[int]:
        """A stretch of the row; what lies behind the last new token is masked."""
        ids = request.row[start:stop]
        return ids + [self._model.config.mask_id] * (stop - start - len(ids))

    def layer(self, _request: Request) -> int:
        """Where finished positions are injected: nowhere, since none is masked."""
        return 0

    def join(self, requests: Sequence[Request]) -> None:
        """Take requests in, and the whole blocks of their prompts into the cache."""
        caches = [self._cache] if self.requests else []
        mine = [request for request in requests if self.takes(request)]
        for group in grouped(mine, lambda request: (request.done, self.layer(request))):
            caches.append(BlockCache(len(group)))
            if group[0].done:
                self._extend(group, [self.view(request, 0, request.done) for request in group], caches[-1])
            self.requests += group
        self._cache = _joined(caches)

    def finish_block(self, going: Sequence[Request]) -> None:
        """Keep the rows of requests that go on, and take their current block into the cache."""
        block, caches, kept = self._model.config.block, list[BlockCache](), list[Request]()
        # A forward injects at one layer.
        for group in grouped([request for request in self.requests if request in going], self.layer):
            caches.append(self.rows(group))
            self._extend(
                group, [self.view(request, request.done, request.done + block) for request in group], caches[-1]
            )
            kept += group
        self.requests, self._cache = kept, _joined(caches)

    def rows(self, requests: list[Request]) -> BlockCache:
        """The finished blocks of some requests; a copy, unless they are all."""
        if requests == self.requests:
            return self._cache
        return self._cache.select(
            torch.tensor([self.requests.index(request) for request in requests], dtype=torch.long)
        )

    def states(self, requests: Sequence[Request], cache: BlockCache) -> Float[Tensor, "B T D"]:
        """Final states of the windows of requests that are injected at one layer."""
        ids = self._ids([self.view(request, request.window.start, request.window.stop) for request in requests])
        injection = injection_of(self._model, requests, ids == self._model.config.mask_id)
        return self._model.hidden(ids, injection=injection, cache=cache)

    def _extend(self, requests: Sequence[Request], rows: list[list[int]], cache: BlockCache) -> None:
        ids = self._ids(rows)
        is_masked = ids == self._model.config.mask_id
        injection = injection_of(self._model, requests, is_masked) if is_masked.any() else None
        self._model.extend_cache(ids, cache, injection)

    def _ids(self, rows: list[list[int]]) -> Int[Tensor, "B T"]:
        return torch.tensor(rows, device=device_of(self._model))


class _BlindStream(_Stream):
    """The rows of requests with guidance, their prompts masked (and injected as all masked positions are)."""

    def takes(self, request: Request) -> bool:
        return _is_guided(request)

    def view(self, request: Request, start: int, stop: int) -> list[int]:
        mask_id, given = self._model.config.mask_id, request.prompt_ids[start:stop]
        ids = super().view(request, start, stop)
        # What was filled into a gap of the prompt is shown, like all that is generated.
        return [ids[place] if token == mask_id else mask_id for place, token in enumerate(given)] + ids[len(given) :]

    def layer(self, request: Request) -> int:
        return plan_layer(request)


def _open(
    requests: Sequence[Request], states: Float[Tensor, "B T D"]
) -> tuple[Float[Tensor, "n D"], Int[Tensor, " n"], Int[Tensor, " n"]]:
    """States of the open positions, the request of each, and its absolute position."""
    pairs = [(row, place) for row, request in enumerate(requests) for place in request.open_places]
    rows, places = torch.tensor(pairs, device=states.device).unbind(1)
    starts = torch.tensor([request.window.start for request in requests], device=states.device)
    return states[rows, places - starts[rows]], rows, places


def _joined(caches: list[BlockCache]) -> BlockCache:
    if not caches:
        return BlockCache(0)
    return BlockCache.join(caches) if len(caches) > 1 else caches[0]


def _is_guided(request: Request) -> bool:
    return request.sampling.guidance > 0


def _width(request: Request) -> int:
    return request.window.stop - request.window.start
