"""Seeded generation, many prompts at once (§5.2); a `Batch` does the work.

A request's tokens do not depend on its companions (bitwise at equal batch size and prefix length; otherwise
wherever two logits are not within rounding of each other).
"""

from collections.abc import Sequence

import torch

from vitrail.generate.batch import MAX_REQUESTS, Batch
from vitrail.generate.blocks import BlockBatch
from vitrail.generate.causal import CausalBatch
from vitrail.generate.requests import OnCommit, Request
from vitrail.generate.sampling import Sampling
from vitrail.generate.trace import Trace
from vitrail.model import ConceptLM
from vitrail.steer import SteerPlan


def generate(
    model: ConceptLM,
    prompts: Sequence[Sequence[int]],
    sampling: Sampling | Sequence[Sampling],
    plans: Sequence[SteerPlan | None] | None = None,
    on_commit: OnCommit | None = None,
    *,
    model_id: str = "",
) -> list[Trace]:
    """Continue prompts, together, each as if it were alone.

    Args:
        model: the network.
        prompts: token ids, lengths may differ; masked positions are gaps, to be filled in.
        sampling: for all requests, or one for each (to give each its seed).
        plans: steering of each request, or None for no steering at all.
        on_commit: called with each commit as it happens, in order within a request.
        model_id: artifact id of the model, kept in the traces.

    Returns:
        one trace a prompt, in the order of `prompts`.

    Raises:
        PromptTooLong: a prompt and its new tokens exceed the context.
        ConfigError: a wrong id in a prompt, or an option that the model cannot have.
        NonFiniteLogits: logits that are NaN or infinite.
    """
    samplings = [sampling] * len(prompts) if isinstance(sampling, Sampling) else sampling
    requests = [
        Request(number, model.config, *parts)
        for number, parts in enumerate(zip(prompts, samplings, plans or [None] * len(prompts), strict=True))
    ]
    run(model, requests, on_commit)
    for request in requests:
        if request.failure is not None:
            raise request.failure
    return [request.trace(model_id) for request in requests]


def run(model: ConceptLM, requests: Sequence[Request], on_commit: OnCommit | None = None) -> None:
    """Write requests to their end; one that fails keeps its `failure` and leaves the others alone.

    Args:
        model: the network.
        requests: any number of them.
        on_commit: called with each commit as it happens, in order within a request.
    """
    # Prompts of like length side by side need the least padding.
    waiting = sorted(requests, key=lambda request: (len(request.prompt_ids), request.stop))
    batch = batch_for(model)
    with torch.inference_mode():
        while waiting or batch.requests:
            room = batch.room
            batch.join(waiting[:room])
            waiting = waiting[room:]
            batch.advance(on_commit)


def batch_for(model: ConceptLM, max_requests: int = MAX_REQUESTS) -> Batch:
    """An empty batch.

    Args:
        model: a `cdlm` or `ar` network.
        max_requests: how many are continued at once, at most.

    Returns:
        the batch that fits its backbone.
    """
    return BlockBatch(model, max_requests) if model.config.backbone == "cdlm" else CausalBatch(model, max_requests)
