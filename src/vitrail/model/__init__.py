"""The model: configuration, backbone, concept heads, block cache, checkpoints."""

from vitrail.model.attention import (
    AttentionKernel,
    FlexKernel,
    SdpaKernel,
    Visibility,
    attention_kernel,
    block_causal,
    causal,
    dense_mask,
    padded_mask,
)
from vitrail.model.backbone import Backbone, Injection
from vitrail.model.cache import BlockCache
from vitrail.model.checkpoint import load_config, load_model, save_model
from vitrail.model.config import ModelConfig
from vitrail.model.heads import ConceptHead, DenseHead, FactorizedHead, HeadOutput, NoHead, Selection
from vitrail.model.init import init_model
from vitrail.model.lm import ConceptLM, DecomposedOutput

__all__ = [
    "AttentionKernel",
    "Backbone",
    "BlockCache",
    "ConceptHead",
    "ConceptLM",
    "DecomposedOutput",
    "DenseHead",
    "FactorizedHead",
    "FlexKernel",
    "HeadOutput",
    "Injection",
    "ModelConfig",
    "NoHead",
    "SdpaKernel",
    "Selection",
    "Visibility",
    "attention_kernel",
    "block_causal",
    "causal",
    "dense_mask",
    "init_model",
    "load_config",
    "load_model",
    "padded_mask",
    "save_model",
]
