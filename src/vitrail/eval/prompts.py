"""Which concepts and which prompts the steering benchmark uses: drawn by seed, none excluded.

Prompts are beginnings of held-out chunks that do not carry the concept; for suppression they are stretches
that end right after a span of the concept, so that the prompt itself carries it.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from vitrail.atlas import Chunk
from vitrail.text import Tokenizer


@dataclass(frozen=True)
class Item:
    """One prompt and the concept it is judged for.

    Attributes:
        concept_id: the concept.
        other_id: another concept of the library: the control.
        prompt: token ids.
        seed: of the sampling; the same in all arms, so that arms are paired.
    """

    concept_id: int
    other_id: int
    prompt: tuple[int, ...]
    seed: int


def draw_concepts(num_known: int, num_concepts: int, seed: int) -> list[int]:
    """Concept ids drawn without replacement from the whole library."""
    drawn = np.random.default_rng(seed).permutation(num_known)[:num_concepts]
    return sorted(int(concept_id) for concept_id in drawn)


def plain_items(
    chunks: Sequence[Chunk],
    tokenizer: Tokenizer,
    concept_ids: Sequence[int],
    num_known: int,
    *,
    per_concept: int,
    num_tokens: int,
    seed: int,
) -> list[list[Item]]:
    """Prompts that do not carry the concept, for each concept.

    Args:
        chunks: held-out chunks.
        tokenizer: of the model.
        concept_ids: the concepts.
        num_known: C, where the control concepts come from.
        per_concept: prompts wanted for each.
        num_tokens: tokens of a prompt, [BOS] included.
        seed: of all draws.

    Returns:
        a list for each concept; fewer than wanted only where there are not enough chunks.
    """
    rng = np.random.default_rng(seed)
    items = []
    for concept_id in concept_ids:
        order = rng.permutation(len(chunks))
        without = [chunks[row] for row in order if not _carries(chunks[row], concept_id)][:per_concept]
        prompts = [_start(tokenizer, chunk.text, num_tokens) for chunk in without]
        items.append([_item(concept_id, prompt, num_known, rng) for prompt in prompts])
    return items


def carrying_items(
    chunks: Sequence[Chunk],
    tokenizer: Tokenizer,
    concept_ids: Sequence[int],
    num_known: int,
    *,
    per_concept: int,
    num_tokens: int,
    seed: int,
) -> list[list[Item]]:
    """Prompts that carry the concept: at most `num_tokens` tokens that end with one of its spans.

    Args:
        chunks: held-out chunks.
        tokenizer: of the model.
        concept_ids: the concepts.
        num_known: C, where the control concepts come from.
        per_concept: prompts wanted for each.
        num_tokens: tokens of a prompt at most, [BOS] included.
        seed: of all draws.

    Returns:
        a list for each concept; shorter where few held-out chunks carry it.
    """
    rng = np.random.default_rng(seed)
    items = []
    for concept_id in concept_ids:
        places = [
            (chunk.text, stop)
            for chunk in chunks
            for label in chunk.labels
            if label.concept_id == concept_id
            for _, stop in label.spans
        ]
        drawn = [places[row] for row in rng.permutation(len(places))[:per_concept]]
        prompts = [_end(tokenizer, text[:stop], num_tokens) for text, stop in drawn]
        items.append([_item(concept_id, prompt, num_known, rng) for prompt in prompts])
    return items


def _carries(chunk: Chunk, concept_id: int) -> bool:
    return any(label.concept_id == concept_id for label in chunk.labels)


def _start(tokenizer: Tokenizer, text: str, num_tokens: int) -> tuple[int, ...]:
    return (tokenizer.bos_id, *tokenizer.encode(text)[: num_tokens - 1])


def _end(tokenizer: Tokenizer, text: str, num_tokens: int) -> tuple[int, ...]:
    return (tokenizer.bos_id, *tokenizer.encode(text)[1 - num_tokens :])


def _item(concept_id: int, prompt: tuple[int, ...], num_known: int, rng: np.random.Generator) -> Item:
    # A shift by 1..C-1 never gives the concept itself; a library of one concept has no other.
    shift = int(rng.integers(1, num_known)) if num_known > 1 else 0
    return Item(concept_id, (concept_id + shift) % num_known, prompt, int(rng.integers(2**31)))
