"""One cached block step taken apart, and attention with and without a table.

    python benchmarks/attention.py [PREFIX ...]

Random weights (d256 L8, block 64, fp32), one row. The parts are timed alone on one thread, as the best of several
runs, in CPU ms; `rest` is what is left of the step: norms, residual connections, cache, colder memory. `table` is the
same attention with a dense mask of ones, as a kernel that always builds one would run it.
"""

import sys
import time
from collections.abc import Callable

import torch

from vitrail.model import BlockCache, ConceptLM, ModelConfig, SdpaKernel, Visibility, init_model
from vitrail.model.attention import rope_angles

BLOCK, VOCAB = 64, 8192


def build_model() -> ConceptLM:
    config = ModelConfig(
        vocab_size=VOCAB,
        num_layers=8,
        num_heads=8,
        num_kv_heads=8,
        width=256,
        max_length=4096,
        block=BLOCK,
        num_concepts=512,
        num_discovered=1536,
        discovered_rank=64,
        pad_id=0,
        bos_id=1,
        eos_id=2,
        eoc_id=3,
        mask_id=4,
    )
    return init_model(config, 0).eval()


def best_ms(run: Callable[[], object], repeats: int = 20) -> float:
    times = []
    for _ in range(repeats):
        started = time.thread_time()
        run()
        times.append(time.thread_time() - started)
    return 1000 * min(times)


@torch.inference_mode()
def step_parts(model: ConceptLM, prefix: int) -> dict[str, float]:
    config, layers = model.config, model.config.num_layers
    cache, ids = BlockCache(), torch.randint(5, VOCAB, (1, prefix + BLOCK))
    model.extend_cache(ids[:, :prefix], cache)
    ids = ids[:, prefix:]
    x, pos = model.embed(ids), torch.arange(prefix, prefix + BLOCK)
    layer = model.transformer.blocks[0]
    q = torch.randn(1, config.num_heads, BLOCK, config.head_width)
    k, v = torch.randn(2, 1, config.kv_heads, prefix + BLOCK, config.head_width)
    attend = SdpaKernel().prepare(Visibility("cdlm", BLOCK, prefix, BLOCK), q.device)
    table = torch.ones(BLOCK, prefix + BLOCK, dtype=torch.bool)
    cos, sin = rope_angles(pos, config.head_width, config.rope_base)
    heads = layer.attn
    parts = {
        "step": best_ms(lambda: model.hidden(ids, cache=cache)),
        "attention": layers * best_ms(lambda: attend(q, k, v)),
        "projections": layers * (best_ms(lambda: heads.project(x, cos, sin)) + best_ms(lambda: heads.c_proj(x))),
        "mlp": layers * best_ms(lambda: layer.mlp(x)),
        "angles": best_ms(lambda: rope_angles(pos, config.head_width, config.rope_base)),
    }
    parts["rest"] = parts["step"] - sum(parts[name] for name in ("attention", "projections", "mlp", "angles"))
    parts["lm head"] = best_ms(lambda: model.lm_logits(x))
    parts["table"] = layers * best_ms(
        lambda: torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=table)
    )
    return parts


def main(prefixes: list[int]) -> None:
    torch.set_num_threads(1)
    model = build_model()
    for number, prefix in enumerate(prefixes):
        parts = step_parts(model, prefix)
        if number == 0:
            print("prefix " + " ".join(f"{name:>12}" for name in parts))
        print(f"{prefix:>6} " + " ".join(f"{value:>12.2f}" for value in parts.values()), flush=True)


if __name__ == "__main__":
    main([int(word) for word in sys.argv[1:]] or [64, 320, 1088])
