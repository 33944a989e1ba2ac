"""What batches of requests have in common: their interface, their limits, and the injection of a forward.

Every request has its own generator, and all choices are made row by row, so that its tokens do not depend on
its companions. Letters: B requests in a forward, T width of what is computed of each.
"""

from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

import torch
from jaxtyping import Bool
from torch import Tensor

from vitrail.generate.requests import OnCommit, Request
from vitrail.model import ConceptLM, Injection

T = TypeVar("T")

MAX_REQUESTS = 64
"""Requests in one forward: beyond it a step outgrows the processor's caches and gains nothing."""

MAX_LOGITS = 2**26
"""Logits in one forward, which bounds its memory at large vocabularies."""


class Batch(ABC):
    """Requests in the making: `join` takes more in, `advance` writes the next stretch of each.

    Call both under `torch.inference_mode()`.
    """

    def __init__(self, model: ConceptLM, max_requests: int, open_positions: int) -> None:
        """Begin without requests.

        Args:
            model: the network.
            max_requests: how many are continued at once, at most.
            open_positions: most positions of one request whose logits a forward computes.
        """
        self.requests: list[Request] = []
        self.model = model
        self._limit = max(1, min(max_requests, MAX_LOGITS // (open_positions * model.config.vocab_size)))

    @property
    def room(self) -> int:
        """How many requests may still join."""
        return self._limit - len(self.requests)

    @abstractmethod
    def join(self, requests: Sequence[Request]) -> None:
        """Take requests in; what is known of them is run now.

        Args:
            requests: at most `room`.
        """

    @abstractmethod
    def advance(self, on_commit: OnCommit | None = None) -> list[Request]:
        """Write the next stretch of every request.

        Args:
            on_commit: called with each commit as it happens.

        Returns:
            requests that are finished or have failed; they have left the batch.
        """


def device_of(model: ConceptLM) -> torch.device:
    """Where a network is.

    Args:
        model: the network.

    Returns:
        its device.
    """
    return model.transformer.lm_head.weight.device


def injection_of(model: ConceptLM, requests: Sequence[Request], mask: Bool[Tensor, "B T"]) -> Injection | None:
    """What steering adds in one forward.

    Args:
        model: the network.
        requests: whose plans inject at one layer; one without a plan gets zeros.
        mask: [B T] positions that receive it.

    Returns:
        the injection, or None where no request is steered.
    """
    plans = [request.plan for request in requests]
    layers = {plan.layer for plan in plans if plan is not None}
    if not layers:
        return None
    (layer,) = layers
    none = torch.zeros_like(model.transformer.lm_head.weight[0])
    vectors = [none if plan is None else plan.direction.to(none) for plan in plans]
    return Injection(torch.stack(vectors), mask, layer)


def plan_layer(request: Request) -> int:
    """Where a request is steered.

    Args:
        request: any.

    Returns:
        the layer of its plan; 0 without one.
    """
    return 0 if request.plan is None else request.plan.layer


def grouped(items: Iterable[T], key: Callable[[T], Any]) -> list[list[T]]:
    """Items with equal keys together, in the order in which the keys first appear.

    Args:
        items: any.
        key: hashable.

    Returns:
        the groups.
    """
    groups: dict[Any, list[T]] = defaultdict(list)
    for item in items:
        groups[key(item)].append(item)
    return list(groups.values())
