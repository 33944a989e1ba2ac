"""One step of requests that share a forward: from states to scores, order, draw, record.

Letters: B requests in a forward, V vocabulary, n open positions (still to be filled) of all of them, m positions
that this step commits, g open positions of requests with guidance.
"""

from collections.abc import Sequence

import torch
from jaxtyping import Float, Int
from torch import Tensor

from vitrail.generate.requests import OnCommit, Picked, Request
from vitrail.generate.sampling import banned_ids, draw_tokens, log_confidence, penalise_repetition
from vitrail.generate.trace import Ranked
from vitrail.model import ConceptHead, ConceptLM
from vitrail.steer import deployed_logits

CONFIDENCE_DIGITS = 4
"""Positions that only rounding errors tell apart (those of a block without any text before it are exactly tied) fill
from the left, whatever the batch. The grid of the release has no such rule."""


class Step:
    """One step of some requests; holds what does not change between steps."""

    def __init__(self, model: ConceptLM, requests: Sequence[Request]) -> None:
        """Gather the settings of requests that share a forward.

        Args:
            model: the network.
            requests: any.
        """
        self.model, self.requests = model, requests
        samplings, vocab_size = [request.sampling for request in requests], model.config.vocab_size
        self.temperature = self._column([sampling.temperature for sampling in samplings])
        self.top_p = self._column([sampling.top_p for sampling in samplings])
        self.top_k = self._column([min(sampling.top_k or vocab_size, vocab_size) for sampling in samplings]).long()
        self.penalty = self._column([sampling.repetition_penalty for sampling in samplings])
        self.guidance = self._column([sampling.guidance for sampling in samplings])
        self.is_repeating = any(sampling.repetition_penalty != 1 for sampling in samplings)
        self.policies = [sampling.policy for sampling in samplings]
        self.bias = self._bias()

    def __call__(
        self,
        states: Float[Tensor, "n D"],
        rows: Int[Tensor, " n"],
        places: Int[Tensor, " n"],
        row_lengths: Sequence[int],
        on_commit: OnCommit | None = None,
        unguided: Float[Tensor, "g D"] | None = None,
    ) -> None:
        """Commit once more for each request that has open positions.

        Args:
            states: [n D] final states that predict the open positions, request by request, left to right.
            rows: [n] which request each belongs to.
            places: [n] absolute position of each.
            row_lengths: [B] length of each request's row in this forward.
            on_commit: called with each commit.
            unguided: [g D] states of the same positions from a masked prompt, of requests with guidance.
        """
        logits = deployed_logits(self.model, states)
        scores = logits if unguided is None else self._guided(logits, deployed_logits(self.model, unguided), rows)
        # A sum is finite only where all logits are; it needs no second table of them.
        is_finite = torch.isfinite(scores.sum(-1))
        if not is_finite.all():
            self._fail(rows[~is_finite], places[~is_finite])
            failed = torch.tensor([request.failure is not None for request in self.requests], device=rows.device)
            kept = ~failed[rows]
            states, logits, scores, rows, places = (part[kept] for part in (states, logits, scores, rows, places))
        scores = self._adjust(scores, rows)
        picked = self._choose(scores, rows)
        tokens = self._draw(scores[picked], rows[picked])
        self._record(states[picked], logits[picked], rows[picked], places[picked], tokens, row_lengths, on_commit)

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

    def _guided(
        self, logits: Float[Tensor, "n V"], unguided: Float[Tensor, "g V"], rows: Int[Tensor, " n"]
    ) -> Float[Tensor, "n V"]:
        weight = self.guidance[rows]
        is_guided = weight > 0
        scale = (1 + weight[is_guided])[:, None].to(logits.dtype)
        return logits.index_put((is_guided,), unguided + scale * (logits[is_guided] - unguided))

    def _fail(self, rows: Int[Tensor, " w"], places: Int[Tensor, " w"]) -> None:
        # Backwards, so that the first position of each request is the one that is told.
        for row, place in zip(reversed(rows.tolist()), reversed(places.tolist()), strict=True):
            self.requests[row].fail_at(place)

    def _adjust(self, scores: Float[Tensor, "n V"], rows: Int[Tensor, " n"]) -> Float[Tensor, "n V"]:
        scores = scores + (self.bias if self.bias.shape[0] == 1 else self.bias[rows])
        if not self.is_repeating:
            return scores
        is_seen = torch.zeros(len(self.requests), scores.shape[1], dtype=torch.bool, device=scores.device)
        for number, request in enumerate(self.requests):
            is_seen[number, request.row] = True
        return penalise_repetition(scores, is_seen[rows], self.penalty[rows][:, None].to(scores.dtype))

    def _choose(self, scores: Float[Tensor, "n V"], rows: Int[Tensor, " n"]) -> Int[Tensor, " m"]:
        """Numbers of the open positions that are filled in now, in the order of commitment within a request."""
        confidence, picked, start = log_confidence(scores).tolist(), list[int](), 0
        counts = torch.bincount(rows, minlength=len(self.requests)).tolist()
        for request, policy, count in zip(self.requests, self.policies, counts, strict=True):
            if count:
                values = confidence[start : start + count]
                if request.sampling.grid == "attention":
                    values = [round(value, CONFIDENCE_DIGITS) for value in values]
                picked += [start + place for place in policy(values, request.moment)]
            start += count
        return torch.tensor(picked, dtype=torch.long, device=rows.device)

    def _draw(self, scores: Float[Tensor, "m V"], rows: Int[Tensor, " m"]) -> Int[Tensor, " m"]:
        counts = torch.bincount(rows, minlength=len(self.requests)).tolist()
        uniform = [
            request.uniform(count) if request.sampling.temperature > 0 else torch.zeros(count, dtype=torch.float64)
            for request, count in zip(self.requests, counts, strict=True)
        ]
        options = self.temperature[rows], self.top_p[rows], self.top_k[rows]
        return draw_tokens(scores, *options, torch.cat(uniform).to(scores.device))

    def _record(
        self,
        states: Float[Tensor, "m D"],
        logits: Float[Tensor, "m V"],
        rows: Int[Tensor, " m"],
        places: Int[Tensor, " m"],
        tokens: Int[Tensor, " m"],
        row_lengths: Sequence[int],
        on_commit: OnCommit | None,
    ) -> None:
        chosen = logits.gather(1, tokens[:, None])[:, 0]
        norm = logits.logsumexp(-1)
        positions, ids, values, logprobs = (part.tolist() for part in (places, tokens, chosen, chosen - norm))
        wanted = [self.requests[row].sampling for row in rows.tolist()]
        others = self._alternatives(logits - norm[:, None], [sampling.num_alternatives for sampling in wanted])
        num_concepts = [sampling.num_concepts for sampling in wanted]
        known = _most_active(self.model.known_head, states, num_concepts)
        discovered = _most_active(self.model.unknown_head, states, num_concepts)
        start = 0
        counts = torch.bincount(rows, minlength=len(self.requests)).tolist()
        for request, row_length, count in zip(self.requests, row_lengths, counts, strict=True):
            here = slice(start, start + count)
            start += count
            if not count:
                continue
            picked = Picked(
                positions=positions[here],
                tokens=ids[here],
                logits=values[here],
                logprobs=logprobs[here],
                # A companion's wish is no reason for records here.
                alternatives=others[here] if request.sampling.num_alternatives else (),
                known=known[here] if request.sampling.num_concepts else (),
                discovered=discovered[here] if request.sampling.num_concepts else (),
            )
            commit = request.commit(picked, row_length)
            if on_commit is not None:
                on_commit(commit)

    def _alternatives(self, logprobs: Float[Tensor, "m V"], wanted: Sequence[int]) -> tuple[Ranked, ...]:
        """The most likely ids of each place, as many as its request wants."""
        if not any(wanted):
            return ()
        return _ranked(*logprobs.topk(min(max(wanted), logprobs.shape[1])), wanted)


def _most_active(head: ConceptHead, states: Float[Tensor, "m D"], wanted: Sequence[int]) -> tuple[Ranked, ...]:
    """The most active concepts of each state with their activations, as many as its request wants."""
    if not any(wanted) or not head.num_concepts:
        return ()
    output = head.features(states, min(max(wanted), head.num_concepts))
    return _ranked(output.logits.sigmoid(), output.ids, wanted)


def _ranked(values: Float[Tensor, "m k"], ids: Int[Tensor, "m k"], wanted: Sequence[int]) -> tuple[Ranked, ...]:
    pairs = zip(ids.tolist(), values.tolist(), wanted, strict=True)
    return tuple(tuple(zip(row_ids[:count], row_values[:count], strict=True)) for row_ids, row_values, count in pairs)


def _score_dtype(dtype: torch.dtype) -> torch.dtype:
    return torch.promote_types(dtype, torch.float32)
