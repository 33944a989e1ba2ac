"""The behaviour of the public reference, its limits and defects included: slow, exact, and in this room only.

It repeats recorded runs (`generate_like_reference`), it is the oracle that tests and benchmarks hold the
fast engine against (`reference_generation`), and it serves who must reproduce published numbers. Nothing
else in the project imports it.
"""

from vitrail.compat.attribution import (
    ChunkAttribution,
    ConceptAttribution,
    HeadAttribution,
    attribute_concepts,
    chunk_attributions,
    chunk_spans,
)
from vitrail.compat.catalog import ConceptCatalog, ConceptRecord
from vitrail.compat.dense import dense_logits, dense_weights
from vitrail.compat.embeddings import embed
from vitrail.compat.forward import DenseActivations, ReferenceForward, dense_activations, reference_forward
from vitrail.compat.generation import (
    Commit,
    HasNetwork,
    OnCommit,
    ReferenceGeneration,
    generate_like_reference,
    guided,
    reference_generation,
)
from vitrail.compat.inspection import top_tokens
from vitrail.compat.interventions import Intervention, edited
from vitrail.compat.likelihood import batch_loss, draw_masks, log_likelihood, rolling_log_likelihood
from vitrail.compat.options import (
    ReferenceIds,
    ReferenceOptions,
    ReferenceSteering,
    read_ids,
    read_options,
    read_prompt,
    read_steering,
)
from vitrail.compat.sampling import choose_token, nucleus, token_probs
from vitrail.compat.steering import (
    Injector,
    amplify,
    default_layer,
    peak_alignment,
    relu_suppression,
    steering_direction,
    strength,
    suppress,
)

__all__ = [
    "ChunkAttribution",
    "Commit",
    "ConceptAttribution",
    "ConceptCatalog",
    "ConceptRecord",
    "DenseActivations",
    "HasNetwork",
    "HeadAttribution",
    "Injector",
    "Intervention",
    "OnCommit",
    "ReferenceForward",
    "ReferenceGeneration",
    "ReferenceIds",
    "ReferenceOptions",
    "ReferenceSteering",
    "amplify",
    "attribute_concepts",
    "batch_loss",
    "choose_token",
    "chunk_attributions",
    "chunk_spans",
    "default_layer",
    "dense_activations",
    "dense_logits",
    "dense_weights",
    "draw_masks",
    "edited",
    "embed",
    "generate_like_reference",
    "guided",
    "log_likelihood",
    "nucleus",
    "peak_alignment",
    "read_ids",
    "read_options",
    "read_prompt",
    "read_steering",
    "reference_forward",
    "reference_generation",
    "relu_suppression",
    "rolling_log_likelihood",
    "steering_direction",
    "strength",
    "suppress",
    "token_probs",
    "top_tokens",
]
