"""Small model configurations for tests; sizes are different primes where divisibility allows."""

from typing import Any

from hypothesis import strategies as st

from vitrail.model import ModelConfig


def small_config(**changes: Any) -> ModelConfig:
    """A two-layer model of 12 channels, 37 tokens, 13 known and 29 discovered concepts."""
    values: dict[str, Any] = {
        "vocab_size": 37,
        "num_layers": 2,
        "num_heads": 2,
        "num_kv_heads": 1,
        "width": 12,
        "max_length": 64,
        "block": 5,
        "mlp_ratio": 2,
        "clip_qkv": 3.0,
        "pad_id": 30,
        "bos_id": 31,
        "eos_id": 32,
        "mask_id": 33,
        "eoc_id": 34,
        "num_concepts": 13,
        "num_discovered": 29,
        "top_k_known": 3,
        "top_k_known_features": 5,
        "top_k_discovered": 7,
        "discovered_rank": 3,
        "pad_multiple": 4,
    }
    return ModelConfig(**(values | changes))


FLAGS = st.fixed_dictionaries(
    {
        "backbone": st.sampled_from(["cdlm", "ar"]),
        "norm_order": st.sampled_from(["pre", "post"]),
        "mlp_type": st.sampled_from(["swiglu", "standard"]),
        "activation": st.sampled_from(["gelu", "relu", "silu"]),
        "num_kv_heads": st.sampled_from([None, 1, 2]),
        "clip_qkv": st.sampled_from([None, 1.0]),
        "top_k_known": st.sampled_from([None, 3, 99]),
        "top_k_known_features": st.sampled_from([None, 2, 5]),
        "slab": st.sampled_from([4, 4096]),
        **{
            name: st.booleans()
            for name in (
                *("use_rms_norm", "use_qk_norm", "use_rope", "rope_full_precision", "use_bias"),
                *("tie_embeddings", "interpretable", "use_attention_known", "use_attention_discovered"),
                *("use_discovered", "apply_top_k_to_discovered", "top_k_on_logits"),
                *("factorize_discovered", "use_residual"),
            )
        },
    }
)
