"""Held-out evaluation inside a run: the same sequences, the same masks, every time.

Losses are nats per masked token at one noise level, teacher forcing off. `without_residual` and
`known_alone` zero the other parts, so they say what the concepts can do alone; the deletion test in
`metrics/deletion.py` is the measure to report.
"""

from collections.abc import Iterator

import torch
from torch import Tensor
from torch.nn import functional

from vitrail.metrics.concept_loss import Aggregation, chunk_concept_loss, prior_loss
from vitrail.model import ConceptLM
from vitrail.packed import PackedBatch, PackedCorpus
from vitrail.train.losses import independence_sum
from vitrail.train.masking import draw_masks, generator
from vitrail.train.microbatch import present_tokens
from vitrail.train.settings import HeldoutSettings

_ROWS = 8


@torch.no_grad()
def evaluate(
    model: ConceptLM, packed: PackedCorpus, settings: HeldoutSettings, how: Aggregation, seed: int
) -> dict[str, float]:
    """Losses and shares on held-out sequences.

    Args:
        model: used as it is; nothing is trained.
        packed: its split `heldout` is read from the start.
        settings: how many sequences, which noise level.
        how: aggregation of concept logits over a chunk.
        seed: of the masks.

    Returns:
        `loss`, `without_residual`, `known_alone` (nats per masked token), `accuracy`, `concept_gain` (nats
        per chunk below the class prior), `independence` (CKA, 0..1), `contribution_known`,
        `contribution_discovered` (shares of absolute logit, §7); nothing where the split is empty.
    """
    sums: dict[str, float] = {}
    positives = torch.zeros(packed.num_concepts)
    for number, batch in enumerate(_batches(packed, settings.sequences)):
        positives += torch.bincount(batch.label_concept, minlength=packed.num_concepts)
        rng = generator(seed, "heldout", number)
        for name, value in _sums(model, batch, settings.noise, how, rng).items():
            sums[name] = sums.get(name, 0.0) + value
    if not sums:
        return {}
    masked, chunks = max(sums["masked"], 1.0), max(sums["chunks"], 1.0)
    per_token = ("loss", "without_residual", "known_alone", "accuracy")
    parts = sums["known"] + sums["discovered"] + sums["residual"]
    return {
        **{name: sums[name] / masked for name in per_token},
        "concept_gain": prior_loss(positives, int(chunks)) - sums["concept"] / chunks,
        "independence": sums["independence"] / sums["sequences"],
        "contribution_known": sums["known"] / parts,
        "contribution_discovered": sums["discovered"] / parts,
    }


def _batches(packed: PackedCorpus, limit: int) -> Iterator[PackedBatch]:
    num = min(limit, packed.num_sequences("heldout"))
    for start in range(0, num, _ROWS):
        yield packed.batch("heldout", list(range(start, min(start + _ROWS, num))))


def _sums(
    model: ConceptLM, batch: PackedBatch, noise: float, how: Aggregation, rng: torch.Generator
) -> dict[str, float]:
    config = model.config
    present = present_tokens(batch, config.pad_id)
    num_blocks = -(-present.shape[1] // config.block)
    _, at = draw_masks(torch.full((len(present), num_blocks), noise), config.block, present, rng)
    hidden = model.hidden(batch.tokens.masked_fill(at, config.mask_id))
    known = model.known_head.features(hidden, config.top_k_known_features).features
    discovered = model.unknown_head.features(hidden, config.top_k_discovered).features
    concept, chunks = chunk_concept_loss(
        model.known_head,
        hidden,
        batch.chunk,
        batch.num_chunks,
        batch.label_chunk,
        batch.label_concept,
        how=how,
        slab_size=config.slab,
    )
    targets, k, u = batch.tokens[at], known[at], discovered[at]
    rows = model.transformer.lm_head.weight[targets].to(k.dtype)
    residual = hidden[at] - k - u
    logits = model.lm_logits(hidden[at])
    return {
        "masked": float(at.sum()),
        "chunks": float(chunks),
        "sequences": float(len(present)),
        "loss": _nats(logits, targets),
        "accuracy": float((logits.argmax(-1) == targets).sum()),
        "without_residual": _nats(model.lm_logits(k + u), targets),
        "known_alone": _nats(model.lm_logits(k), targets),
        "concept": float(concept),
        "independence": float(independence_sum(discovered, known, present, "cka")),
        "known": float((k * rows).sum(-1).abs().sum()),
        "discovered": float((u * rows).sum(-1).abs().sum()),
        "residual": float((residual * rows).sum(-1).abs().sum()),
    }


def _nats(logits: Tensor, targets: Tensor) -> float:
    return float(functional.cross_entropy(logits.float(), targets, reduction="sum"))
