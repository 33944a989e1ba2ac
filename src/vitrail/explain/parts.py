"""From numbers to the parts of the document: names, ranks, shares.

One rule throughout: what is listed is sorted by magnitude with its sign kept, and what is not listed is
summed apart. `J` chunks, `Q` generated tokens, `k` concepts kept per token, `T` positions of the row.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor

from vitrail.atlas import ConceptLibrary
from vitrail.explain.concepts import Decomposition, HeadShare
from vitrail.explain.document import (
    ChunkSpan,
    Concepts,
    ConceptsOfChunk,
    ConceptsOfToken,
    GeneratedToken,
    Inputs,
    InputsOfChunk,
    InputsOfToken,
    PromptToken,
    RankedConcept,
    RankedInput,
    Shares,
    SourceHit,
    Sources,
    SourcesOfChunk,
)
from vitrail.explain.inputs import InputScores
from vitrail.explain.sources import Hit, best_overlap
from vitrail.text import Tokenizer

Span = tuple[int, int]
Head = Literal["known", "discovered"]
Names = dict[tuple[Head, int], str]


@dataclass(frozen=True)
class Words:
    """The row as text.

    Attributes:
        tokenizer: of the model.
        prompt_ids: the prompt.
        token_ids: the answer.
    """

    tokenizer: Tokenizer
    prompt_ids: tuple[int, ...]
    token_ids: tuple[int, ...]

    def text(self, ids: Sequence[int]) -> str:
        """Tokens as running text, without special tokens."""
        return self.tokenizer.decode(list(ids))

    def prompt_tokens(self) -> list[PromptToken]:
        """The prompt, token by token."""
        return [
            PromptToken(pos=pos, id=token, text=self.tokenizer.token_text(token))
            for pos, token in enumerate(self.prompt_ids)
        ]

    def generated_tokens(
        self, steps: Int[Tensor, " Q"], logits: Float[Tensor, " Q"], logprobs: Float[Tensor, " Q"]
    ) -> list[GeneratedToken]:
        """The answer, token by token.

        Args:
            steps: [Q] denoising steps.
            logits: [Q] recorded logits.
            logprobs: [Q] recorded log-probabilities, nats.

        Returns:
            one entry per token.
        """
        numbers = zip(self.token_ids, steps.tolist(), logits.tolist(), logprobs.exp().tolist(), strict=True)
        return [
            GeneratedToken(pos=pos, id=token, text=self.tokenizer.token_text(token), step=step, logit=logit, prob=prob)
            for pos, (token, step, logit, prob) in enumerate(numbers)
        ]

    def chunk_spans(self, spans: Sequence[Span]) -> list[ChunkSpan]:
        """The chunks of the answer.

        Args:
            spans: `[start, stop)` of generated tokens.

        Returns:
            one entry per chunk.
        """
        return [
            ChunkSpan(chunk=number, start=start, stop=stop, text=self.text(self.token_ids[start:stop]))
            for number, (start, stop) in enumerate(spans)
        ]

    def ranked(self, scores: Float[Tensor, " T"], top: int) -> list[RankedInput]:
        """The positions of a row that matter most.

        Args:
            scores: [T] one score per position.
            top: how many at most; positions that score exactly 0 (masked ones) are left out.

        Returns:
            largest |score| first, equal ones in the order of the row.
        """
        num_prompt, values = len(self.prompt_ids), scores.tolist()
        order = sorted((i for i, value in enumerate(values) if value), key=lambda i: (-abs(values[i]), i))
        row = self.prompt_ids + self.token_ids
        return [
            RankedInput(
                pos=i if i < num_prompt else i - num_prompt,
                where="prompt" if i < num_prompt else "generated",
                text=self.tokenizer.token_text(row[i]) if i < len(row) else "",
                score=values[i],
            )
            for i in order[:top]
        ]


def inputs_part(
    scores: tuple[InputScores, InputScores | None],
    words: Words,
    spans: Sequence[Span],
    steps: int,
    top: int,
    baseline: Literal["mask", "untrained_mask"],
) -> Inputs:
    """The inputs of chunks and tokens.

    Args:
        scores: of chunks, and of tokens or None.
        words: the row as text.
        spans: the chunks.
        steps: nodes of the integral.
        top: inputs listed.
        baseline: what an absent token is.

    Returns:
        that part of the document.
    """
    chunks, tokens = scores
    return Inputs(
        baseline=baseline,
        steps=steps,
        chunks=[_inputs_of_chunk(chunks, number, words, top) for number in range(len(spans))],
        tokens=[]
        if tokens is None
        else [_inputs_of_token(tokens, pos, words, top) for pos in range(len(tokens.change))],
    )


def _inputs_of_chunk(scores: InputScores, number: int, words: Words, top: int) -> InputsOfChunk:
    row, injection = scores.tokens[number], float(scores.injection[number])
    num_prompt = len(words.prompt_ids)
    sizes = (float(row[:num_prompt].abs().sum()), float(row[num_prompt:].abs().sum()), abs(injection))
    prompt_share, generated_share, injection_share = (size / max(sum(sizes), 1e-12) for size in sizes)
    return InputsOfChunk(
        chunk=number,
        scores=row[:num_prompt].tolist(),
        ranked=words.ranked(row, top),
        prompt_share=prompt_share,
        generated_share=generated_share,
        injection_share=injection_share,
        injection=injection,
        change=float(scores.change[number]),
        completeness_gap=_gap(scores, number),
    )


def _inputs_of_token(scores: InputScores, pos: int, words: Words, top: int) -> InputsOfToken:
    return InputsOfToken(
        pos=pos,
        ranked=words.ranked(scores.tokens[pos], top),
        change=float(scores.change[pos]),
        completeness_gap=_gap(scores, pos),
    )


def _gap(scores: InputScores, row: int) -> float:
    total, change = float(scores.tokens[row].sum() + scores.injection[row]), float(scores.change[row])
    return abs(total - change) / max(abs(change), 1e-6)


def concepts_part(
    decomposition: Decomposition,
    penalties: Float[Tensor, " Q"],
    library: ConceptLibrary,
    spans: Sequence[Span],
    top: int,
) -> Concepts:
    """The concepts of chunks and tokens.

    Args:
        decomposition: of all generated tokens.
        penalties: [Q] what steering subtracted from each token's logit.
        library: names of the concepts.
        spans: the chunks.
        top: concepts listed.

    Returns:
        that part of the document.
    """
    names = {(card.head, card.concept_id): card.name for card in library.cards}
    chunks = [
        ConceptsOfChunk(chunk=number, **_shares(decomposition, start, stop, names, top))
        for number, (start, stop) in enumerate(spans)
    ]
    tokens = [
        ConceptsOfToken(
            pos=pos,
            token_logit=float(decomposition.logit[pos]),
            steering_penalty=float(penalties[pos]),
            **_shares(decomposition, pos, pos + 1, names, top),
        )
        for pos in range(len(penalties))
    ]
    return Concepts(chunks=chunks, tokens=tokens)


def _shares(decomposition: Decomposition, start: int, stop: int, names: Names, top: int) -> dict[str, Any]:
    """The fields of `Shares` for the tokens `[start, stop)` together."""
    known, discovered = decomposition.known, decomposition.discovered
    concepts = _summed("known", known, start, stop, names) + _summed("discovered", discovered, start, stop, names)
    concepts.sort(key=lambda concept: (-abs(concept.centred), concept.head != "known", concept.concept_id))
    ranked = concepts[:top]
    return Shares(
        known=_sum(known.total, start, stop),
        discovered=_sum(discovered.total, start, stop),
        residual=_sum(decomposition.residual, start, stop),
        known_centred=_sum(known.total - known.total_common, start, stop),
        discovered_centred=_sum(discovered.total - discovered.total_common, start, stop),
        residual_centred=_sum(decomposition.residual - decomposition.residual_common, start, stop),
        unlisted_known=_sum(known.total, start, stop) - _listed(ranked, "known"),
        unlisted_discovered=_sum(discovered.total, start, stop) - _listed(ranked, "discovered"),
        ranked=ranked,
    ).model_dump()


def _summed(head: Head, share: HeadShare, start: int, stop: int, names: Names) -> list[RankedConcept]:
    """Every concept kept at one of the tokens, with its contributions summed over them."""
    ids, places = torch.unique(share.ids[start:stop], return_inverse=True)
    columns = [
        torch.zeros(len(ids), dtype=torch.float64, device=ids.device)
        .index_add_(0, places.flatten(), values[start:stop].flatten().double())
        .tolist()
        for values in (share.contribution, share.centred, share.weights)
    ]
    return [
        RankedConcept(
            head=head,
            concept_id=concept_id,
            name=names.get((head, concept_id), f"{head} #{concept_id}"),
            contribution=contribution,
            centred=centred,
            weight=weight / (stop - start),
        )
        for concept_id, contribution, centred, weight in zip(ids.tolist(), *columns, strict=True)
    ]


def _sum(values: Float[Tensor, " Q"], start: int, stop: int) -> float:
    return float(values[start:stop].double().sum())


def _listed(ranked: Sequence[RankedConcept], head: Head) -> float:
    return sum(concept.contribution for concept in ranked if concept.head == head)


def sources_part(hits: Sequence[Sequence[Hit]], answers: Sequence[Sequence[int]], tokenizer: Tokenizer) -> Sources:
    """The training passages near each chunk.

    Args:
        hits: for each chunk what the index found.
        answers: for each chunk its tokens.
        tokenizer: of the model.

    Returns:
        that part of the document.
    """
    pairs = zip(hits, answers, strict=True)
    return Sources(
        chunks=[
            SourcesOfChunk(chunk=number, hits=[_source_hit(hit, answer, tokenizer) for hit in found])
            for number, (found, answer) in enumerate(pairs)
        ]
    )


def _source_hit(hit: Hit, answer: Sequence[int], tokenizer: Tokenizer) -> SourceHit:
    chunk = hit.chunk
    return SourceHit(
        row=chunk.row,
        chunk_id=chunk.chunk_id,
        document_id=chunk.document_id,
        title=chunk.title,
        source=chunk.source,
        license=chunk.license,
        similarity=hit.similarity,
        text=chunk.text,
        overlap=best_overlap(answer, chunk.text, tokenizer),
    )
