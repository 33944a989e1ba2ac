"""Masked held-out positions: what contribution and the deletion test are measured on (§6, appendix H).

Whole sequences are noised at one level t, every token but padding independently, in one forward per batch;
the hidden states of the masked positions are kept with the token that was hidden there. Everything else is
algebra on these states, so all figures share the same draws.

Letters: `n` masked positions.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn import functional

from vitrail.model import ConceptLM, DecomposedOutput
from vitrail.packed import PackedCorpus, PackedSplit

_LOGITS_AT_ONCE = 2**24
_BATCH_SIZE = 16


@dataclass(frozen=True)
class MaskedStates:
    """Hidden states of masked positions.

    Attributes:
        hidden: [n D] states after the final norm.
        targets: [n] the tokens that were hidden.
        sequence: [n] number of the sequence, the cluster of every interval.
        noise: t, the share of tokens masked.
    """

    hidden: Float[Tensor, "n D"]
    targets: Int[Tensor, " n"]
    sequence: Int[Tensor, " n"]
    noise: float


@torch.no_grad()
def masked_states(
    model: ConceptLM,
    packed: PackedCorpus,
    split: PackedSplit,
    *,
    num_sequences: int,
    noise: float = 0.5,
    seed: int = 0,
) -> MaskedStates:
    """States of masked positions of sampled sequences; of an `ar` model those before as many tokens, all of them clean.

    Args:
        model: the model, in evaluation.
        packed: where the sequences come from.
        split: `heldout` or `train`.
        num_sequences: how many to sample at most.
        noise: t, the probability of masking a token.
        seed: of the sample and of the masks.

    Returns:
        the states, one row per masked token.
    """
    rng = torch.Generator().manual_seed(seed)
    hidden, targets, sequence = [], [], []
    rows = sample_rows(packed, split, num_sequences, seed)
    for start in range(0, len(rows), _BATCH_SIZE):
        tokens = packed.batch(split, rows[start : start + _BATCH_SIZE]).tokens
        masked = (torch.rand(tokens.shape, generator=rng) < noise) & is_present(model, tokens)
        if model.config.backbone == "ar":
            states = model.hidden(tokens)[:, :-1]
            masked, tokens = masked[:, 1:], tokens[:, 1:]
        else:
            states = model.hidden(torch.where(masked, model.config.mask_id, tokens))
        hidden.append(states[masked].float())
        targets.append(tokens[masked])
        sequence.append(start + masked.nonzero()[:, 0])
    return MaskedStates(torch.cat(hidden), torch.cat(targets), torch.cat(sequence), noise)


def sample_rows(packed: PackedCorpus, split: PackedSplit, num_sequences: int, seed: int) -> list[int]:
    """Rows of a split drawn without replacement, in ascending order."""
    available = packed.num_sequences(split)
    drawn = np.random.default_rng(seed).permutation(available)[:num_sequences]
    return sorted(int(row) for row in drawn)


def is_present(model: ConceptLM, tokens: Int[Tensor, "B T"]) -> Bool[Tensor, "B T"]:
    """True where a token is not padding: what is masked in training, and what every likelihood counts."""
    return tokens != model.config.pad_id


@torch.no_grad()
def decompose(model: ConceptLM, hidden: Float[Tensor, "n D"]) -> DecomposedOutput:
    """The parts of flat states, as the model's own output with B = 1 and T = n, without logits."""
    return model.decompose(hidden[None], with_logits=False)


@torch.no_grad()
def token_nats(model: ConceptLM, composed: Float[Tensor, "n D"], targets: Int[Tensor, " n"]) -> Float[Tensor, " n"]:
    """Cross-entropy of each target under the logits of a (possibly edited) composed state.

    Args:
        model: gives the LM head.
        composed: [n D] states that enter the LM head.
        targets: [n] tokens.

    Returns:
        [n] nats, fp32.

    Cost: n · D · V; logits are held for some rows at a time only.
    """
    parts = [
        functional.cross_entropy(logits, targets[rows], reduction="none")
        for rows, logits in _logits_in_slabs(model, composed)
    ]
    return torch.cat(parts) if parts else composed.new_zeros(0)


@torch.no_grad()
def predicted_tokens(model: ConceptLM, composed: Float[Tensor, "n D"]) -> Int[Tensor, " n"]:
    """The most likely token of each composed state, [MASK] excepted."""
    parts = []
    for _, logits in _logits_in_slabs(model, composed):
        logits[:, model.config.mask_id] = -torch.inf
        parts.append(logits.argmax(-1))
    return torch.cat(parts) if parts else torch.zeros(0, dtype=torch.int64)


def _logits_in_slabs(model: ConceptLM, composed: Float[Tensor, "n D"]) -> Iterator[tuple[slice, Tensor]]:
    num_rows = max(1, _LOGITS_AT_ONCE // model.config.vocab_size)
    for start in range(0, len(composed), num_rows):
        rows = slice(start, start + num_rows)
        yield rows, model.lm_logits(composed[rows][None])[0].float()
