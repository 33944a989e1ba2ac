"""Training on one GPU: tokens a second, and use of the device (MFU).

    python benchmarks/gpu_train.py [--size 1B] [--steps 20] [--warmup 5] [--tokens 16384] [--device cuda] [--json]

A model of the dial's size, bf16, compiled layers, the kernel that training takes on the device, and layers recomputed
where the dial says so; real steps (gradients over micro-batches, update) on random tokens with labels. MFU counts each
product once, without what is recomputed, over the published peak of the GPU; the target is 35 % at 1 B parameters on
one H200. `--tokens` are those that run at once, `--batch` the micro-batches of a step: the dial's batch divided by it,
but at most 4, since the update is 1 % of a step even so. `--recompute yes|no`, `--eager` and `--kernel sdpa` change one
thing at a time. `--size 1M --steps 2 --device cpu` runs the same script without a GPU.
"""

import argparse
import json
import statistics
import time
from collections.abc import Callable
from dataclasses import replace

import torch
from train_step import SHARE, Shape, batch_of

from vitrail.api import choose_device
from vitrail.model import ConceptLM, SdpaKernel, init_model, training_kernel
from vitrail.model.flops import training_flops
from vitrail.packed import PackedBatch
from vitrail.train import TrainSettings
from vitrail.train.dial import dial
from vitrail.train.distributed import Root, World
from vitrail.train.masking import expected_noise
from vitrail.train.optim import Optimisers
from vitrail.train.speed import peak_flops
from vitrail.train.step import gradients

TARGET = 0.35
MOST_MICRO_BATCHES = 4


def settings_of(asked: argparse.Namespace, length: int) -> TrainSettings:
    """The dial's run, with a batch of a few micro-batches."""
    given = TrainSettings.parse({"size": asked.size}, where="--size")
    at_once = max(1, asked.tokens // length)
    number = asked.batch or min(MOST_MICRO_BATCHES, max(1, given.batch_size // at_once))
    update = {
        "batch_size": number * at_once,
        "micro_batch": at_once,
        "compile": not asked.eager,
        "activation_checkpointing": {"dial": given.activation_checkpointing, "yes": True, "no": False}[asked.recompute],
    }
    return given.model_copy(update=update)


def model_of(asked: argparse.Namespace, settings: TrainSettings, device: torch.device) -> ConceptLM:
    """The model as `train.run` prepares it: on its device, with its kernel, recomputed or compiled layers."""
    config = dial(size=asked.size).config
    model = init_model(config, 0, known_bias=settings.model.known_bias).to(device)
    model.transformer.kernel = SdpaKernel() if asked.kernel == "sdpa" else training_kernel(config, device)
    if settings.activation_checkpointing:
        model.recompute_layers()
    if settings.compile:
        model.compile_layers()
    return model


def random_batch(model: ConceptLM, num_rows: int, seed: int) -> PackedBatch:
    config = model.config
    # Control tokens are the vocabulary's last ids.
    sizes = {"known": config.num_concepts, "vocab": config.vocab_size - 5, "length": config.max_length}
    return batch_of(replace(Shape(), **sizes, batch=num_rows), seed)


def seconds_of(step: Callable[[int], object], steps: int, warmup: int, device: torch.device) -> list[float]:
    """Wall seconds of every step after the first ones, which compile."""
    found = []
    for number in range(warmup + steps):
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        started = time.perf_counter()
        step(number)
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        found.append(time.perf_counter() - started)
    return found[warmup:]


def measure(asked: argparse.Namespace) -> dict[str, object]:
    device = choose_device(asked.device)
    length = dial(size=asked.size).config.max_length
    settings = settings_of(asked, length)
    model, world = model_of(asked, settings, device), World(device=device)
    root, optimisers = Root(model), Optimisers(model, settings.optim)
    batches = [random_batch(model, settings.batch_size, seed) for seed in range(2)]

    def step(number: int) -> None:
        gradients(root, batches[number % 2], settings, SHARE, number, world)
        optimisers.step(1e-3)

    median_s = statistics.median(seconds_of(step, asked.steps, asked.warmup, device))
    tokens = settings.batch_size * length
    predicted = expected_noise(settings.noise, SHARE)
    flops = training_flops(model.config, length, predicted).total
    peak = peak_flops(device, settings.precision)
    mfu = None if peak is None else tokens * flops / median_s / peak
    return {
        "size": asked.size,
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu",
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
        "kernel": type(model.transformer.kernel).__name__,
        "is_compiled": settings.compile,
        "is_recomputed": settings.activation_checkpointing,
        "batch_tokens": tokens,
        "at_once_tokens": (settings.micro_batch or settings.batch_size) * length,
        "step_s": median_s,
        "tokens_per_s": tokens / median_s,
        "flops_per_token": flops,
        "peak_flops": peak,
        "mfu": mfu,
        "memory_gib": torch.cuda.max_memory_allocated(device) / 2**30 if device.type == "cuda" else None,
        "target_mfu": TARGET,
        "is_met": None if mfu is None else mfu >= TARGET,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", default="1B")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--warmup", type=int, default=5)
    parser.add_argument("--tokens", type=int, default=16_384)
    parser.add_argument("--batch", type=int, help="micro-batches of a step")
    parser.add_argument("--recompute", choices=["dial", "yes", "no"], default="dial")
    parser.add_argument("--kernel", choices=["auto", "sdpa"], default="auto")
    parser.add_argument("--eager", action="store_true")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args()
    found = measure(asked)
    print(json.dumps(found) if asked.json else "\n".join(f"{name:<16} {value}" for name, value in found.items()))


if __name__ == "__main__":
    main()
