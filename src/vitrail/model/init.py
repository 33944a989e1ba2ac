"""Random weights to start training from.

Known concepts should start nearly off (activation 0.02, not 0.5), but released heads have no bias. A bias
fits inside the layout all the same: embedding rows share one direction, so final states share a mean m, and
predictor rows that share the component `known_bias · m / ‖m‖²` start with mean logit `known_bias`.
The shared direction adds the same to every logit of a tied LM head, so the softmax does not see it.
"""

import torch
from torch import Tensor, nn

from vitrail.errors import ConfigError
from vitrail.model.attention import AttentionKernel
from vitrail.model.backbone import Attention, Mlp
from vitrail.model.config import ModelConfig
from vitrail.model.heads import DenseHead, FactorizedHead
from vitrail.model.lm import ConceptLM
from vitrail.model.meta import empty_model

_EMBEDDING_STD = 0.02
_LOGIT_STD = 0.5
_DISCOVERED_NORM = 0.1


def init_model(
    config: ModelConfig, seed: int, *, known_bias: float = 0.0, kernel: AttentionKernel | None = None
) -> ConceptLM:
    """A model with random fp32 weights on the CPU, a function of `config` and `seed` alone.

    Args:
        config: shape and flags.
        seed: of all draws.
        known_bias: mean logit of known concepts at the start; −4 gives activations near 0.02. Without effect
            where the model has none.
        kernel: how attention is computed; scaled dot product by default.

    Returns:
        the model, in training mode.

    Raises:
        ConfigError: a `known_bias` for an attention head, whose logits cannot be shifted this way.
    """
    model = empty_model(config, kernel)
    model.to_empty(device="cpu")
    model.transformer.tie()
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        _init_backbone(model, generator)
        for head in (model.known_head, model.unknown_head):
            if isinstance(head, DenseHead):
                _init_dense(head, generator)
            elif isinstance(head, FactorizedHead):
                _init_factorized(head, generator)
        if known_bias and config.known_count:
            _shift_known(model, known_bias, generator)
    return model


def _init_backbone(model: ConceptLM, generator: torch.Generator) -> None:
    transformer, width = model.transformer, model.config.width
    for module in transformer.modules():
        if isinstance(module, nn.Linear):
            module.weight.normal_(std=module.in_features**-0.5, generator=generator)
            if module.bias is not None:
                module.bias.zero_()
        elif not isinstance(module, nn.Embedding):
            _reset_norm(module)
    # Output projections shrink with depth, so that the residual stream keeps its scale at the start.
    for module in transformer.modules():
        if isinstance(module, Attention | Mlp):
            module.c_proj.weight.mul_((2 * model.config.num_layers) ** -0.5)
    transformer.lm_head.weight.normal_(std=_EMBEDDING_STD, generator=generator)
    transformer.tok_emb.weight.normal_(std=_EMBEDDING_STD, generator=generator)
    # Signs alternate, so that LayerNorm, which removes the mean of a row, keeps the shared direction.
    shared = torch.where(torch.arange(width) % 2 == 0, _EMBEDDING_STD, -_EMBEDDING_STD)
    transformer.tok_emb.weight.add_(shared)


def _reset_norm(module: nn.Module) -> None:
    for name, parameter in module.named_parameters(recurse=False):
        parameter.fill_(1.0 if name == "weight" else 0.0)


def _init_dense(head: DenseHead, generator: torch.Generator) -> None:
    head.concept_embedding.weight.normal_(std=head.width**-0.5, generator=generator)
    _init_predictor(head, generator)


def _init_factorized(head: FactorizedHead, generator: torch.Generator) -> None:
    rank = head.embedding_coef.embedding_dim
    head.embedding_coef.weight.normal_(std=rank**-0.5, generator=generator)
    # Rows of norm 0.1: hundreds of half-active concepts must not drown the state at the start.
    head.embedding_basis.weight.normal_(std=_DISCOVERED_NORM * head.width**-0.5, generator=generator)
    _init_predictor(head, generator)


def _init_predictor(head: DenseHead | FactorizedHead, generator: torch.Generator) -> None:
    if head.use_attention:
        head.concept_query_projection.weight.normal_(std=head.width**-0.5, generator=generator)
    elif isinstance(head, FactorizedHead):
        rank = head.embedding_coef.embedding_dim
        head.predictor_down.weight.normal_(std=head.width**-0.5, generator=generator)
        head.predictor_up.weight.normal_(std=_LOGIT_STD * rank**-0.5, generator=generator)
    else:
        head.concept_predictor.weight.normal_(std=_LOGIT_STD * head.width**-0.5, generator=generator)


def _shift_known(model: ConceptLM, known_bias: float, generator: torch.Generator) -> None:
    head = model.known_head
    if not isinstance(head, DenseHead) or head.use_attention:
        raise ConfigError(f"known_bias {known_bias} needs a linear known head; set it to 0")
    mean = _some_states(model, generator).mean(dim=0)
    # Noise rows lose their part along the mean, so that every concept starts at the same mean logit.
    rows = head.concept_predictor.weight
    rows.sub_(torch.outer(rows @ mean, mean) / mean.dot(mean))
    rows.add_(known_bias * mean / mean.dot(mean))


def _some_states(model: ConceptLM, generator: torch.Generator) -> Tensor:
    config = model.config
    shape = (8, min(config.max_length, 4 * config.block))
    ids = torch.randint(config.vocab_size, shape, generator=generator)
    if config.backbone == "cdlm":
        ids = ids.masked_fill(torch.rand(shape, generator=generator) < 0.5, config.mask_id)
    return model.hidden(ids).flatten(0, 1)
