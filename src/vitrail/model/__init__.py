"""The model: configuration, backbone, concept heads, block cache, checkpoints."""

from vitrail.model.attention import (
    AttentionKernel,
    AttentionName,
    FlexKernel,
    SdpaKernel,
    Visibility,
    attention_kernel,
    block_causal,
    causal,
    dense_mask,
    padded_mask,
    training_kernel,
)
from vitrail.model.backbone import Backbone, Injection
from vitrail.model.cache import BlockCache
from vitrail.model.checkpoint import load_config, load_model
from vitrail.model.config import ModelConfig
from vitrail.model.converting import Layout, convert_checkpoint
from vitrail.model.describing import describe_checkpoint, is_bare_checkpoint
from vitrail.model.download import find_file, find_model, is_repository
from vitrail.model.heads import ConceptHead, DenseHead, FactorizedHead, HeadOutput, NoHead, Selection
from vitrail.model.init import init_model
from vitrail.model.lm import ConceptLM, DecomposedOutput
from vitrail.model.meta import empty_model
from vitrail.model.stored import StoredTensors
from vitrail.model.writing import SHARD_BYTES, save_model

__all__ = [
    "SHARD_BYTES",
    "AttentionKernel",
    "AttentionName",
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
    "Layout",
    "ModelConfig",
    "NoHead",
    "SdpaKernel",
    "Selection",
    "StoredTensors",
    "Visibility",
    "attention_kernel",
    "block_causal",
    "causal",
    "convert_checkpoint",
    "dense_mask",
    "describe_checkpoint",
    "empty_model",
    "find_file",
    "find_model",
    "init_model",
    "is_bare_checkpoint",
    "is_repository",
    "load_config",
    "load_model",
    "padded_mask",
    "save_model",
    "training_kernel",
]
