"""All figures of a model that need nothing but packed text, in one table (§7)."""

from typing import Any

import torch

from vitrail.errors import CorpusError
from vitrail.metrics.contribution import contribution
from vitrail.metrics.deletion import deletion_nats, part_means
from vitrail.metrics.independence import linear_cka, linear_hsic
from vitrail.metrics.intervals import mean_interval, plain
from vitrail.metrics.likelihood import (
    bits_per_byte,
    fixed_rate_loss,
    mdlm_nats,
    nine_bin_loss,
    per_block_loss,
)
from vitrail.metrics.ngram import fit_ngram
from vitrail.metrics.states import is_present, masked_states, sample_rows
from vitrail.model import ConceptLM
from vitrail.packed import PackedCorpus

_LOSS_SEQUENCES = 16


def measure_model(
    model: ConceptLM, packed: PackedCorpus, *, num_sequences: int = 48, num_draws: int = 4, seed: int = 0
) -> dict[str, Any]:
    """Likelihood, contribution, deletion and independence on held-out sequences.

    Args:
        model: the model, in evaluation.
        packed: a packed corpus with the splits train (n-grams, corpus means) and heldout.
        num_sequences: held-out sequences for each figure.
        num_draws: noise levels per block of the likelihood bound.
        seed: of samples, masks and bootstrap.

    Returns:
        `bits_per_byte`, `contribution`, `deletion_nats`, `independence`, `mask_loss`: see each function. An `ar` model
        has no mask losses, one without concepts only bits per byte and mask losses.

    Raises:
        CorpusError: the corpus holds conversations, whose prompts nobody predicts, or no held-out text.
    """
    if packed.has_conversations or not packed.num_sequences("heldout"):
        raise CorpusError(
            f"{packed.path}: no held-out chunks of annotated text to measure on; pack an annotated corpus"
        )
    ngrams = {"unigram": fit_ngram(packed, 1), "bigram": fit_ngram(packed, 2)}
    likelihood = {
        "bits_per_byte": bits_per_byte(
            model, packed, ngrams=ngrams, num_sequences=num_sequences, num_draws=num_draws, seed=seed
        )
    }
    if model.config.backbone == "cdlm":
        likelihood["mask_loss"] = mask_losses(model, packed, seed=seed)
    if not model.known_head.num_concepts:
        return likelihood
    states = masked_states(model, packed, "heldout", num_sequences=num_sequences, seed=seed)
    means = part_means(model, masked_states(model, packed, "train", num_sequences=num_sequences, seed=seed))
    return {
        **likelihood,
        "contribution": contribution(model, states, means, seed=seed),
        "deletion_nats": deletion_nats(model, states, means, seed=seed),
        "independence": independence(model, packed, num_sequences=num_sequences, seed=seed),
    }


@torch.no_grad()
def independence(
    model: ConceptLM, packed: PackedCorpus, *, num_sequences: int, noise: float = 0.5, seed: int = 0
) -> dict[str, Any]:
    """HSIC and CKA of known with discovered and with residual, inside held-out sequences (§7).

    Args:
        model: the model.
        packed: gives the held-out sequences.
        num_sequences: how many at most.
        noise: share of tokens masked; none under `ar`.
        seed: of the sample and of the masks.

    Returns:
        `hsic_discovered`, `cka_discovered`, `hsic_residual`, `cka_residual` (means over sequences), `n`,
        `ci95`.
    """
    tokens = packed.batch("heldout", sample_rows(packed, "heldout", num_sequences, seed)).tokens
    present = is_present(model, tokens)
    is_masked = model.config.backbone == "cdlm"
    masked = (torch.rand(tokens.shape, generator=torch.Generator().manual_seed(seed)) < noise * is_masked) & present
    figures: dict[str, list[torch.Tensor]] = {}
    for noisy, valid in zip(
        torch.split(torch.where(masked, model.config.mask_id, tokens), _LOSS_SEQUENCES),
        torch.split(present, _LOSS_SEQUENCES),
        strict=True,
    ):
        out = model.decompose(model.hidden(noisy), with_logits=False)
        for name, part in (("discovered", out.discovered), ("residual", out.unexplained)):
            figures.setdefault(f"hsic_{name}", []).append(linear_hsic(part, out.known, valid))
            figures.setdefault(f"cka_{name}", []).append(linear_cka(part, out.known, valid))
    found = {name: mean_interval(torch.cat(values).double().numpy(), seed=seed) for name, values in figures.items()}
    table = {
        **{name: interval.value for name, interval in found.items()},
        "n": len(tokens),
        "ci95": {name: interval.ci95 for name, interval in found.items()},
    }
    return dict(plain(table))


def mask_losses(model: ConceptLM, packed: PackedCorpus, *, seed: int = 0) -> dict[str, Any]:
    """The paper's four estimators on a few held-out sequences (H); only MDLM's is a bound on the likelihood.

    Args:
        model: the model.
        packed: gives the held-out sequences.
        seed: of the sample and of the masks.

    Returns:
        `fixed_rate` and `nine_bin` in nats per masked token, `mdlm_bound` and `per_block` in nats per token,
        and `n`, the sequences.
    """
    tokens = packed.batch("heldout", sample_rows(packed, "heldout", _LOSS_SEQUENCES, seed)).tokens
    rng = torch.Generator().manual_seed(seed)
    table = {
        "fixed_rate": fixed_rate_loss(model, tokens, rng).mean,
        "nine_bin": nine_bin_loss(model, tokens, rng),
        "mdlm_bound": mdlm_nats(model, tokens, rng).mean,
        "per_block": per_block_loss(model, tokens, rng).mean,
        "n": len(tokens),
    }
    return dict(plain(table))
