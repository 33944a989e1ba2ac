"""Held-out evaluation inside a run: the same sequences, the same masks, every time.

Losses are nats per predicted token, teacher forcing off: under `cdlm` at masked tokens of one noise level, under
`ar` at every next token. `without_residual` and `known_alone` zero the other parts, so they say what the concepts
can do alone; the deletion test in `metrics/deletion.py` is the measure to report. Alignment, the fourth of the
interpretability metrics (§7), needs a judge and is in `metrics/alignment.py`.

Ranks share the work: `batches_of` gives each its part, `sums` adds it up, the sums of all ranks are added, and
`finish` makes the figures of them. `evaluate` does all of it in one process.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.nn import functional

from vitrail.metrics.concept_loss import Aggregation, chunk_concept_loss, prior_loss
from vitrail.metrics.contribution import part_shares
from vitrail.model import ConceptLM
from vitrail.packed import PackedBatch, PackedCorpus
from vitrail.train.distributed import moved
from vitrail.train.losses import independence_sum
from vitrail.train.masking import draw_masks, generator, predictable
from vitrail.train.microbatch import present_tokens
from vitrail.train.objective import inputs, targets
from vitrail.train.settings import HeldoutSettings

_ROWS = 8
_LANGUAGE = ("predicted", "loss", "accuracy")
_PER_TOKEN = ("without_residual", "known_alone", "contribution_known", "contribution_discovered")
_CONCEPTS = (*_PER_TOKEN, "concept", "chunks", "independence", "independence_hsic", "sequences")


@dataclass(frozen=True)
class HeldoutBatch:
    """Some held-out sequences.

    Attributes:
        number: its place among all held-out batches; seeds its masks.
        batch: tokens and labels.
        is_counted: False where it only fills up, so that every rank runs equally many.
    """

    number: int
    batch: PackedBatch
    is_counted: bool


def evaluate(
    model: ConceptLM, packed: PackedCorpus, settings: HeldoutSettings, how: Aggregation, seed: int
) -> dict[str, float]:
    """Losses and interpretability metrics on held-out sequences, in one process.

    Args:
        model: used as it is; nothing is trained.
        packed: its split `heldout` is read from the start.
        settings: how many sequences, which noise level.
        how: aggregation of concept logits over a chunk.
        seed: of the masks.

    Returns:
        see `finish`.
    """
    return finish(sums(model, batches_of(packed, settings, 0, 1), settings.noise, how, seed))


def batches_of(packed: PackedCorpus, settings: HeldoutSettings, rank: int, world: int) -> Iterator[HeldoutBatch]:
    """A rank's part of the held-out batches; as many on every rank, since ranks run their forwards together.

    Args:
        packed: its split `heldout` is read from the start.
        settings: how many sequences.
        rank: 0..world-1.
        world: number of ranks.

    Yields:
        batches rank, rank + world, …; where these run out before other ranks' do, the first one again, uncounted.
    """
    num = min(settings.sequences, packed.num_sequences("heldout"))
    num_batches = -(-num // _ROWS)
    for first in range(0, num_batches, world):
        number = first + rank
        is_counted = number < num_batches
        start = number * _ROWS if is_counted else 0
        rows = list(range(start, min(start + _ROWS, num)))
        yield HeldoutBatch(number, packed.batch("heldout", rows), is_counted)


@torch.no_grad()
def sums(model: ConceptLM, batches: Iterable[HeldoutBatch], noise: float, how: Aggregation, seed: int) -> list[float]:
    """What a rank's batches add up to.

    Args:
        model: used as it is; nothing is trained.
        batches: of `batches_of`.
        noise: level of every block under `cdlm`.
        how: aggregation of concept logits over a chunk.
        seed: of the masks.

    Returns:
        numbers that add up over ranks; as many for every rank, without concepts fewer.
    """
    num_concepts = model.known_head.num_concepts
    names = (*_LANGUAGE, *_CONCEPTS) if num_concepts else _LANGUAGE
    total = torch.zeros(len(names) + num_concepts, dtype=torch.float64)
    device = model.transformer.lm_head.weight.device
    for item in batches:
        rng = generator(seed, "heldout", item.number)
        found = _of_batch(model, moved(item.batch, device), noise, how, rng)
        positives = torch.bincount(item.batch.label_concept, minlength=num_concepts)[:num_concepts]
        if item.is_counted:
            values = torch.tensor([found[name] for name in names], dtype=torch.float64)
            total += torch.cat((values, positives.double()))
    return [float(value) for value in total]


def finish(total: Sequence[float]) -> dict[str, float]:
    """The figures of an evaluation (§7).

    Args:
        total: of `sums`, added up over ranks.

    Returns:
        `loss` (nats per predicted token), `accuracy`; with concepts also `without_residual`, `known_alone` (nats per
        predicted token), `concept_loss` and `concept_gain` (nats per chunk, and below the class prior), `independence`
        (CKA, 0..1), `independence_hsic`, `contribution_known`, `contribution_discovered` (mean shares of the absolute
        logit of the predicted token). Nothing where the split is empty.
    """
    values = dict(zip((*_LANGUAGE, *_CONCEPTS), total, strict=False))
    if not values["predicted"]:
        return {}
    language = {name: values[name] / values["predicted"] for name in ("loss", "accuracy")}
    if len(total) == len(_LANGUAGE):
        return language
    chunks, sequences = max(values["chunks"], 1.0), values["sequences"]
    positives = torch.tensor(total[len(values) :], dtype=torch.float64)
    return {
        **language,
        **{name: values[name] / values["predicted"] for name in _PER_TOKEN},
        "concept_loss": values["concept"] / chunks,
        "concept_gain": prior_loss(positives, int(chunks)) - values["concept"] / chunks,
        "independence": values["independence"] / sequences,
        "independence_hsic": values["independence_hsic"] / sequences,
    }


def _of_batch(
    model: ConceptLM, batch: PackedBatch, noise: float, how: Aggregation, rng: torch.Generator
) -> dict[str, float]:
    at = _predicted(model, batch, noise, rng)
    hidden = model.hidden(inputs(batch.tokens, at, model.config))
    asked = targets(batch.tokens, model.config.backbone)[at]
    if not model.known_head.num_concepts:
        return _language(model.lm_logits(hidden[at]), asked)
    heads = (model.known_head, model.unknown_head)
    known, discovered = (head.features(hidden, head.selection.summed).features for head in heads)
    parts = [known[at], discovered[at], (hidden - known - discovered)[at]]
    logits = model.lm_logits(hidden[at] if model.has_residual else parts[0] + parts[1])
    return (
        _language(logits, asked)
        | _alone(model, parts, asked)
        | _contributions(model, parts, logits)
        | _concepts(model, batch, hidden, how)
        | _independence(known, discovered, present_tokens(batch, model.config.pad_id))
    )


def _predicted(model: ConceptLM, batch: PackedBatch, noise: float, rng: torch.Generator) -> Bool[Tensor, "B T"]:
    may = predictable(batch.loss_mask, model.config.backbone)
    if model.config.backbone == "ar":
        return may
    num_rows, length = may.shape
    levels = torch.full((num_rows, -(-length // model.config.block)), noise)
    _, masked = draw_masks(levels, model.config.block, length, rng)
    return masked.to(may.device) & may


def _language(logits: Float[Tensor, "n V"], asked: Tensor) -> dict[str, float]:
    hits = (logits.argmax(-1) == asked).sum()
    return {"predicted": float(len(asked)), "loss": _nats(logits, asked), "accuracy": float(hits)}


def _alone(model: ConceptLM, parts: Sequence[Tensor], asked: Tensor) -> dict[str, float]:
    known, discovered, _ = parts
    return {
        "without_residual": _nats(model.lm_logits(known + discovered), asked),
        "known_alone": _nats(model.lm_logits(known), asked),
    }


def _contributions(model: ConceptLM, parts: list[Tensor], logits: Float[Tensor, "n V"]) -> dict[str, float]:
    entered = parts if model.has_residual else [*parts[:2], torch.zeros_like(parts[2])]
    known, discovered, _ = part_shares(entered, logits.argmax(-1), model.transformer.lm_head.weight).sum(0).tolist()
    return {"contribution_known": known, "contribution_discovered": discovered}


def _concepts(
    model: ConceptLM, batch: PackedBatch, hidden: Float[Tensor, "B T D"], how: Aggregation
) -> dict[str, float]:
    concept, chunks = chunk_concept_loss(
        model.known_head,
        hidden,
        batch.chunk,
        batch.num_chunks,
        batch.label_chunk,
        batch.label_concept,
        how=how,
        slab_size=model.config.slab,
    )
    return {"concept": float(concept), "chunks": float(chunks)}


def _independence(known: Tensor, discovered: Tensor, present: Bool[Tensor, "B T"]) -> dict[str, float]:
    return {
        "independence": float(independence_sum(discovered, known, present, "cka")),
        "independence_hsic": float(independence_sum(discovered, known, present, "hsic")),
        "sequences": float(present.any(1).sum()),
    }


def _nats(logits: Float[Tensor, "n V"], asked: Tensor) -> float:
    return float(functional.cross_entropy(logits.float(), asked, reduction="sum"))
