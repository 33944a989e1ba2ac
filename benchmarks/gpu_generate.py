"""Generation on a GPU: the table of `generation.py sizes`, by attention kernel, with and without compiled layers.

    python benchmarks/gpu_generate.py [--sizes 10M 100M 1B] [--batch 1 8] [--new 256] [--device cuda]

Random weights in bf16. Each row gives tokens a second, time to the first finished block, peak memory of the device,
and how many tokens equal those of the first row (bf16 kernels differ in rounding, and near ties then fall
otherwise). `--device cpu` runs the same script where there is no GPU, without flex attention.
"""

import argparse
import time
from collections.abc import Iterator

import torch
from generation import SIZES, build, num_parameters, prompts_of

from vitrail.api import choose_device
from vitrail.generate import Commit, Sampling, Trace, generate
from vitrail.model import ConceptLM, attention_kernel


def variants(size: str, device: torch.device) -> Iterator[tuple[str, ConceptLM]]:
    """The same weights under each way to run them; a fresh model each, since compiling stays."""
    kernels = ("sdpa", "flex") if device.type == "cuda" else ("sdpa",)
    for is_compiled in (False, True):
        for kernel in kernels:
            model = build(size, torch.bfloat16).to(device)
            model.transformer.kernel = attention_kernel(kernel)
            if is_compiled:
                model.compile_layers()
            yield f"{kernel}{', compiled' if is_compiled else ''}", model


def measure(
    model: ConceptLM, batch: int, num_new: int, device: torch.device
) -> tuple[list[Trace], float, float, float]:
    """Traces, tokens a second, seconds to the first block of the first request, GiB."""
    prompts, first = prompts_of(model, batch), list[float]()
    generate(model, prompts, Sampling(max_new_tokens=num_new))  # compiles what is to be compiled
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
        torch.cuda.synchronize(device)
    started = time.perf_counter()

    def on_commit(commit: Commit) -> None:
        if commit.request == 0:
            first.append(time.perf_counter() - started)

    traces = generate(model, prompts, Sampling(max_new_tokens=num_new), on_commit=on_commit)
    wall = time.perf_counter() - started
    memory = torch.cuda.max_memory_allocated(device) / 2**30 if device.type == "cuda" else float("nan")
    return traces, batch * num_new / wall, first[min(model.config.block, len(first)) - 1], memory


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", nargs="+", default=["10M", "100M", "1B"], choices=list(SIZES))
    parser.add_argument("--batch", nargs="+", type=int, default=[1, 8])
    parser.add_argument("--new", type=int, default=256)
    parser.add_argument("--device", default="cuda")
    asked = parser.parse_args()
    device = choose_device(asked.device)
    print(f"{'size':>5} {'way':<16} {'batch':>5} {'tokens/s':>9} {'first block s':>14} {'GiB':>6}  equal tokens")
    for size in asked.sizes:
        expected: dict[int, list[Trace]] = {}
        for name, model in variants(size, device):
            for batch in asked.batch:
                traces, rate, first, memory = measure(model, batch, asked.new, device)
                pairs = zip(traces, expected.setdefault(batch, traces), strict=True)
                equal = [a == b for x, y in pairs for a, b in zip(x.token_ids, y.token_ids, strict=True)]
                share = 100 * sum(equal) / len(equal)
                print(f"{size:>5} {name:<16} {batch:>5} {rate:>9.1f} {first:>14.2f} {memory:>6.1f}  {share:.0f} %")
            print(f"      {num_parameters(model) / 1e6:.0f} M parameters")
            del model


if __name__ == "__main__":
    main()
