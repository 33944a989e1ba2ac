"""The reference's concept attribution of a generation, token by token and chunk by chunk (batch 1).

Each token is explained from the forward that committed it:

    ℓ_y = Σ_known σ(z_c) E_c·W_y + Σ_discovered σ(z_j) U_j·W_y + rest

The rest is a difference: it holds the true residual, concepts summed but not reported, and rounding, and so
proves nothing. `T` positions of the row, `k` concepts listed per token, `n` tokens of a commit.
"""

from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from vitrail.compat.generation import Commit, ReferenceGeneration, reference_generation
from vitrail.compat.options import ReferenceIds, ReferenceOptions
from vitrail.errors import ConfigError
from vitrail.model import ConceptHead, ConceptLM, DecomposedOutput

Kind = Literal["known", "discovered"]
NEVER_FILLED = -2
_DEFAULT_DISCOVERED = 64
_LEAST_MASS = 1e-8


@dataclass(frozen=True, eq=False)
class HeadAttribution:
    """Listed concepts of one head at every position; zero where nothing was committed.

    Attributes:
        ids: [T k] best first.
        weights: [T k] σ(logit).
        contributions: [T k] in logits of the chosen token, signed.
    """

    ids: Int[Tensor, "T k"]
    weights: Float[Tensor, "T k"]
    contributions: Float[Tensor, "T k"]


@dataclass(frozen=True, eq=False)
class ConceptAttribution:
    """Why each token of row 0 was likely, in concepts.

    Attributes:
        generation: the run.
        is_committed: [T] positions that a step filled; one overwritten after an end of turn stays among them.
        target_ids: [T] the token that was chosen.
        target_logits: [T] its logit in that step, before penalties.
        steps: [T] that step, −2 where none.
        known: named concepts.
        discovered: discovered concepts.
        rest: [T] target logit minus all listed contributions.
    """

    generation: ReferenceGeneration
    is_committed: Bool[Tensor, " T"]
    target_ids: Int[Tensor, " T"]
    target_logits: Float[Tensor, " T"]
    steps: Int[Tensor, " T"]
    known: HeadAttribution
    discovered: HeadAttribution
    rest: Float[Tensor, " T"]


@dataclass(frozen=True)
class ChunkAttribution:
    """Concepts of one chunk.

    Attributes:
        start: first position.
        stop: position after the last.
        rest_percent: 100 × mean over committed tokens of rest / mass, signed; None without such a token.
        entries: (head, concept id within its head, score), largest magnitude first.
    """

    start: int
    stop: int
    rest_percent: float | None
    entries: tuple[tuple[Kind, int, float], ...]


def attribute_concepts(
    model: ConceptLM,
    prompt: Int[Tensor, "1 P"],
    options: ReferenceOptions,
    *,
    ids: ReferenceIds | None = None,
    num_discovered: int | None = None,
) -> ConceptAttribution:
    """Generate one row and attribute every committed token to concepts.

    Args:
        model: the network, interpretable and with a known top-k.
        prompt: [1 P] token ids.
        options: how to generate, without guidance.
        ids: control tokens; None takes those of the configuration.
        num_discovered: discovered concepts listed per token; None takes `unknown_topk`, or 64 without one.

    Returns:
        the attribution. Unlike the reference, for every kind of discovered head.

    Raises:
        ConfigError: guidance, or a model without a known top-k.
    """
    if options.cfg_scale:
        raise ConfigError(f"concept attribution cannot explain guided logits; set cfg_scale {options.cfg_scale} to 0")
    if not model.config.interpretable or model.known_head.selection.reported is None:
        raise ConfigError("concept attribution needs a known head with top-k (interpretable, topk_known)")
    recorder = _Recorder(model, num_discovered or model.config.top_k_discovered or _DEFAULT_DISCOVERED)
    generation = reference_generation(model, prompt, options, ids=ids, on_commit=recorder.record)
    return recorder.attribution(generation)


