"""Known alignment: do the tokens that a concept's embedding raises mean the concept (§7)?

The embedded judge is mechanical, and named so: the share of the top tokens of W·K_c that are among the
concept's characteristic words (whole words, or beginnings of at least four letters). Rows of K share a
component that raises frequent words, and rare tokens share a direction: so K is centred over concepts and
logits over the vocabulary, and a token counts only where it is frequent enough. Beside it the same share for
rows that belong to other concepts. An LLM that grades 1–5 is the paper's judge; it is another figure.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Int

from vitrail.atlas import ConceptLibrary
from vitrail.metrics.intervals import mean_interval, plain
from vitrail.model import ConceptLM
from vitrail.packed import PackedCorpus, PackedSplit
from vitrail.text import Tokenizer

JUDGE = "share of top tokens among the concept's characteristic words (embedded)"
_MIN_LETTERS = 4
_BATCH_SIZE = 64


@torch.no_grad()
def known_alignment(
    model: ConceptLM,
    tokenizer: Tokenizer,
    library: ConceptLibrary,
    token_counts: Int[np.ndarray, " V"],
    *,
    num_top: int = 10,
    min_count: int = 300,
    seed: int = 0,
) -> dict[str, Any]:
    """Share of each concept's top tokens that are its characteristic words, against other concepts' rows.

    Args:
        model: gives W and K.
        tokenizer: turns ids into pieces.
        library: gives the words.
        token_counts: [V] occurrences in the train split.
        num_top: top tokens per concept.
        min_count: a token that occurs less often is not shown.
        seed: of the bootstrap over concepts.

    Returns:
        `judge`, `share`, `shuffled` (mean over the rows of all other concepts), `n` (concepts), `ci95`.
    """
    tops = top_tokens(model, token_counts, num_top, min_count)
    pieces = [tokenizer.token_text(token_id).strip().casefold() for token_id in range(model.config.vocab_size)]
    found = np.zeros((len(tops), len(tops)))
    for concept_id in range(len(tops)):
        is_own = matches(pieces, _words(library, concept_id))
        found[concept_id] = is_own[tops].mean(1)
    own = found.diagonal()
    num_others = max(len(tops) - 1, 1)
    figures = {"share": mean_interval(own.copy(), seed=seed)}
    figures["shuffled"] = mean_interval((found.sum(1) - own) / num_others, seed=seed)
    table = {
        "judge": JUDGE,
        **{name: figure.value for name, figure in figures.items()},
        "n": len(tops),
        "ci95": {name: figure.ci95 for name, figure in figures.items()},
    }
    return dict(plain(table))


@torch.no_grad()
def alignment_share(
    model: ConceptLM,
    tokenizer: Tokenizer,
    library: ConceptLibrary,
    token_counts: Int[np.ndarray, " V"],
    concepts: Sequence[int],
    *,
    num_top: int = 10,
    min_count: int = 300,
) -> float:
    """`share` of `known_alignment` for a few concepts, for a look during training.

    Args:
        model: gives W and K.
        tokenizer: turns ids into pieces.
        library: gives the words.
        token_counts: [V] occurrences.
        concepts: which known concepts.
        num_top: top tokens per concept.
        min_count: a token that occurs less often is not shown.

    Returns:
        mean share of top tokens among the concept's characteristic words, in 0..1.
    """
    tops = top_tokens(model, token_counts, num_top, min_count, concepts)
    shares = []
    for concept_id, row in zip(concepts, tops.tolist(), strict=True):
        pieces = [tokenizer.token_text(token_id).strip().casefold() for token_id in row]
        shares.append(float(matches(pieces, _words(library, concept_id)).mean()) if pieces else 0.0)
    return float(np.mean(shares))


@torch.no_grad()
def top_tokens(
    model: ConceptLM,
    token_counts: Int[np.ndarray, " V"],
    num_top: int,
    min_count: int,
    concepts: Sequence[int] | None = None,
) -> Int[np.ndarray, "C top"]:
    """The tokens that each concept's centred embedding raises most.

    Args:
        model: gives W and K.
        token_counts: [V] occurrences.
        num_top: how many; fewer where not enough tokens are frequent.
        min_count: least occurrences of a token.
        concepts: known concepts; None takes all.

    Returns:
        ids, the most raised first.
    """
    head, slab = model.known_head, model.config.slab
    slabs = [slice(start, min(start + slab, head.num_concepts)) for start in range(0, head.num_concepts, slab)]
    mean = torch.stack([head.embedding(part).sum(0) for part in slabs]).sum(0) / head.num_concepts
    rare = torch.from_numpy(np.asarray(token_counts) < min_count).to(mean.device)
    num_shown = min(num_top, int((~rare).sum()))
    tops = []
    wanted = torch.arange(head.num_concepts) if concepts is None else torch.tensor(list(concepts))
    for part in torch.split(wanted.to(mean.device), slab):
        logits = (head.rows(part) - mean).float() @ model.transformer.lm_head.weight.float().T
        logits = (logits - logits.mean(1, keepdim=True)).masked_fill(rare, -torch.inf)
        tops.append(logits.topk(num_shown, dim=1).indices)
    return np.asarray(torch.cat(tops).cpu().numpy())


def matches(pieces: Sequence[str], words: Sequence[str]) -> Bool[np.ndarray, " V"]:
    """Whether each token piece is one of the words, or begins one with at least four letters.

    Args:
        pieces: stripped, case-folded token texts.
        words: case-folded words.

    Returns:
        one truth value per piece.
    """
    whole = set(words)
    starts = {word[:length] for word in words for length in range(_MIN_LETTERS, len(word))}
    return np.array([piece in whole or piece in starts for piece in pieces])


def _words(library: ConceptLibrary, concept_id: int) -> list[str]:
    card = library.card("known", concept_id)
    return [word for text in (*card.words, card.name) for word in text.casefold().split()]


def count_tokens(packed: PackedCorpus, split: PackedSplit = "train", limit: int | None = None) -> Int[np.ndarray, " V"]:
    """Occurrences of every token id in a split.

    Args:
        packed: the packed corpus.
        split: which sequences.
        limit: how many to count, from the start; None counts all.

    Returns:
        [V] counts, specials and padding included.
    """
    counts = np.zeros(packed.tokenizer().vocab_size, dtype=np.int64)
    num_sequences = min(packed.num_sequences(split), limit or packed.num_sequences(split))
    for start in range(0, num_sequences, _BATCH_SIZE):
        batch = packed.batch(split, range(start, min(start + _BATCH_SIZE, num_sequences)))
        counts += np.bincount(batch.tokens.flatten().numpy(), minlength=len(counts))
    return counts
