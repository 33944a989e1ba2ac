"""Tiny random checkpoints with any combination of the released flags, in either layout of `config.json`."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from hypothesis import strategies as st
from safetensors.torch import save_file

from tests.compat.twin import Array, Twin, concept_settings, tensor_shapes
from vitrail.model import ConceptLM, load_model

MASK, EOS, PAD, EOC = 33, 32, 30, 34
_EMBEDDING, _LM_HEAD = "transformer.tok_emb.weight", "transformer.lm_head.weight"
_BACKBONE: dict[str, Any] = {
    "vocab_size": 37,
    "n_layers": 2,
    "n_head": 4,
    "n_embd": 24,
    "n_kv_heads": 2,
    "block_size": 64,
    "diff_block_size": 5,
    "use_rms_norm": True,
    "norm_eps": 1e-3,
    "norm_order": "post",
    "use_qk_norm": True,
    "use_rope": True,
    "rope_base": 500.0,
    "rope_full_precision": True,
    "clip_qkv": 1.0,
    "mlp_type": "swiglu",
    "activation": "gelu",
    "mlp_ratio": 2,
    "intermediate_size": None,
    "use_bias": False,
    "weight_sharing": True,
    "interpretable": True,
    "pad_token_id": PAD,
    "bos_token_id": 31,
    "eos_token_id": EOS,
    "mask_token_id": MASK,
    "endofchunk_token_id": EOC,
}
_CONCEPT: dict[str, Any] = {
    "n_concepts": 13,
    "n_unknown_concepts": 29,
    "concept_dim": 24,
    "use_attention_known": False,
    "use_attention_unknown": False,
    "topk_known": 3,
    "topk_known_features": 5,
    "unknown_topk": 7,
    "use_unknown": True,
    "apply_topk_to_unknown": True,
    "topk_on_logits": False,
    "factorize_unknown": True,
    "factorize_rank": 3,
    "use_epsilon_correction": True,
    "pad_multiple": 4,
}
_BOOLEANS = [
    *("use_rms_norm", "use_qk_norm", "use_rope", "rope_full_precision", "use_bias", "weight_sharing"),
    *("use_attention_known", "use_attention_unknown", "use_unknown", "apply_topk_to_unknown"),
    *("topk_on_logits", "factorize_unknown", "use_epsilon_correction"),
]
FLAGS: dict[str, st.SearchStrategy[Any]] = {
    **{name: st.booleans() for name in _BOOLEANS},
    "n_kv_heads": st.sampled_from([None, 1, 2, 4]),
    "n_layers": st.sampled_from([1, 3]),
    # Whatever is not "pre" behaves as post.
    "norm_order": st.sampled_from(["pre", "post", "sandwich"]),
    "clip_qkv": st.sampled_from([None, 1.0]),
    "mlp_type": st.sampled_from(["swiglu", "standard"]),
    "activation": st.sampled_from(["gelu", "relu", "silu"]),
    "intermediate_size": st.sampled_from([None, 17]),
    "topk_known": st.sampled_from([None, 3, 99]),
    "topk_known_features": st.sampled_from([None, 2, 5, 99]),
    "unknown_topk": st.sampled_from([None, 7, 99]),
    # Of 67 concepts without top-k, 64 are reported.
    "n_unknown_concepts": st.sampled_from([29, 67]),
    "pad_multiple": st.sampled_from([1, 4, 16]),
    "slab": st.sampled_from([4, 4096]),
    "is_nested": st.booleans(),
    "stored": st.sampled_from(["embedding", "lm_head", "both"]),
}
FLAG_SETS = st.fixed_dictionaries(FLAGS)


def configuration(**flags: Any) -> dict[str, Any]:
    """A raw `config.json`; `is_nested` chooses the layout, `slab` the streaming block."""
    flags = {name: value for name, value in flags.items() if name != "stored"}
    is_nested, slab = flags.pop("is_nested", False), flags.pop("slab", 4)
    backbone = {name: flags.pop(name, value) for name, value in _BACKBONE.items()}
    concept = {name: flags.pop(name, value) for name, value in _CONCEPT.items()}
    assert not flags, f"unknown flags {flags}"
    if not concept["use_unknown"]:
        concept["n_unknown_concepts"] = None
    if is_nested:
        inner = {**concept, "block_size": slab, "max_concepts": 16}
        nested = {"concept": inner} if backbone["interpretable"] else {}
        return {"model_type": "causal_diffusion", **backbone, **nested}
    return {"model_type": "steerling", **backbone, **concept, "concept_block_size": slab}


def random_tensors(raw: dict[str, Any], seed: int, loudness: float = 1.0) -> dict[str, Array]:
    """Random weights; padding rows hold huge numbers. A `loudness` far above 1 drives concept logits into the clamp."""
    generator = np.random.default_rng(seed)
    concept = concept_settings(raw)
    counts = {"known_head": concept.get("n_concepts"), "unknown_head": concept.get("n_unknown_concepts")}
    tensors: dict[str, Array] = {}
    for name, shape in tensor_shapes(raw).items():
        is_norm = len(shape) == 1 and name.endswith("weight")
        tensors[name] = generator.normal(float(is_norm), 0.4, shape)
        if "predictor" in name or "query" in name:
            tensors[name] *= loudness
        is_table = name.rsplit(".", 2)[-2] in (
            "concept_embedding",
            "concept_predictor",
            "embedding_coef",
            "predictor_up",
        )
        if is_table:
            tensors[name][counts[name.split(".")[0]] :] = 1e6
    if raw["weight_sharing"]:
        tensors[_LM_HEAD] = tensors[_EMBEDDING]
    return tensors


def checkpoint(directory: Path, seed: int, loudness: float = 1.0, **flags: Any) -> tuple[ConceptLM, Twin]:
    """The same random checkpoint loaded by the package, from disk and in fp64, and by the twin."""
    raw = configuration(**flags)
    tensors = random_tensors(raw, seed, loudness)
    dropped = {"embedding": _LM_HEAD, "lm_head": _EMBEDDING}.get(flags.get("stored", "embedding"))
    stored = {
        name: torch.from_numpy(tensor.copy())
        for name, tensor in tensors.items()
        if not (raw["weight_sharing"] and name == dropped)
    }
    directory.mkdir(exist_ok=True)
    (directory / "config.json").write_text(json.dumps(raw))
    save_file(stored, directory / "model.safetensors")
    return load_model(directory), Twin(raw, tensors)