class _Recorder:
    """Collects the attribution of each commit."""

    def __init__(self, model: ConceptLM, num_discovered: int) -> None:
        self.model, self.num_discovered = model, num_discovered
        self.known: list[tuple[Tensor, Tensor, Tensor]] = []
        self.discovered: list[tuple[Tensor, Tensor, Tensor]] = []

    def record(self, commit: Commit, output: DecomposedOutput) -> None:
        """Attribute the tokens of one commit, from the output of its forward."""
        device = output.hidden.device
        at = torch.tensor(commit.positions, device=device)
        lm_rows = self.model.transformer.lm_head.weight[torch.tensor(commit.tokens, device=device)]
        known_ids, known_logits = output.known_ids[commit.row, at], output.known_logits[commit.row, at]
        best = self.model.unknown_head.features(output.hidden[commit.row, at], self.num_discovered)
        self.known.append(_contributions(self.model.known_head, known_ids, known_logits, lm_rows))
        self.discovered.append(_contributions(self.model.unknown_head, best.ids, best.logits, lm_rows))

    def attribution(self, generation: ReferenceGeneration) -> ConceptAttribution:
        """All commits, laid out over the positions of the row."""
        row = generation.rows[0]
        at = torch.tensor([pos for commit in generation.commits for pos in commit.positions], device=row.device)
        known, discovered = (_over_positions(parts, at, len(row)) for parts in (self.known, self.discovered))
        logits = torch.tensor(
            [logit for commit in generation.commits for logit in commit.target_logits], dtype=torch.float64
        )
        tokens = torch.tensor([token for commit in generation.commits for token in commit.tokens])
        steps = torch.tensor([commit.step for commit in generation.commits for _ in commit.positions])
        target_logits = known.contributions.new_zeros(len(row)).index_copy(0, at, logits.to(known.contributions))
        return ConceptAttribution(
            generation=generation,
            is_committed=torch.zeros_like(row, dtype=torch.bool).index_fill(0, at, True),
            target_ids=torch.zeros_like(row).index_copy(0, at, tokens.to(row)),
            target_logits=target_logits,
            steps=torch.full_like(row, NEVER_FILLED).index_copy(0, at, steps.to(row)),
            known=known,
            discovered=discovered,
            rest=target_logits - known.contributions.sum(-1) - discovered.contributions.sum(-1),
        )


def _contributions(
    head: ConceptHead, ids: Int[Tensor, "n k"], logits: Float[Tensor, "n k"], lm_rows: Float[Tensor, "n D"]
) -> tuple[Tensor, Tensor, Tensor]:
    weights = logits.sigmoid()
    if not ids.shape[-1]:
        return ids, weights, weights
    return ids, weights, weights * head.dots_for(lm_rows, ids)


def _over_positions(parts: list[tuple[Tensor, Tensor, Tensor]], at: Int[Tensor, " n"], length: int) -> HeadAttribution:
    ids, weights, contributions = (torch.cat(part) for part in zip(*parts, strict=True))
    return HeadAttribution(
        *(
            part.new_zeros(length, part.shape[1]).index_copy(0, at.to(part.device), part)
            for part in (ids, weights, contributions)
        )
    )


def chunk_spans(tokens: list[int], start: int, eoc_id: int, eot_id: int | None) -> list[tuple[int, int]]:
    """The chunks of a final row.

    Args:
        tokens: the row.
        start: end of the prompt.
        eoc_id: end-of-chunk token, which belongs to no chunk.
        eot_id: end-of-turn token, at which the text ends; None where the model has none.

    Returns:
        half-open spans; two separators in a row give an empty one, an empty last piece gives none.
    """
    end = tokens.index(eot_id, start) if eot_id is not None and eot_id in tokens[start:] else len(tokens)
    separators = [pos for pos in range(start, end) if tokens[pos] == eoc_id]
    spans = list(zip([start, *(pos + 1 for pos in separators)], [*separators, end], strict=True))
    return spans if spans[-1][0] < spans[-1][1] else spans[:-1]


def chunk_attributions(attribution: ConceptAttribution, eoc_id: int, eot_id: int | None) -> list[ChunkAttribution]:
    """The concepts of each chunk, as shares of the mass of its tokens.

    Args:
        attribution: of a run.
        eoc_id: end-of-chunk token.
        eot_id: end-of-turn token, or None.

    Returns:
        one entry per chunk. Scores are divided by the chunk's length, uncommitted positions included.
    """
    generation = attribution.generation
    spans = chunk_spans(generation.tokens, generation.prompt_length, eoc_id, eot_id)
    return [_chunk(attribution, start, stop) for start, stop in spans]


def _chunk(attribution: ConceptAttribution, start: int, stop: int) -> ChunkAttribution:
    at = start + attribution.is_committed[start:stop].nonzero()[:, 0]
    rest = attribution.rest[at]
    heads: dict[Kind, HeadAttribution] = {"known": attribution.known, "discovered": attribution.discovered}
    mass = sum((head.contributions[at].abs().sum(-1) for head in heads.values()), rest.abs()).clamp_min(_LEAST_MASS)
    entries = [
        (kind, concept, score)
        for kind, head in heads.items()
        for concept, score in _scores(head.ids[at], head.contributions[at] / mass[:, None], stop - start)
    ]
    entries.sort(key=lambda entry: -abs(entry[2]))
    return ChunkAttribution(start, stop, 100 * float((rest / mass).mean()) if len(at) else None, tuple(entries))


def _scores(ids: Int[Tensor, "n k"], shares: Float[Tensor, "n k"], length: int) -> list[tuple[int, float]]:
    if not ids.numel():
        return []
    concepts, place = torch.unique(ids.flatten(), return_inverse=True)
    totals = shares.new_zeros(len(concepts)).index_add(0, place, shares.flatten()) / length
    return list(zip(concepts.tolist(), totals.tolist(), strict=True))
