"""Seeded block-by-block generation, many prompts at once (§5.2); `Batch` does the work.

A request's tokens do not depend on its companions (bitwise at equal batch size and prefix length; otherwise
wherever two logits are not within rounding of each other).
"""

from collections.abc import Sequence

import torch

from vitrail.errors import ConfigError
from vitrail.generate.batch import Batch
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
        model: a `cdlm` model.
        prompts: token ids, lengths may differ; a prompt may be empty.
        sampling: for all requests, or one for each (to give each its seed).
        plans: steering of each request, or None for no steering at all.
        on_commit: called with each commit as it happens, in order within a request.
        model_id: artifact id of the model, kept in the traces.

    Returns:
        one trace a prompt, in the order of `prompts`.

    Raises:
        PromptTooLong: a prompt and its new tokens exceed the context.
        ConfigError: a wrong id in a prompt, or a model that is not `cdlm`.
    """
    samplings = [sampling] * len(prompts) if isinstance(sampling, Sampling) else sampling
    require_cdlm(model)
    requests = [
        Request(number, model.config, *parts)
        for number, parts in enumerate(zip(prompts, samplings, plans or [None] * len(prompts), strict=True))
    ]
    # Prompts of like length side by side need the least padding.
    waiting = sorted(requests, key=lambda request: (len(request.prompt_ids), request.stop))
    batch = Batch(model)
    with torch.inference_mode():
        while waiting or batch.requests:
            room = batch.room
            batch.join(waiting[:room])
            waiting = waiting[room:]
            batch.advance(on_commit)
    return [request.trace(model_id) for request in requests]


def require_cdlm(model: ConceptLM) -> None:
    """Refuse a model that this sampler cannot run.

    Args:
        model: the network.

    Raises:
        ConfigError: another backbone than `cdlm`.
    """
    if model.config.backbone != "cdlm":
        raise ConfigError(f"generate: backbone '{model.config.backbone}' is not supported; use a cdlm model")
