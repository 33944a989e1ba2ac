"""Batches of an `ar` model: one token after another, with a cache that grows by each.

A state predicts the token behind it. Positions being continued (the last of the prompt, and every new one) are
those that steering injects at; each is run once, when it is the last, and stays in the cache as it was then.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from vitrail.generate.batch import MAX_REQUESTS, Batch, device_of, grouped, injection_of, plan_layer
from vitrail.generate.requests import OnCommit, Request
from vitrail.generate.step import Step
from vitrail.model import BlockCache, ConceptLM


class CausalBatch(Batch):
    """Requests to an `ar` model; a stretch is one token of each."""

    def __init__(self, model: ConceptLM, max_requests: int = MAX_REQUESTS) -> None:
        """Begin without requests.

        Args:
            model: an `ar` network.
            max_requests: how many are continued at once, at most.
        """
        super().__init__(model, max_requests, open_positions=1)
        self._lanes: dict[int, _Lane] = {}

    def join(self, requests: Sequence[Request]) -> None:
        """Take requests in; their prompts but for the last token are run now.

        Args:
            requests: at most `room`.
        """
        self.requests += requests
        for group in grouped(requests, plan_layer):
            lane = self._lanes.setdefault(plan_layer(group[0]), _Lane(self.model))
            lane.join(group)

    def advance(self, on_commit: OnCommit | None = None) -> list[Request]:
        """Write the next token of every request.

        Args:
            on_commit: called with each commit as it happens.

        Returns:
            requests that are finished or have failed; they have left the batch.
        """
        for lane in self._lanes.values():
            lane.advance(on_commit)
        finished = [request for request in self.requests if request.is_finished]
        self.requests = [request for request in self.requests if not request.is_finished]
        self._lanes = {layer: lane for layer, lane in self._lanes.items() if lane.requests}
        return finished


class _Lane:
    """Requests that are injected at one layer, and so share forwards."""

    def __init__(self, model: ConceptLM) -> None:
        self.requests: list[Request] = []
        self._model = model
        self._cache = BlockCache(0)
        self._step: Step | None = None

    def join(self, requests: Sequence[Request]) -> None:
        caches = [self._cache] if self.requests else []
        for group in grouped(requests, lambda request: len(request.prompt_ids)):
            caches.append(BlockCache(len(group)))
            if len(group[0].prompt_ids) > 1:
                self._model.extend_cache(self._ids([request.prompt_ids[:-1] for request in group]), caches[-1])
            self.requests += group
        self._cache = BlockCache.join(caches) if len(caches) > 1 else caches[0]
        self._step = None

    def advance(self, on_commit: OnCommit | None) -> None:
        places = [len(request.prompt_ids) + len(request.commits) for request in self.requests]
        last = self._ids([[request.row[place - 1]] for request, place in zip(self.requests, places, strict=True)])
        injection = injection_of(self._model, self.requests, torch.ones_like(last, dtype=torch.bool))
        states = self._model.extend_cache(last, self._cache, injection)[:, 0]
        rows = torch.arange(len(places), device=states.device)
        self._step = self._step or Step(self._model, self.requests)
        self._step(states, rows, torch.tensor(places, device=states.device), places, on_commit)
        going = [row for row, request in enumerate(self.requests) if not request.is_finished]
        if len(going) < len(self.requests):
            self.requests = [self.requests[row] for row in going]
            self._cache = self._cache.select(torch.tensor(going, dtype=torch.long))
            self._step = None

    def _ids(self, rows: Sequence[Sequence[int]]) -> Tensor:
        return torch.tensor(rows, device=device_of(self._model))
