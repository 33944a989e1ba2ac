"""One denoising step of requests that share a forward: forward, scores, order, draw, record.

Letters: B requests in a forward, T width of the block, V vocabulary, n open positions (masked, still to be
filled) of all of them, m positions that this step commits.
"""

from collections.abc import Sequence

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from vitrail.generate.requests import OnCommit, Picked, Request
from vitrail.generate.sampling import banned_ids, draw_tokens, log_confidence, penalise_repetition
from vitrail.model import BlockCache, ConceptLM, Injection
from vitrail.steer import deployed_logits


class Step:
    """One denoising step of some requests; holds what does not change between steps."""

    def __init__(self, model: ConceptLM, requests: Sequence[Request]) -> None:
        """Gather the settings of requests that may share a forward: one injection layer, one width of the block.

        Args:
            model: the network.
            requests: each at its own block.
        """
        self.model, self.requests = model, requests
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
        """Commit once more for each request.

        Args:
            ids: [B T] the current blocks.
            is_open: [B T] positions still to be filled; at least one in each row.
            cache: finished blocks before these.
            on_commit: called with each commit.

        Returns:
            [B T] the blocks after it.
        """
        hidden = self.model.hidden(ids, injection=self._injection(ids), cache=cache)
        logits = deployed_logits(self.model, hidden[is_open])
        row_of, _ = is_open.nonzero(as_tuple=True)
        scores = self._adjust(logits, row_of, ids)
        rows, cols, picked = self._choose(scores, is_open)
        tokens = self._draw(scores[picked], rows)
        self._record(rows, cols, tokens, logits[picked], ids.shape[1], on_commit)
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
        layers = {request.plan.layer for request in self.requests if request.plan is not None}
        if self.vectors is None:
            return None
        (layer,) = layers
        return Injection(self.vectors, ids == self.model.config.mask_id, layer)

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
        cols: Int[Tensor, " m"],
        tokens: Int[Tensor, " m"],
        logits: Float[Tensor, "m V"],
        width: int,
        on_commit: OnCommit | None,
    ) -> None:
        chosen = logits.gather(1, tokens[:, None])[:, 0]
        norm = logits.logsumexp(-1)
        columns = [values.tolist() for values in (cols, tokens, chosen, chosen - norm)]
        others = self._alternatives(logits - norm[:, None], rows)
        place = 0
        for request, count in zip(self.requests, torch.bincount(rows).tolist(), strict=True):
            here = slice(place, place + count)
            start = request.block_start(self.model.config.block)
            picked = Picked([start + col for col in columns[0][here]], *(values[here] for values in columns[1:]))
            commit = request.commit(picked, start + width, others[here])
            if on_commit is not None:
                on_commit(commit)
            place += count

    def _alternatives(
        self, logprobs: Float[Tensor, "m V"], rows: Int[Tensor, " m"]
    ) -> list[tuple[tuple[int, float], ...]]:
        """The most likely ids of each place, as many as its request wants."""
        wanted = [self.requests[row].sampling.num_alternatives for row in rows.tolist()]
        if not any(wanted):
            return []
        values, ids = logprobs.topk(min(max(wanted), logprobs.shape[1]))
        return [
            tuple(zip(row_ids[:count], row_values[:count], strict=True))
            for row_ids, row_values, count in zip(ids.tolist(), values.tolist(), wanted, strict=True)
        ]


def _score_dtype(dtype: torch.dtype) -> torch.dtype:
    return torch.promote_types(dtype, torch.float32)
