"""The loader against training: tokens per second it gives, and the default small model takes, on this machine.

    python benchmarks/loader.py [--sequences 10000] [--times 10]

Random tokens in sequences of 256, four chunks each with two labels, in shards of 100 sequences; and ten times as many
sequences, whose memory must be the same. Each way of reading runs in a process of its own, which reports its peak
memory and how much of it came by reading. `cold` is the first pass, after the system was asked to forget the files;
`warm` a second one over the same steps. Training is forward and backward passes of the model of `configs/train.yaml`
(width 128, 6 layers) on the loader's batches.
"""

import argparse
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import numpy as np
import torch

from vitrail.artifacts import Stage
from vitrail.model import ConceptLM, ModelConfig, init_model
from vitrail.packed import Loader, MixtureStage, PackedBatch, PackedCorpus, PackSettings
from vitrail.packed.index import write_index
from vitrail.packed.pack import KIND, LAYOUT
from vitrail.packed.shard import ShardWriter
from vitrail.packed.units import PackedChunk, PackedDocument, Unit

LENGTH, VOCAB, NUM_CONCEPTS, BATCH_SIZE = 256, 2048, 128, 16
SHARD_SEQUENCES = 100
GROUPS = ("a", "b", "c")
MIXTURE = (MixtureStage(weights={"a": 0.6, "b": 0.3, "c": 0.1}),)
CONTROLS = {"pad": 0, "bos": 1, "eos": 2, "eoc": 3, "mask": 4}


def write(out: Path, num_sequences: int) -> None:
    """A packed corpus of random tokens."""
    settings = PackSettings(length=LENGTH, group_by="domain", documents="one")
    values = settings.model_dump() | {"layout": LAYOUT, "controls": CONTROLS, "vocab_size": VOCAB}
    with Stage(out, KIND, values, {}).write() as writing:
        (writing.dir / "shards").mkdir()
        shards = []
        for number in range(num_sequences // SHARD_SEQUENCES):
            writer = ShardWriter(settings, 0, VOCAB, has_answers=False)
            writer.fill(_document(np.random.default_rng(number * SHARD_SEQUENCES + n)) for n in range(SHARD_SEQUENCES))
            writer.save(writing.dir / "shards" / f"{number:05d}.train.safetensors")
            shards.append({"train": writer.groups, "heldout": {}})
        write_index(writing.dir, shards)
        writing.counts.update(concepts=NUM_CONCEPTS, train_sequences=num_sequences, heldout_sequences=0)


def _document(rng: np.random.Generator) -> PackedDocument:
    units = []
    for row in range(4):
        tokens = rng.integers(5, VOCAB, 63 - int(rng.integers(0, 8))).astype(np.uint32)
        labels = rng.choice(NUM_CONCEPTS, 2, replace=False).tolist()
        spans = [3, 4, 5, 6]
        units.append(
            Unit(tokens, PackedChunk(row, 0, len(tokens) - 1, 4 * len(tokens), labels, spans, [labels[0]] * 4))
        )
    return PackedDocument("train", GROUPS[int(rng.integers(3))], units)


def passes(out: Path, mixture: bool, workers: int, num_steps: int) -> dict[str, float]:
    """Tokens per second of two passes over the same steps, the first cold, and memory in MB."""
    packed = PackedCorpus.open(out)
    loader = Loader(packed, BATCH_SIZE, 0, mixture=MIXTURE if mixture else ())
    loader.batch_at(10**6)  # imports and caches
    for path in (out / "shards").iterdir():
        with path.open("rb") as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    before = _peak_mb()
    rates = {}
    for name in ("cold", "warm"):
        rates[name] = _rate(lambda: loader.stream(0, num_steps, workers=workers))
    return rates | {"peak_mb": _peak_mb(), "growth_mb": _peak_mb() - before}


def _peak_mb() -> float:
    """Of this program: the figure of `getrusage` starts at the memory of the process that started it."""
    fields = dict(line.split(":") for line in Path("/proc/self/status").read_text().splitlines())
    return int(fields["VmHWM"].split()[0]) / 1024


def _rate(stream: Callable[[], Iterator[PackedBatch]]) -> float:
    started, tokens = time.perf_counter(), 0
    for batch in stream():
        tokens += batch.tokens.numel()
    return tokens / (time.perf_counter() - started)


def model() -> ConceptLM:
    """The default small model."""
    config = ModelConfig(
        vocab_size=VOCAB,
        num_layers=6,
        num_heads=4,
        num_kv_heads=2,
        width=128,
        max_length=LENGTH,
        block=16,
        num_concepts=NUM_CONCEPTS,
        num_discovered=3 * NUM_CONCEPTS,
        discovered_rank=32,
        top_k_known=16,
        top_k_known_features=16,
        top_k_discovered=64,
        pad_id=0,
        bos_id=1,
        eos_id=2,
        eoc_id=3,
        mask_id=4,
    )
    return init_model(config, 0)


def trained(out: Path, num_steps: int = 8) -> float:
    """Tokens per second of forward and backward passes."""
    network, batches = model(), Loader(PackedCorpus.open(out), BATCH_SIZE, 0).stream(0, num_steps + 1)
    _step(network, next(batches))
    started = time.perf_counter()
    for batch in batches:
        _step(network, batch)
    return num_steps * BATCH_SIZE * LENGTH / (time.perf_counter() - started)


def _step(network: ConceptLM, batch: PackedBatch) -> None:
    logits = network(batch.tokens).logits
    torch.nn.functional.cross_entropy(logits.flatten(0, 1), batch.tokens.flatten()).backward()
    network.zero_grad()


def main() -> None:
    parser = argparse.ArgumentParser(description="The loader against training.")
    parser.add_argument("--sequences", type=int, default=10_000)
    parser.add_argument("--times", type=int, default=10, help="how much larger the large corpus is")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        sizes = {"small": arguments.sequences, "large": arguments.sequences * arguments.times}
        for size, num in sizes.items():
            write(Path(name) / size, num)
        taken = trained(Path(name) / "small")
        print(f"training takes {taken:,.0f} tokens/s ({torch.get_num_threads()} threads)")
        slowest = np.inf
        for size, num in sizes.items():
            for mixture, workers in ((False, 0), (False, 1), (True, 1)):
                with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
                    steps = arguments.sequences // BATCH_SIZE
                    found = pool.submit(passes, Path(name) / size, mixture, workers, steps).result()
                slowest = min(slowest, found["cold"], found["warm"])
                print(
                    f"{num:>8,} sequences, {workers} workers, {'mixture' if mixture else 'no mixture':<10}: "
                    f"{found['cold'] / 1e6:6.2f} M tokens/s cold, {found['warm'] / 1e6:6.2f} warm; "
                    f"peak {found['peak_mb']:,.0f} MB, {found['growth_mb']:,.0f} of them by reading"
                )
    print(f"the loader's slowest pass is {slowest / taken:,.0f} times as fast as training (wanted: 20)")


if __name__ == "__main__":
    main()
