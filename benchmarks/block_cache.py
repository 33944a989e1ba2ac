"""Generation with the exact block cache against recomputing the whole row at every step.

    python benchmarks/block_cache.py [NEW_TOKENS ...]

Random weights (d256 L6), one request, 4 tokens a step. Both ways give the same tokens; the ratio is that of CPU
times, which a busy machine disturbs less than wall times.
"""

import sys
import time

import torch

from vitrail.generate import Sampling, generate
from vitrail.generate.sampling import banned_ids, log_confidence
from vitrail.model import ConceptLM, ModelConfig, init_model

TOKENS_PER_STEP = 4


def build_model(length: int) -> ConceptLM:
    config = ModelConfig(
        vocab_size=4096,
        num_layers=6,
        num_heads=8,
        num_kv_heads=8,
        width=256,
        max_length=length,
        block=32,
        num_concepts=256,
        num_discovered=768,
        discovered_rank=32,
        pad_id=0,
        bos_id=1,
        eos_id=2,
        eoc_id=3,
        mask_id=4,
    )
    model = init_model(config, 0).eval()
    with torch.no_grad():
        # Larger than at the start of training: near ties would make the comparison of tokens a lottery.
        model.transformer.tok_emb.weight.mul_(20)
    return model


@torch.inference_mode()
def recompute(model: ConceptLM, prompt: list[int], num_new: int) -> tuple[int, ...]:
    """Greedy generation without a cache: the row up to the end of the current block, at every step."""
    mask, block = model.config.mask_id, model.config.block
    row = torch.tensor(prompt + [mask] * num_new)
    while (row == mask).any():
        end = (int((row == mask).nonzero()[0]) // block + 1) * block
        is_open = row[:end] == mask
        scores = model.lm_logits(model.hidden(row[None, :end])[0])
        scores[:, banned_ids(model.config, Sampling())] = -torch.inf
        confidence = log_confidence(scores).masked_fill(~is_open, -torch.inf)
        best = confidence.argsort(descending=True, stable=True)[: min(TOKENS_PER_STEP, int(is_open.sum()))]
        row[best] = scores[best].argmax(-1)
    return tuple(row[len(prompt) :].tolist())


def main(sizes: list[int]) -> None:
    prompt = torch.randint(5, 4096, (64,), generator=torch.Generator().manual_seed(0)).tolist()
    print(f"{'new tokens':>10} {'cached cpu-s':>13} {'recomputed cpu-s':>17} {'ratio':>6}  same tokens")
    for num_new in sizes:
        model = build_model(len(prompt) + num_new)
        sampling = Sampling(max_new_tokens=num_new, tokens_per_step=TOKENS_PER_STEP)
        generate(model, [prompt], sampling.model_copy(update={"max_new_tokens": 8}))
        started = time.process_time()
        (trace,) = generate(model, [prompt], sampling)
        cached_s = time.process_time() - started
        started = time.process_time()
        tokens = recompute(model, prompt, num_new)
        recomputed_s = time.process_time() - started
        ratio = recomputed_s / cached_s
        print(f"{num_new:>10} {cached_s:>13.2f} {recomputed_s:>17.2f} {ratio:>6.1f}  {trace.token_ids == tokens}")


if __name__ == "__main__":
    main([int(size) for size in sys.argv[1:]] or [128, 512])
