"""Measures of a model: likelihood, concepts, contribution, deletion, independence (§7, appendix H)."""

from vitrail.metrics.alignment import alignment_share, count_tokens, known_alignment, top_tokens
from vitrail.metrics.concept_loss import Aggregation, aggregate_chunks, chunk_concept_loss, prior_loss
from vitrail.metrics.concepts import concept_detection
from vitrail.metrics.contribution import contribution
from vitrail.metrics.deletion import PartMeans, deletion_nats, part_means
from vitrail.metrics.independence import linear_cka, linear_hsic
from vitrail.metrics.intervals import Interval, bootstrap, mean_interval, plain
from vitrail.metrics.likelihood import (
    bits_per_byte,
    clean_prefix_nats,
    fixed_rate_loss,
    mdlm_nats,
    nine_bin_loss,
    per_block_loss,
)
from vitrail.metrics.measure import independence, mask_losses, measure_model
from vitrail.metrics.ngram import NGramModel, fit_ngram
from vitrail.metrics.ranking import auc_per_concept, average_precision_per_concept
from vitrail.metrics.states import MaskedStates, masked_states

__all__ = [
    "Aggregation",
    "Interval",
    "MaskedStates",
    "NGramModel",
    "PartMeans",
    "aggregate_chunks",
    "alignment_share",
    "auc_per_concept",
    "average_precision_per_concept",
    "bits_per_byte",
    "bootstrap",
    "chunk_concept_loss",
    "clean_prefix_nats",
    "concept_detection",
    "contribution",
    "count_tokens",
    "deletion_nats",
    "fit_ngram",
    "fixed_rate_loss",
    "independence",
    "known_alignment",
    "linear_cka",
    "linear_hsic",
    "mask_losses",
    "masked_states",
    "mdlm_nats",
    "mean_interval",
    "measure_model",
    "nine_bin_loss",
    "part_means",
    "per_block_loss",
    "plain",
    "prior_loss",
    "top_tokens",
]
