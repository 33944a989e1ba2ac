"""Generation against the release's own loop, and its speed by size, batch and policy.

    python benchmarks/generation.py reference [--threads N]        cached blocks against a full forward each step
    python benchmarks/generation.py batch                          8 requests together against one after another
    python benchmarks/generation.py trace                          what recording concepts and alternatives costs
    python benchmarks/generation.py sizes [10M 100M 1B]            tokens a second, first block, memory
    python benchmarks/generation.py threshold MODEL PACKED         several sure tokens a step, on a trained model
    python benchmarks/generation.py recited                        the same on a model trained here to know its text

Random weights but for the last two. Ratios are of CPU times, which a busy machine disturbs less than wall times. Every
step of the release's loop costs the same, so it is timed over its first tokens; the cached engine writes all.
"""

import argparse
import itertools
import os
import resource
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

os.environ.setdefault("GOMP_SPINCOUNT", "10000")  # as the command line does: threads that wait do not burn a core

import numpy as np
import torch

import vitrail
from vitrail.compat import Commit as ReferenceCommit
from vitrail.compat import ReferenceOptions, reference_generation
from vitrail.generate import Commit, Sampling, Trace, generate
from vitrail.metrics import NGramModel, fit_ngram
from vitrail.model import ConceptLM, DecomposedOutput, ModelConfig, init_model
from vitrail.packed import PackedCorpus

REFERENCE_STEPS = 16
PROMPT = 64

SIZES: dict[str, dict[str, Any]] = {
    "1M": {"width": 96, "num_layers": 6, "num_heads": 4, "vocab_size": 2048, "block": 32},
    "10M": {"width": 256, "num_layers": 8, "num_heads": 8, "vocab_size": 8192, "block": 64},
    "100M": {"width": 768, "num_layers": 12, "num_heads": 12, "vocab_size": 16384, "block": 64},
    "1B": {"width": 2048, "num_layers": 16, "num_heads": 16, "vocab_size": 32768, "block": 64},
}


