"""Requests that are continued together, each at its own block, with an exact cache of finished blocks (§5.2).

Blocks lie on the attention grid (absolute positions), so a finished one never changes: one clean forward,
without injection, puts its keys and values into the cache, and each denoising step then computes the
current block only. A prompt tail that shares a block with generated positions is denoised with it.

Requests of different length share forwards: shorter prefixes are padded in the cache and attention skips the
padding. They join and leave between blocks. Every request has its own generator, and all choices are made
row by row.

Letters: B requests in a forward, T width of the block.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

import torch
from jaxtyping import Int
from torch import Tensor

from vitrail.generate.requests import OnCommit, Request
from vitrail.generate.step import Step
from vitrail.model import BlockCache, ConceptLM

T = TypeVar("T")

MAX_REQUESTS = 64
"""Requests in one forward: beyond it a step outgrows the processor's caches and gains nothing."""

MAX_LOGITS = 2**26
"""Logits in one forward, which bounds its memory at large vocabularies."""


class Batch:
    """Requests in the making: `join` takes more in, `advance` writes the next block of each.

    Call both under `torch.inference_mode()`.
    """

    def __init__(self, model: ConceptLM, max_requests: int = MAX_REQUESTS) -> None:
        """Begin without requests.

        Args:
            model: a `cdlm` network.
            max_requests: how many are continued at once, at most.
        """
        self.requests: list[Request] = []
        self._model = model
        self._cache: BlockCache | None = None
        self._limit = max(1, min(max_requests, MAX_LOGITS // (model.config.block * model.config.vocab_size)))

    @property
    def room(self) -> int:
        """How many requests may still join."""
        return self._limit - len(self.requests)

    def join(self, requests: Sequence[Request]) -> None:
        """Take requests in; their prompts' whole blocks are run now.

        Args:
            requests: at most `room`.
        """
        caches = [] if self._cache is None else [self._cache]
        for group in _grouped(requests, self._start):
            caches.append(self._prefill(group))
            self.requests += group
        if caches:
            self._cache = BlockCache.join(caches) if len(caches) > 1 else caches[0]

    def advance(self, on_commit: OnCommit | None = None) -> list[Request]:
        """Write the current block of every request.

        Args:
            on_commit: called with each commit as it happens.

        Returns:
            requests that are finished; they have left the batch.
        """
        if not self.requests or self._cache is None:
            return []
        blocks: dict[int, Int[Tensor, " T"]] = {}
        numbers = range(len(self.requests))
        for group in _grouped(numbers, lambda number: (self._width(number), self._layer(number))):
            rows = torch.tensor(group)
            filled = self._denoise([self.requests[row] for row in group], self._cache.select(rows), on_commit)
            blocks |= zip(group, filled, strict=True)
        finished = [request for request in self.requests if _is_finished(request)]
        self._keep([row for row in numbers if not _is_finished(self.requests[row])], blocks)
        return finished

    def _keep(self, going: list[int], blocks: dict[int, Int[Tensor, " T"]]) -> None:
        """Keep some rows, and put their finished block into the cache."""
        self.requests = [self.requests[row] for row in going]
        if not going or self._cache is None:
            self._cache = None
            return
        self._cache = self._cache.select(torch.tensor(going))
        self._model.extend_cache(torch.stack([blocks[row] for row in going]), self._cache)

    def _prefill(self, requests: Sequence[Request]) -> BlockCache:
        """Cache of the whole blocks of prompts that have equally many."""
        cache, start = BlockCache(len(requests)), self._start(requests[0])
        if start:
            ids = [request.ids[:start] for request in requests]
            self._model.extend_cache(torch.tensor(ids, device=self._device), cache)
        return cache

    def _denoise(
        self, requests: Sequence[Request], cache: BlockCache, on_commit: OnCommit | None
    ) -> Int[Tensor, "B T"]:
        """Fill the masked positions of the current block of each request; gives the finished blocks."""
        mask_id, device = self._model.config.mask_id, self._device
        starts = torch.tensor([self._start(request) for request in requests], device=device)
        tails = [request.ids[self._start(request) :] for request in requests]
        width = self._width_at(int(starts.max()))
        ids = torch.tensor([tail + [mask_id] * (width - len(tail)) for tail in tails], device=device)
        pos = starts[:, None] + torch.arange(width, device=device)
        stepping, rows, step = list(requests), torch.arange(len(requests), device=device), Step(self._model, requests)
        while True:
            # Read anew at each step: a stop id, or whoever asked, may end a request early.
            stops = torch.tensor([request.stop for request in stepping], device=device)
            is_open = (ids[rows] == mask_id) & (pos[rows] < stops[:, None])
            going = is_open.any(1)
            if not going.any():
                break
            if not going.all():
                # Requests that are done leave, so that the rest do not pay for them.
                rows, is_open, cache = rows[going], is_open[going], cache.select(going.nonzero()[:, 0])
                stepping = [request for request, goes in zip(stepping, going.tolist(), strict=True) if goes]
                step = Step(self._model, stepping)
            ids[rows] = step(ids[rows], is_open, cache, on_commit)
        for request, tail, row in zip(requests, tails, ids.tolist(), strict=True):
            request.ids += row[len(tail) :]
        return ids

    @property
    def _device(self) -> torch.device:
        return self._model.transformer.lm_head.weight.device

    def _start(self, request: Request) -> int:
        return request.block_start(self._model.config.block)

    def _width_at(self, start: int) -> int:
        return min(self._model.config.block, self._model.config.max_length - start)

    def _width(self, number: int) -> int:
        return self._width_at(self._start(self.requests[number]))

    def _layer(self, number: int) -> int:
        """Where a request is steered; one that is not goes with any, as an injection of zeros."""
        plan = self.requests[number].plan
        if plan is not None:
            return plan.layer
        return min((request.plan.layer for request in self.requests if request.plan is not None), default=0)


def _is_finished(request: Request) -> bool:
    return request.stop <= len(request.ids)


def _grouped(items: Iterable[T], key: Callable[[T], Any]) -> list[list[T]]:
    """Items with equal keys together, in the order in which the keys first appear."""
    groups: dict[Any, list[T]] = defaultdict(list)
    for item in items:
        groups[key(item)].append(item)
    return list(groups.values())
