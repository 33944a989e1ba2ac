"""Seeded block-by-block generation with an exact cache, many requests at once (§5.2).

Blocks lie on the attention grid (absolute positions), so a finished one never changes: one clean forward,
without injection, puts its keys and values into the cache, and each denoising step then computes the
current block only. A prompt tail that shares a block with generated positions is denoised with it.

Requests that stand at the same block share a forward; nothing is padded. Every request has its own
generator, and all choices are made row by row, so its tokens do not depend on its companions (bitwise at
equal batch size; otherwise wherever two logits are not within rounding of each other).

Letters: B requests in a forward, T width of the block, V vocabulary, n open positions (masked, still to be
filled) of all of them.
"""

from collections.abc import Iterator, Sequence

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from vitrail.errors import ConfigError
from vitrail.generate.requests import OnCommit, Request
from vitrail.generate.sampling import Sampling, banned_ids, draw_tokens, log_confidence, penalise_repetition
from vitrail.generate.trace import Trace
from vitrail.model import BlockCache, ConceptLM, Injection
from vitrail.steer import SteerPlan, deployed_logits

MAX_REQUESTS = 64
"""Requests in one forward: beyond it a step outgrows the processor's caches and gains nothing."""

MAX_LOGITS = 2**26
"""Logits in one forward, which bounds its memory at large vocabularies."""


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
    if model.config.backbone != "cdlm":
        raise ConfigError(f"generate: backbone '{model.config.backbone}' is not supported; use a cdlm model")
    samplings = [sampling] * len(prompts) if isinstance(sampling, Sampling) else sampling
    requests = [
        Request(number, model.config, *parts)
        for number, parts in enumerate(zip(prompts, samplings, plans or [None] * len(prompts), strict=True))
    ]
    with torch.inference_mode():
        for cohort in _cohorts(requests, model):
            _run(model, cohort, on_commit)
    return [request.trace(model_id) for request in requests]


