"""A tiny model whose parts are all of the size of its logits, so that no error can hide."""

from collections.abc import Callable

import pytest
import torch

from vitrail.model import ConceptLM, ModelConfig, init_model

BLOCK, VOCAB = 4, 41
PAD, BOS, EOS, EOC, MASK = range(5)


@pytest.fixture
def make_model() -> Callable[..., ConceptLM]:
    def build(seed: int = 0, scale: float = 8.0, **changes: object) -> ConceptLM:
        values: dict[str, object] = {
            "vocab_size": VOCAB,
            "num_layers": 2,
            "num_heads": 2,
            "num_kv_heads": 1,
            "width": 12,
            "max_length": 64,
            "block": BLOCK,
            "norm_order": "pre",
            "tie_embeddings": False,
            "num_concepts": 7,
            "num_discovered": 19,
            "discovered_rank": 5,
            "top_k_known": 3,
            "top_k_known_features": 5,
            "top_k_discovered": 6,
            "pad_id": PAD,
            "bos_id": BOS,
            "eos_id": EOS,
            "eoc_id": EOC,
            "mask_id": MASK,
        }
        model = init_model(ModelConfig.parse(values | changes), seed)
        with torch.no_grad():
            model.get_parameter("transformer.lm_head.weight").mul_(scale / 0.4)
        return model.eval().requires_grad_(False)

    return build
