"""Integrated Gradients from the `[MASK]` embedding: which input tokens a prediction rests on (§6.1.1).

The explained function is the logit as deployed, on the exact snapshot in which the token was chosen and
with the steering in force. Embeddings and injection run along one joint path, from "nothing is known and
nothing injected" to what was:

    x(s) = m + s (e − m),   injection(s) = s · α g,   0 ≤ s ≤ 1

    score_t = (e_t − m) · ∫ ∂logit/∂x_t ds,   score_injection = α g · ∫ ∂logit/∂injection ds

so all scores together are the change of the logit along the path, up to the error of the integral
(Gauss–Legendre nodes), which is reported. Masked positions score exactly 0. All targets of one snapshot
share the forward pass; each explained sum of targets costs one backward pass. `S` nodes, `n` targets of
the snapshot, `Q` explained sums.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from vitrail.explain.snapshots import PASS_TOKENS, Snapshot, injection_for
from vitrail.model import ConceptLM, Injection
from vitrail.steer import SteerPlan


@dataclass(frozen=True)
class InputScores:
    """Scores of inputs for Q explained sums of logits.

    Attributes:
        tokens: [Q T] score of each position of the row, logits.
        injection: [Q] score of the injected direction.
        change: [Q] the explained sum minus its value at the baseline.
    """

    tokens: Float[Tensor, "Q T"]
    injection: Float[Tensor, " Q"]
    change: Float[Tensor, " Q"]


def integrated_gradients(
    model: ConceptLM,
    snapshot: Snapshot,
    sums: Float[Tensor, "Q n"],
    plan: SteerPlan | None = None,
    num_steps: int = 16,
) -> InputScores:
    """Score the inputs of one snapshot.

    Args:
        model: the network.
        snapshot: the row and the n tokens committed from it.
        sums: [Q n] which targets are explained together: the identity explains each token by itself,
            a row of ones the whole commit.
        plan: the steering in force; None where none was.
        num_steps: nodes of the integral.

    Returns:
        the scores, fp32 (fp64 for an fp64 model).

    Cost: num_steps + 2 forward passes of the row, and num_steps · Q backward passes.
    """
    path = _Path.of(model, snapshot, plan)
    nodes, node_weights = _gauss_legendre(num_steps)
    tokens = torch.zeros(len(sums), len(snapshot.ids), dtype=_dtype(path.end), device=path.end.device)
    injected = torch.zeros(len(sums), dtype=tokens.dtype, device=tokens.device)
    slab = max(1, PASS_TOKENS // len(snapshot.ids))
    for start in range(0, num_steps, slab):
        at = nodes[start : start + slab].to(path.end)
        weights = node_weights[start : start + slab].to(tokens)
        points, vectors = path.at(at)
        with torch.enable_grad():
            points.requires_grad_()
            vectors.requires_grad_()
            explained = path.logits(points, vectors).to(tokens.dtype) @ sums.to(tokens).T
            for q in range(len(sums)):
                gradients = torch.autograd.grad(
                    explained[:, q].sum(),
                    [points, vectors],
                    retain_graph=q < len(sums) - 1,
                    allow_unused=True,
                )
                tokens[q] += torch.einsum("s,std,td->t", weights, gradients[0].to(tokens), path.step.to(tokens))
                if gradients[1] is not None:
                    injected[q] += torch.einsum("s,sd,d->", weights, gradients[1].to(tokens), path.vector.to(tokens))
    with torch.no_grad():
        ends = path.logits(*path.at(torch.tensor([0.0, 1.0]).to(path.end))).to(tokens.dtype) @ sums.to(tokens).T
    return InputScores(tokens=tokens, injection=injected, change=ends[1] - ends[0])


def score_inputs(
    model: ConceptLM,
    snapshots: Sequence[Snapshot],
    spans: Sequence[tuple[int, int]],
    plan: SteerPlan | None,
    num_steps: int,
    per_token: bool,
) -> tuple[InputScores, InputScores | None]:
    """Score the inputs of every chunk of an answer, and of every token where wanted.

    Args:
        model: the network.
        snapshots: of one generation.
        spans: J chunks `[start, stop)` of generated tokens.
        plan: the steering in force; None where none was.
        num_steps: nodes of the integral.
        per_token: whether tokens are explained one by one; otherwise the targets of a snapshot that lie
            in one chunk are summed before the backward pass, which is several times cheaper.

    Returns:
        scores of the chunks (`tokens` [J T], summed over their tokens), and of the tokens ([Q T], in the
        order of the text) or None. T is the longest row.
    """
    num_tokens = sum(len(snapshot.places) for snapshot in snapshots)
    length = max(len(snapshot.ids) for snapshot in snapshots)
    membership = torch.zeros(len(spans), num_tokens, device=snapshots[0].ids.device)
    for number, (start, stop) in enumerate(spans):
        membership[number, start:stop] = 1.0
    chunks, tokens = _no_scores(len(spans), length, model), _no_scores(num_tokens, length, model)
    for snapshot in snapshots:
        inside = membership[:, snapshot.places]
        touched = inside.any(1).nonzero()[:, 0]
        if per_token:
            each = integrated_gradients(model, snapshot, torch.eye(len(snapshot.places)), plan, num_steps)
            _accumulate(tokens, each, snapshot.places)
            _accumulate(chunks, _combine(each, inside[touched]), touched)
        elif len(touched):
            _accumulate(chunks, integrated_gradients(model, snapshot, inside[touched], plan, num_steps), touched)
    return chunks, tokens if per_token else None


def _no_scores(count: int, length: int, model: ConceptLM) -> InputScores:
    weight = model.transformer.tok_emb.weight.detach()
    zeros = torch.zeros(count, length, dtype=_dtype(weight), device=weight.device)
    return InputScores(tokens=zeros, injection=zeros.new_zeros(count), change=zeros.new_zeros(count))


def _combine(scores: InputScores, sums: Float[Tensor, "J n"]) -> InputScores:
    sums = sums.to(scores.tokens)
    return InputScores(sums @ scores.tokens, sums @ scores.injection, sums @ scores.change)


def _accumulate(total: InputScores, part: InputScores, rows: Int[Tensor, " n"]) -> None:
    total.tokens[rows, : part.tokens.shape[1]] += part.tokens
    total.injection[rows] += part.injection
    total.change[rows] += part.change


@dataclass(frozen=True)
class _Path:
    """The straight line from the baseline to the input, and the logits along it."""

    model: ConceptLM
    snapshot: Snapshot
    baseline: Float[Tensor, "1 D"]
    end: Float[Tensor, "T D"]
    injection: Injection | None

    @classmethod
    def of(cls, model: ConceptLM, snapshot: Snapshot, plan: SteerPlan | None) -> "_Path":
        with torch.no_grad():
            ids = snapshot.ids[None]
            baseline = model.embed(ids.new_full((1, 1), model.config.mask_id))[0]
            return cls(model, snapshot, baseline, model.embed(ids)[0], injection_for(model, [snapshot], plan))

    @property
    def step(self) -> Float[Tensor, "T D"]:
        return self.end - self.baseline

    @property
    def vector(self) -> Float[Tensor, " D"]:
        return torch.zeros_like(self.end[0]) if self.injection is None else self.injection.vector[0]

    def at(self, s: Float[Tensor, " S"]) -> tuple[Float[Tensor, "S T D"], Float[Tensor, "S D"]]:
        return self.baseline + s[:, None, None] * self.step, s[:, None] * self.vector

    def logits(self, points: Float[Tensor, "S T D"], vectors: Float[Tensor, "S D"]) -> Float[Tensor, "S n"]:
        injection = None
        if self.injection is not None:
            mask = self.injection.mask.expand(len(points), -1)
            injection = Injection(vector=vectors, mask=mask, layer=self.injection.layer)
        hidden = self.model.hidden(embeddings=points, injection=injection)[:, self.snapshot.reads]
        targets = self.model.transformer.lm_head.weight.detach()[self.snapshot.token_ids]
        return (deployed_states(self.model, hidden) * targets).sum(-1)


def deployed_states(model: ConceptLM, hidden: Float[Tensor, "B T D"]) -> Float[Tensor, "B T D"]:
    """What enters the LM head: the sum of all parts, which is h itself where the residual is kept.

    Args:
        model: the network.
        hidden: [B T D] states after the final norm.

    Returns:
        [B T D] composed states, differentiable.
    """
    if model.has_residual:
        return hidden
    return model.decompose(hidden, with_logits=False).composed


def _gauss_legendre(num_steps: int) -> tuple[Tensor, Tensor]:
    """Nodes and weights on [0, 1]; exact for polynomials up to degree 2·num_steps − 1."""
    nodes, weights = np.polynomial.legendre.leggauss(num_steps)
    return torch.from_numpy((nodes + 1) / 2), torch.from_numpy(weights / 2)


def _dtype(like: Tensor) -> torch.dtype:
    return torch.float64 if like.dtype == torch.float64 else torch.float32