def _cohorts(requests: Sequence[Request], model: ConceptLM) -> Iterator[list[Request]]:
    """Groups that can share forwards: the same injection layer, similar prompt lengths."""
    size = max(1, min(MAX_REQUESTS, MAX_LOGITS // (model.config.block * model.config.vocab_size)))
    layers = sorted({_layer(request) for request in requests})
    for layer in layers:
        group = [request for request in requests if _layer(request) == layer]
        group.sort(key=lambda request: (len(request.prompt_ids), request.stop))
        yield from (group[at : at + size] for at in range(0, len(group), size))


def _layer(request: Request) -> int:
    return 0 if request.plan is None else request.plan.layer


def _run(model: ConceptLM, cohort: Sequence[Request], on_commit: OnCommit | None) -> None:
    """Denoise block after block; requests join at the block that holds their first new position."""
    block, waiting, active, cache = model.config.block, list(cohort), list[Request](), BlockCache()
    number = 0
    while waiting or active:
        if not active:
            number = min(len(request.prompt_ids) for request in waiting) // block
        start = number * block
        joining = [request for request in waiting if len(request.prompt_ids) // block == number]
        waiting = [request for request in waiting if request not in joining]
        if joining:
            fresh = _prefill(model, joining, start)
            cache = BlockCache.join([cache, fresh]) if active else fresh
            active += joining
        ids = _denoise(model, active, start, cache, on_commit)
        going = [row for row, request in enumerate(active) if request.stop > start + block]
        active = [active[row] for row in going]
        if active:
            rows = torch.tensor(going, device=ids.device)
            cache = cache.select(rows)
            model.extend_cache(ids[rows], cache)
        number += 1


def _prefill(model: ConceptLM, requests: Sequence[Request], start: int) -> BlockCache:
    cache = BlockCache()
    if start:
        device = model.transformer.lm_head.weight.device
        model.extend_cache(torch.tensor([request.ids[:start] for request in requests], device=device), cache)
    return cache


def _denoise(
    model: ConceptLM, requests: Sequence[Request], start: int, cache: BlockCache, on_commit: OnCommit | None
) -> Int[Tensor, "B T"]:
    """Fill the masked positions of one block of each request; gives the finished block."""
    config, device = model.config, model.transformer.lm_head.weight.device
    width = min(config.block, config.max_length - start)
    tails = [request.ids[start:] for request in requests]
    ids = torch.tensor([tail + [config.mask_id] * (width - len(tail)) for tail in tails], device=device)
    pos = torch.arange(start, start + width, device=device)
    stepping, rows, step = list(requests), torch.arange(len(requests), device=device), _Step(model, requests, start)
    while True:
        stops = torch.tensor([request.stop for request in stepping], device=device)
        is_open = (ids[rows] == config.mask_id) & (pos < stops[:, None])
        going = is_open.any(1)
        if not going.any():
            break
        if not going.all():
            # Requests that are done leave, so that the rest do not pay for them.
            rows, is_open, cache = rows[going], is_open[going], cache.select(going.nonzero()[:, 0])
            stepping = [request for request, goes in zip(stepping, going.tolist(), strict=True) if goes]
            step = _Step(model, stepping, start)
        ids[rows] = step(ids[rows], is_open, cache, on_commit)
    for request, tail, row in zip(requests, tails, ids.tolist(), strict=True):
        request.ids += row[len(tail) :]
    return ids


class _Step:
    """One denoising step of requests that stand at the same block; holds what does not change between steps."""

    def __init__(self, model: ConceptLM, requests: Sequence[Request], start: int) -> None:
        self.model, self.requests, self.start = model, requests, start
        samplings = [request.sampling for request in requests]
        self.temperature = self._column([sampling.temperature for sampling in samplings])
        self.top_p = self._column([sampling.top_p for sampling in samplings])
        self.penalty = self._column([sampling.repetition_penalty for sampling in samplings])
        self.tokens_per_step = self._column([sampling.tokens_per_step for sampling in samplings]).long()
        self.is_repeating = any(sampling.repetition_penalty != 1 for sampling in samplings)
        self.bias = self._bias()
        self.vectors = self._vectors()

    def __call__(
        self, ids: Int[Tensor, "B T"], is_open: Bool[Tensor, "B T"], cache: BlockCache, on_commit: OnCommit | None
    ) -> Int[Tensor, "B T"]:
        """The block after one more commit of each request."""
        hidden = self.model.hidden(ids, injection=self._injection(ids), cache=cache)
        logits = deployed_logits(self.model, hidden[is_open])
        row_of, _ = is_open.nonzero(as_tuple=True)
        scores = self._adjust(logits, row_of, ids)
        rows, cols, picked = self._choose(scores, is_open)
        tokens = self._draw(scores[picked], rows)
        raw = logits[picked]
        chosen = raw.gather(1, tokens[:, None])[:, 0]
        self._record(rows, cols + self.start, tokens, chosen, chosen - raw.logsumexp(-1), ids.shape[1], on_commit)
        ids = ids.clone()
        ids[rows, cols] = tokens
        return ids

    def _column(self, values: Sequence[float | int]) -> Tensor:
        return torch.tensor(values, device=self.model.transformer.lm_head.weight.device, dtype=torch.float64)

    def _bias(self) -> Float[Tensor, "R V"]:
        """What is added to all logits of a request; one row (R = 1) where all requests share it."""
        config, weight = self.model.config, self.model.transformer.lm_head.weight
        rows: list[Tensor] = []
        for request in self.requests:
            row = torch.zeros(config.vocab_size, device=weight.device, dtype=_score_dtype(weight.dtype))
            if request.plan is not None and request.plan.logit_penalty is not None:
                row -= request.plan.logit_penalty
            row[banned_ids(config, request.sampling)] = -torch.inf
            rows.append(row)
        shared = all(torch.equal(rows[0], row) for row in rows)
        return rows[0][None] if shared else torch.stack(rows)

    def _vectors(self) -> Float[Tensor, "B D"] | None:
        weight = self.model.transformer.lm_head.weight
        plans = [request.plan for request in self.requests]
        if all(plan is None for plan in plans):
            return None
        none = torch.zeros_like(weight[0])
        return torch.stack([none if plan is None else plan.direction.to(none) for plan in plans])

    def _injection(self, ids: Int[Tensor, "B T"]) -> Injection | None:
        if self.vectors is None:
            return None
        return Injection(self.vectors, ids == self.model.config.mask_id, _layer(self.requests[0]))

    def _adjust(
        self, logits: Float[Tensor, "n V"], row_of: Int[Tensor, " n"], ids: Int[Tensor, "B T"]
    ) -> Float[Tensor, "n V"]:
        scores = logits + (self.bias if self.bias.shape[0] == 1 else self.bias[row_of])
        if not self.is_repeating:
            return scores
        is_seen = torch.zeros(len(self.requests), logits.shape[1], dtype=torch.bool, device=ids.device)
        is_seen.scatter_(1, ids, True)
        for row, request in enumerate(self.requests):
            is_seen[row, request.ids] = True
        return penalise_repetition(scores, is_seen[row_of], self.penalty[row_of][:, None].to(scores.dtype))

    def _choose(
        self, scores: Float[Tensor, "n V"], is_open: Bool[Tensor, "B T"]
    ) -> tuple[Int[Tensor, " m"], Int[Tensor, " m"], Int[Tensor, " m"]]:
        """Rows, columns and places in `scores` of the most confident positions, best first within a row."""
        confidence = scores.new_full(is_open.shape, -torch.inf)
        confidence[is_open] = log_confidence(scores)
        place = torch.zeros_like(is_open, dtype=torch.long)
        place[is_open] = torch.arange(scores.shape[0], device=scores.device)
        order = confidence.argsort(dim=1, descending=True, stable=True)
        count = torch.minimum(self.tokens_per_step, is_open.sum(1))
        is_taken = torch.arange(is_open.shape[1], device=count.device) < count[:, None]
        rows = is_taken.nonzero()[:, 0]
        cols = order[is_taken]
        return rows, cols, place[rows, cols]

    def _draw(self, scores: Float[Tensor, "m V"], rows: Int[Tensor, " m"]) -> Int[Tensor, " m"]:
        counts = torch.bincount(rows, minlength=len(self.requests)).tolist()
        uniform = [
            request.uniform(count) if request.sampling.temperature > 0 else torch.zeros(count, dtype=torch.float64)
            for request, count in zip(self.requests, counts, strict=True)
        ]
        temperature, top_p = self.temperature[rows], self.top_p[rows]
        return draw_tokens(scores, temperature, top_p, torch.cat(uniform).to(scores.device))

    def _record(
        self,
        rows: Int[Tensor, " m"],
        positions: Int[Tensor, " m"],
        tokens: Int[Tensor, " m"],
        logits: Float[Tensor, " m"],
        logprobs: Float[Tensor, " m"],
        width: int,
        on_commit: OnCommit | None,
    ) -> None:
        columns = [values.tolist() for values in (positions, tokens, logits, logprobs)]
        start = 0
        for request, count in zip(self.requests, torch.bincount(rows).tolist(), strict=True):
            pos, ids, raw, nats = (values[start : start + count] for values in columns)
            commit = request.commit(pos, ids, raw, nats, self.start + width)
            if on_commit is not None:
                on_commit(commit)
            start += count


def _score_dtype(dtype: torch.dtype) -> torch.dtype:
    return torch.promote_types(dtype, torch.float32)
