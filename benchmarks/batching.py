"""Requests of different length written together against one after another.

    python benchmarks/batching.py [NUM_REQUESTS ...]

Random weights (10 M), 64 new tokens, 4 a step, prompts of 8 to 200 tokens, every second request steered. Both
ways give the same tokens; the ratio is that of CPU times, which a busy machine disturbs less than wall times.
"""

import sys
import time

import torch
from generation import build

from vitrail.generate import Sampling, Trace, generate
from vitrail.model import ConceptLM
from vitrail.steer import SteerPlan

TOKENS_PER_STEP = 4


def requests(model: ConceptLM, count: int) -> list[tuple[list[int], Sampling, SteerPlan | None]]:
    generator = torch.Generator().manual_seed(0)
    made = []
    for number in range(count):
        length = int(torch.randint(8, 200, (), generator=generator))
        prompt = torch.randint(5, model.config.vocab_size, (length,), generator=generator).tolist()
        sampling = Sampling(max_new_tokens=64, temperature=0.8, seed=number, tokens_per_step=TOKENS_PER_STEP)
        direction = torch.randn(model.config.width, generator=generator)
        made.append((prompt, sampling, SteerPlan(direction, 3, None, "") if number % 2 else None))
    return made


def one_by_one(model: ConceptLM, count: int) -> list[Trace]:
    return [generate(model, [prompt], sampling, [plan])[0] for prompt, sampling, plan in requests(model, count)]


def together(model: ConceptLM, count: int) -> list[Trace]:
    prompts, samplings, plans = zip(*requests(model, count), strict=True)
    return generate(model, prompts, samplings, plans)


def main() -> None:
    model = build("10M")
    one_by_one(model, 1)
    for count in [int(word) for word in sys.argv[1:]] or [4, 16]:
        seconds, traces = {}, {}
        for way in (one_by_one, together):
            started = time.process_time()
            traces[way.__name__] = way(model, count)
            seconds[way.__name__] = time.process_time() - started
        pairs = zip(traces["one_by_one"], traces["together"], strict=True)
        equal = sum(alone.token_ids == other.token_ids for alone, other in pairs)
        ratio = seconds["one_by_one"] / seconds["together"]
        rate = count * 64 / seconds["together"]
        speed = f"together {ratio:.1f} times as fast ({rate:.0f} tokens/cpu-s)"
        print(f"{count:>3} requests: {speed}; {equal} of {count} equal")


if __name__ == "__main__":
    main()
