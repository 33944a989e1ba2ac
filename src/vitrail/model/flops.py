"""What a model costs: parameters by part, and floating-point operations of training by part (§8.1, appendix G).

A product of [m k] and [k n] counts 2·m·k·n operations; its backward is two such products. Norms, activations, the
optimiser and whatever is computed again in the backward to save memory are left out, and so are reconstruction and
independence, which are small beside one layer. A product whose input gradient is cut counts as if it were not.

Letters: T tokens in a sequence, D width, V vocabulary, C known concepts, M discovered ones, r their rank, k kept.
"""

from dataclasses import dataclass

from torch import nn

from vitrail.model.config import ModelConfig
from vitrail.model.lm import ConceptLM

_WITH_BACKWARD = 3


@dataclass(frozen=True)
class ParameterCount:
    """Parameters by part.

    Attributes:
        embedding: token embedding and LM head, once where they are tied.
        backbone: layers and final norm.
        known: the head of the known concepts.
        discovered: the head of the discovered ones.
    """

    embedding: int
    backbone: int
    known: int
    discovered: int

    @property
    def total(self) -> int:
        """All parameters of the model."""
        return self.embedding + self.backbone + self.known + self.discovered

    @property
    def concept_share(self) -> float:
        """Share of the concept module, in 0..1: 4 % at 8B, most of the smallest models with a whole library (§1)."""
        return (self.known + self.discovered) / self.total


@dataclass(frozen=True)
class TrainingFlops:
    """Operations of forward and backward for one token of a training sequence, by part.

    Attributes:
        backbone: projections and MLPs of all layers.
        attention: scores and weighted sums, over the keys that a position sees.
        known: the known head and the chunk concept loss.
        discovered: the discovered head.
        lm_head: the LM head, at the predicted positions only.
    """

    backbone: float
    attention: float
    known: float
    discovered: float
    lm_head: float

    @property
    def total(self) -> float:
        """All operations for one token."""
        return self.backbone + self.attention + self.known + self.discovered + self.lm_head


def parameter_count(model: ConceptLM) -> ParameterCount:
    """Parameters of a model by part.

    Args:
        model: any, on any device; `empty_model` gives one without memory.

    Returns:
        the counts; a tied LM head is counted once.
    """
    transformer = model.transformer
    embedding = {id(p): p.numel() for p in (transformer.tok_emb.weight, transformer.lm_head.weight)}
    return ParameterCount(
        embedding=sum(embedding.values()),
        backbone=_numel(transformer.blocks) + _numel(transformer.ln_f),
        known=_numel(model.known_head),
        discovered=_numel(model.unknown_head),
    )


def training_flops(config: ModelConfig, length: int, predicted_share: float) -> TrainingFlops:
    """Operations of one training token: forward and backward, without what is recomputed.

    Args:
        config: shape of the model.
        length: T, tokens in a training sequence.
        predicted_share: share of positions at which the model predicts, in 0..1: the mean noise level of a
            diffusion model, 1 for an autoregressive one.

    Returns:
        operations by part; times the tokens of a run they are its compute.
    """
    width, layers = config.width, config.num_layers
    qkv = (config.num_heads + 2 * config.kv_heads) * config.head_width
    mlp = (3 if config.mlp_type == "swiglu" else 2) * config.inner_width
    attended = config.num_heads * config.head_width * visible_keys(config, length)
    return TrainingFlops(
        backbone=float(_WITH_BACKWARD * 2 * layers * width * (qkv + width + mlp)),
        attention=_WITH_BACKWARD * 2 * layers * 2 * attended,
        known=float(_known_flops(config)),
        discovered=float(_discovered_flops(config)),
        lm_head=_WITH_BACKWARD * 2 * config.vocab_size * width * predicted_share,
    )


def visible_keys(config: ModelConfig, length: int) -> float:
    """Mean number of keys a position of a training sequence sees (§5.2).

    Args:
        config: backbone and block.
        length: T.

    Returns:
        the mean over positions: all of the own block and of those before it, or under `ar` up to oneself.
    """
    block = config.block if config.backbone == "cdlm" else 1
    stops = [min(start + block, length) for start in range(0, length, block)]
    return sum((stop - start) * stop for start, stop in zip([0, *stops], stops, strict=False)) / length


def _known_flops(config: ModelConfig) -> int:
    if not config.interpretable:
        return 0
    count, width = config.num_concepts, config.width
    summed = None if config.top_k_known is None else config.top_k_known_features or config.top_k_known
    concept_loss = _WITH_BACKWARD * 2 * count * width
    return concept_loss + _summing_flops(count, width, summed) + _query_flops(config.use_attention_known, width)


def _discovered_flops(config: ModelConfig) -> int:
    count, width = config.discovered_count, config.width
    if not count:
        return 0
    kept = config.top_k_discovered if config.apply_top_k_to_discovered else None
    query = _query_flops(config.use_attention_discovered, width)
    if not config.factorize_discovered:
        return query + _summing_flops(count, width, kept)
    shared_factors = _WITH_BACKWARD * 2 * 2 * width * config.discovered_rank
    return query + shared_factors + _summing_flops(count, config.discovered_rank, kept)


def _summing_flops(count: int, width: int, kept: int | None) -> int:
    """Logits and weighted sum over rows of one width; with a top-k, a search without gradient comes first."""
    both = _WITH_BACKWARD * 2 * 2 * width
    if kept is None:
        return both * count
    return 2 * count * width + both * min(kept, count)


def _query_flops(use_attention: bool, width: int) -> int:
    return _WITH_BACKWARD * 2 * width * width if use_attention else 0


def _numel(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())