def build(size: str, dtype: torch.dtype = torch.float32) -> ConceptLM:
    """Random weights in the shape of the release (post-norm, GQA, SwiGLU, factorised head)."""
    shape = SIZES[size]
    vocab_size = shape["vocab_size"]
    specials = {name: vocab_size - 5 + n for n, name in enumerate(("pad_id", "bos_id", "eos_id", "eoc_id", "mask_id"))}
    config = ModelConfig(
        **shape,
        **specials,
        num_kv_heads=2,
        mlp_ratio=4,
        num_concepts=8 * shape["width"],
        num_discovered=24 * shape["width"],
        discovered_rank=max(16, shape["width"] // 4),
    )
    model = init_model(config, 0).to(dtype).eval()
    with torch.no_grad():
        model.transformer.tok_emb.weight.mul_(20)
    return model


def num_parameters(model: ConceptLM) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


def prompts_of(model: ConceptLM, count: int) -> list[list[int]]:
    generator = torch.Generator().manual_seed(0)
    return torch.randint(0, model.config.vocab_size - 5, (count, PROMPT), generator=generator).tolist()


@dataclass(frozen=True)
class Timed:
    """CPU and wall seconds of a piece of work."""

    cpu: float
    wall: float
    result: Any


def timed(work: Callable[[], Any]) -> Timed:
    cpu, wall = time.process_time(), time.perf_counter()
    result = work()
    return Timed(time.process_time() - cpu, time.perf_counter() - wall, result)


class _Enough(Exception):
    pass


def reference_seconds(
    model: ConceptLM, prompt: list[int], num_new: int, steps: int
) -> tuple[float, float, list[ReferenceCommit]]:
    """Seconds a token of the release's loop, CPU and wall, and its first commits."""
    commits: list[ReferenceCommit] = []
    marks = [(time.process_time(), time.perf_counter())]

    def watch(commit: ReferenceCommit, _output: DecomposedOutput) -> None:
        commits.append(commit)
        marks.append((time.process_time(), time.perf_counter()))
        if len(commits) == steps:
            raise _Enough

    options = ReferenceOptions(max_new_tokens=num_new, temperature=0.0, top_p=0.0, use_entropy_sampling=False)
    try:
        with torch.inference_mode():
            reference_generation(model, torch.tensor([prompt]), options, on_commit=watch)
    except _Enough:
        pass
    cpu, wall = (sorted(b - a for a, b in itertools.pairwise(times)) for times in zip(*marks, strict=True))
    return cpu[len(cpu) // 2], wall[len(wall) // 2], commits


def reference() -> None:
    model = build("10M")
    (prompt,) = prompts_of(model, 1)
    print(f"{num_parameters(model) / 1e6:.1f} M parameters, {torch.get_num_threads()} threads, one token a step")
    greedy = {"repetition_penalty": 1.1, "grid": "prompt", "allowed_specials": ("eoc",)}
    generate(model, [prompt], Sampling(max_new_tokens=8))
    for num_new in (256, 1024):
        slow, slow_wall, expected = reference_seconds(model, prompt, num_new, REFERENCE_STEPS)
        ours = timed(lambda num_new=num_new: generate(model, [prompt], Sampling(max_new_tokens=num_new, **greedy))[0])
        found = ours.result.commits[:REFERENCE_STEPS]
        equal = sum((a.positions, a.tokens) == (b.positions, b.tokens) for a, b in zip(found, expected, strict=True))
        cpu, wall = slow * num_new / ours.cpu, slow_wall * num_new / ours.wall
        rate = f"{num_new / ours.wall:.0f} tokens/s"
        ratios = f"{cpu:.1f} times as fast in CPU time, {wall:.1f} in wall time"
        print(f"{PROMPT} + {num_new}: {ratios} ({rate}); first {equal} commits equal")


def batch() -> None:
    for size in ("1M", "10M"):
        model = build(size)
        prompts = prompts_of(model, 8)
        sampling = Sampling(max_new_tokens=128)
        generate(model, prompts[:1], Sampling(max_new_tokens=8))
        alone = timed(lambda: [generate(model, [prompt], sampling)[0] for prompt in prompts])  # noqa: B023
        together = timed(lambda: generate(model, prompts, sampling))  # noqa: B023
        equal = sum(a.token_ids == b.token_ids for a, b in zip(alone.result, together.result, strict=True))
        cpu, wall = alone.cpu / together.cpu, alone.wall / together.wall
        speed = f"8 together {cpu:.2f} times as fast in CPU time, {wall:.2f} in wall time"
        rate = f"{8 * 128 / together.wall:.0f} tokens/s"
        print(f"{num_parameters(model) / 1e6:.1f} M: {speed} ({rate}); {equal} of 8 equal")


def trace() -> None:
    model = build("10M")
    prompts = prompts_of(model, 1)
    ways = {
        "nothing": {},
        "alternatives": {"num_alternatives": 5},
        "and concepts": {"num_alternatives": 5, "num_concepts": 16},
    }
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    generate(model, prompts, Sampling(max_new_tokens=8))
    for _ in range(9):
        for name, options in ways.items():
            run = timed(lambda options=options: generate(model, prompts, Sampling(max_new_tokens=128, **options)))
            seconds[name].append(run.wall)
    best = {name: min(values) for name, values in seconds.items()}
    for name in list(ways)[1:]:
        print(f"recording {name}: {100 * (best[name] / best['nothing'] - 1):+.1f} % wall time, best of 9")


def sizes(names: Sequence[str]) -> None:
    for name in names or ("10M", "100M", "1B"):
        model = build(name, torch.bfloat16 if name == "1B" else torch.float32)
        (prompt,) = prompts_of(model, 1)
        num_new = 256 if name == "10M" else 64
        first: list[float] = []
        started = time.perf_counter()

        def on_commit(commit: Commit, first: list[float] = first, started: float = started) -> None:
            first.append(time.perf_counter() - started)

        run = timed(lambda: generate(model, [prompt], Sampling(max_new_tokens=num_new), on_commit=on_commit))  # noqa: B023
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
        dtype = str(model.transformer.lm_head.weight.dtype).removeprefix("torch.")
        block = first[min(model.config.block, len(first)) - 1]
        times = f"first token after {first[0]:.2f} s, first block after {block:.2f} s"
        label = f"{name} ({num_parameters(model) / 1e6:.0f} M, {dtype})"
        print(f"{label}: {num_new / run.wall:.1f} tokens/s, {times}, peak memory {peak:.1f} GiB")


def threshold(path: Path, corpus: Path) -> None:
    """32 prompts from held-out text; the scorer is an interpolated Kneser-Ney trigram of the training text."""
    packed = PackedCorpus.open(corpus)
    rows = range(min(32, packed.num_sequences("heldout")))
    prompts = packed.batch("heldout", rows).tokens[:, :PROMPT].tolist()
    _compare_thresholds(vitrail.load(path).network, prompts, fit_ngram(packed, 3), {"repetition_penalty": 1.5})


def recited(num_steps: int = 700) -> None:
    """Text made of 16 sentences of 24 to 40 random words, in random order: all but the choice of the next is known."""
    torch.manual_seed(0)
    model = build("1M").train()
    vocab_size, length = 512, PROMPT + 256
    generator = torch.Generator().manual_seed(0)
    sizes = torch.randint(24, 41, (16,), generator=generator).tolist()
    sentences = [torch.randint(0, vocab_size, (size,), generator=generator) for size in sizes]

    def text() -> torch.Tensor:
        order = torch.randint(0, len(sentences), (length // 24 + 1,), generator=generator).tolist()
        return torch.cat([sentences[number] for number in order])[:length]

    optimiser = torch.optim.AdamW(model.parameters(), lr=2e-3, betas=(0.9, 0.95))
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimiser, 2e-3, total_steps=num_steps)
    block = model.config.block
    for _ in range(num_steps):
        ids = torch.stack([text() for _ in range(4)])
        noise = torch.rand(len(ids), length // block, generator=generator).repeat_interleave(block, 1)
        is_masked = torch.rand(ids.shape, generator=generator) < noise
        hidden = model.hidden(ids.masked_fill(is_masked, model.config.mask_id))
        loss = torch.nn.functional.cross_entropy(model.lm_logits(hidden[is_masked]), ids[is_masked])
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        schedule.step()
    print(f"trained {num_steps} steps, loss {loss.item():.2f} nats a masked token")
    rows = [text().numpy() for _ in range(200)]
    scorer = NGramModel.fit(rows, 3, model.config.vocab_size)
    _compare_thresholds(model.eval(), [text()[:PROMPT].tolist() for _ in range(16)], scorer, {})


def _compare_thresholds(
    model: ConceptLM, prompts: list[list[int]], scorer: NGramModel, options: dict[str, Any]
) -> None:
    num_new = min(256, model.config.max_length - PROMPT) // model.config.block * model.config.block
    options = {"max_new_tokens": num_new, **options}
    greedy = timed(lambda: generate(model, prompts, Sampling(**options)))
    slow, _, _ = reference_seconds(model, prompts[0], num_new, REFERENCE_STEPS)
    alone = timed(lambda: generate(model, prompts[:1], Sampling(**options)))
    ratio = slow * num_new / alone.cpu
    print(f"{PROMPT} + {num_new}, one token a step: {ratio:.1f} times the release's loop in CPU time")
    for value in (0.999, 0.997, 0.995, 0.99, 0.95, 0.9, 0.7):
        sampling = Sampling(**options, threshold=value)
        run = timed(lambda sampling=sampling: generate(model, prompts, sampling))
        alone = timed(lambda sampling=sampling: generate(model, prompts[:1], sampling))
        likelihood = _mean_logprob(scorer, run.result) / _mean_logprob(scorer, greedy.result) - 1
        print(
            f"threshold {value}: {slow * num_new / alone.cpu:.1f} times the release's loop, "
            f"{_tokens_per_step(run.result):.2f} tokens a step, {100 * _agreement(greedy.result, run.result):.1f} % "
            f"of tokens as one a step, scorer's log-likelihood {100 * likelihood:+.2f} %, "
            f"distinct-2 {_distinct2(run.result) / _distinct2(greedy.result):.3f} times"
        )


def _mean_logprob(scorer: NGramModel, traces: Sequence[Trace]) -> float:
    rows = [np.asarray([*trace.prompt_ids, *trace.token_ids]) for trace in traces]
    return float(np.concatenate([scorer.logprobs(row)[PROMPT:] for row in rows]).mean())


def _distinct2(traces: Sequence[Trace]) -> float:
    shares = [len(set(itertools.pairwise(t.token_ids))) / (len(t.token_ids) - 1) for t in traces]
    return sum(shares) / len(shares)


def _tokens_per_step(traces: Sequence[Trace]) -> float:
    return sum(len(t.token_ids) for t in traces) / sum(len(t.commits) for t in traces)


def _agreement(left: Sequence[Trace], right: Sequence[Trace]) -> float:
    pairs = [(a, b) for x, y in zip(left, right, strict=True) for a, b in zip(x.token_ids, y.token_ids, strict=True)]
    return sum(a == b for a, b in pairs) / len(pairs)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["reference", "batch", "trace", "sizes", "threshold", "recited"])
    parser.add_argument("arguments", nargs="*")
    parser.add_argument("--threads", type=int, default=2)
    asked = parser.parse_args()
    torch.set_num_threads(asked.threads)
    if asked.what == "sizes":
        sizes(asked.arguments)
    elif asked.what == "threshold":
        threshold(*map(Path, asked.arguments))
    else:
        {"reference": reference, "batch": batch, "trace": trace, "recited": recited}[asked.what]()


if __name__ == "__main__":
    main()
