"""What one training step costs: the concept module, the backbones, block diffusion, precision, compiling, memory.

    python benchmarks/train_step.py [--only NAME ...] [--json] [--width 320 --layers 10 ...]

    concepts         with and without the concept module, and where all concepts are summed
    backbones        cdlm against ar
    block_diffusion  cdlm against block diffusion with a clean copy beside the noisy one (§5.2)
    precision        bf16 autocast against fp32
    compile          compiled layers against eager ones
    checkpointing    layers computed again in the backward: time, and memory beyond weights and gradients
    memory           memory of a process over 200 steps

Random weights and tokens, the real step (`train.step.gradients`, `train.Optimisers`). Two ways are run in turn in one
process; `ms` and `base` are medians of CPU time, which a busy machine disturbs less than wall time, and the ratio is
the median over the pairs. A step is that of the dial's batch: forward and backward measured on `--batch` sequences and
scaled, one update. The default shape is the ladder's for a backbone of 10 M parameters, with 1,000 known and 3,000
discovered concepts. Run it on one thread of an otherwise idle core.
"""

import argparse
import ctypes
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from block_diffusion import BlockDiffusionLM, check_equal

from vitrail.model import ConceptLM, init_model
from vitrail.model.flops import parameter_count, training_flops
from vitrail.packed import PackedBatch
from vitrail.text import ControlIds
from vitrail.train import TrainSettings
from vitrail.train.distributed import Root, World
from vitrail.train.ladder import Rung, run_values, suggested_length
from vitrail.train.masking import expected_noise
from vitrail.train.optim import Optimisers
from vitrail.train.shape import model_config
from vitrail.train.step import gradients

SHARE = 0.5
"""How much of a run is done: noise and forcing are those of its middle."""
CHUNK_TOKENS, LABELS = 60, 3
FIRST_TEXT_ID = 5


@dataclass(frozen=True)
class Shape:
    """Sizes of model and batch."""

    width: int = 320
    layers: int = 10
    known: int = 1000
    discovered: int = 3000
    vocab: int = 4096
    length: int = 256
    batch: int = 4


@dataclass(frozen=True)
class Row:
    """One line of the table: two ways to run a step, and how their costs compare."""

    name: str
    ms: float
    base_ms: float
    ratio: float
    target: float | None = None
    note: str = ""

    @property
    def is_met(self) -> bool | None:
        """Whether the ratio is at most the target."""
        return None if self.target is None else self.ratio <= self.target


def settings_of(shape: Shape, **changes: Any) -> TrainSettings:
    """The defaults of training, in the ladder's shape; `model` changes are given as a mapping."""
    model = Rung(shape.width, shape.layers).model()
    model = model.model_copy(update={"discovered_ratio": shape.discovered / shape.known} | changes.pop("model", {}))
    return TrainSettings(model=model, batch_size=shape.batch, **changes)


def model_of(settings: TrainSettings, shape: Shape) -> ConceptLM:
    config = model_config(
        settings.model,
        vocab_size=shape.vocab,
        num_concepts=shape.known,
        max_length=shape.length,
        controls=ControlIds(*range(FIRST_TEXT_ID)),
    )
    return init_model(config, 0, known_bias=settings.model.known_bias if config.interpretable else 0.0)


def batch_of(shape: Shape, seed: int = 0) -> PackedBatch:
    """Random tokens in chunks of about 60, each with a few labels, one of them on a span."""
    rng = torch.Generator().manual_seed(seed)
    where, per_row = torch.arange(shape.length), -(-shape.length // CHUNK_TOKENS)
    chunk = where // CHUNK_TOKENS + per_row * torch.arange(shape.batch)[:, None]
    chunk = chunk.masked_fill(where % CHUNK_TOKENS == 0, -1)
    num_chunks = shape.batch * per_row
    label_chunk = torch.arange(num_chunks).repeat_interleave(LABELS)
    label_concept = torch.randint(shape.known, label_chunk.shape, generator=rng)
    inside = (chunk.flatten() >= 0).nonzero()[:, 0]
    span_pos = inside[torch.rand(len(inside), generator=rng) < 0.1]
    return PackedBatch(
        tokens=torch.randint(FIRST_TEXT_ID, shape.vocab, (shape.batch, shape.length), generator=rng),
        loss_mask=torch.ones(shape.batch, shape.length, dtype=torch.bool),
        chunk=chunk,
        num_chunks=num_chunks,
        label_chunk=label_chunk,
        label_concept=label_concept,
        span_pos=span_pos,
        span_concept=torch.randint(shape.known, span_pos.shape, generator=rng),
        rows=torch.arange(num_chunks),
        num_bytes=4 * shape.batch * shape.length,
    )


class Training:
    """A model with its optimisers and one batch; every call of `step` is a step of training."""

    def __init__(self, shape: Shape, settings: TrainSettings, model: ConceptLM | None = None) -> None:
        self.shape, self.settings, self.batch = shape, settings, batch_of(shape)
        self.model = model or model_of(settings, shape)
        self.root, self.optimisers = Root(self.model), Optimisers(self.model, settings.optim)
        if isinstance(self.model, BlockDiffusionLM):
            self.model.clean = self.batch.tokens

    def step(self, number: int = 0) -> tuple[float, float]:
        """CPU ms of gradients and of the update; the number of the step seeds its draws."""
        started = time.process_time()
        gradients(self.root, self.batch, self.settings, SHARE, number, World())
        between = time.process_time()
        self.optimisers.step(1e-3)
        return 1000 * (between - started), 1000 * (time.process_time() - between)

    @property
    def scale(self) -> float:
        """Measured batches in a batch of the dial."""
        run = run_values(self.shape.width, parameter_count(self.model).total, 1)
        tokens = run["batch_size"] * suggested_length(self.shape.width)
        return float(tokens / (self.shape.batch * self.shape.length))

    def flops(self) -> dict[str, float]:
        """Operations of a token, by part."""
        config = self.model.config
        predicted = 1.0 if config.backbone == "ar" else expected_noise(self.settings.noise, SHARE)
        return asdict(training_flops(config, self.shape.length, predicted))


@dataclass(frozen=True)
class Pair:
    """Costs of two ways, and how they compare.

    Attributes:
        ms: of the first, a step of the dial's batch.
        base_ms: of the second.
        ratio: of whole steps.
        gradients_ratio: of forward and backward alone.
    """

    ms: float
    base_ms: float
    ratio: float
    gradients_ratio: float


def compare(way: Training, base: Training, repeats: int, scale: float | None = None) -> Pair:
    """Steps of two ways in turn; the first of each is not counted."""
    scale = scale or base.scale
    found = [(way.step(), base.step()) for _ in range(repeats + 1)][1:]
    steps = [(scale * ours[0] + ours[1], scale * theirs[0] + theirs[1]) for ours, theirs in found]
    return Pair(
        ms=statistics.median(ours for ours, _ in steps),
        base_ms=statistics.median(theirs for _, theirs in steps),
        ratio=statistics.median(ours / theirs for ours, theirs in steps),
        gradients_ratio=statistics.median(ours[0] / theirs[0] for ours, theirs in found),
    )


def row(name: str, pair: Pair, target: float | None = None, note: str = "") -> Row:
    said = f"forward and backward alone {pair.gradients_ratio:.2f}"
    return Row(name, pair.ms, pair.base_ms, pair.ratio, target, f"{said}; {note}" if note else said)


def concepts(shape: Shape, repeats: int) -> Iterator[Row]:
    plain = Training(shape, settings_of(shape, model={"interpretable": False}))
    base = sum(plain.flops().values())
    all_summed = {"compose": {"top_k_known": [[0.0, shape.known]], "top_k_discovered": [[0.0, shape.discovered]]}}
    for name, changes, target in (
        ("with concepts / without", {}, 1.25),
        ("with all summed / without", all_summed, None),
    ):
        module = Training(shape, settings_of(shape, **changes))
        added = sum(module.flops().values()) / base - 1
        count = parameter_count(module.model)
        note = f"FLOPs + {added:.0%}; {count.backbone / 1e6:.1f} M backbone, {count.concept_share:.0%} in concepts"
        yield row(name, compare(module, plain, repeats), target, note)


def backbones(shape: Shape, repeats: int) -> Iterator[Row]:
    everywhere = {"noise": {"low": 1.0, "high": [[0.0, 1.0]]}}
    for name, changes in (("cdlm / ar", {}), ("cdlm, every token masked / ar", everywhere)):
        ours = Training(shape, settings_of(shape, **changes))
        theirs = Training(shape, settings_of(shape, model={"backbone": "ar"}))
        yield row(name, compare(ours, theirs, repeats), 1.1)


def block_diffusion(shape: Shape, repeats: int) -> Iterator[Row]:
    config = model_of(settings_of(shape), shape).config
    difference = check_equal(config, shape.length)
    if difference > 1e-4:
        raise SystemExit(f"the block diffusion twin differs from cdlm after a clean prefix by {difference:.1e}")
    for name, is_interpretable, form in (
        ("cdlm / block diffusion", False, "table"),
        ("the same, with concepts", True, "table"),
        ("the same, without a table", False, "parts"),
    ):
        settings = settings_of(shape, model={"interpretable": is_interpretable})
        ours = Training(shape, settings)
        theirs = Training(shape, settings, BlockDiffusionLM(model_of(settings, shape), form))
        target = 0.6 if form == "table" else None
        yield row(name, compare(ours, theirs, repeats), target, f"logits of the twin equal to {difference:.0e}")


def precision(shape: Shape, repeats: int) -> Iterator[Row]:
    half, full = (Training(shape, settings_of(shape, precision=name)) for name in ("bf16", "fp32"))
    yield row("bf16 / fp32", compare(half, full, repeats))


def compiled(shape: Shape, repeats: int) -> Iterator[Row]:
    for name in ("bf16", "fp32"):
        ways = [Training(shape, settings_of(shape, precision=name)) for _ in range(2)]
        ways[0].model.compile_layers()
        yield row(f"compiled / eager, {name}", compare(*ways, repeats))


def checkpointing(shape: Shape, repeats: int) -> Iterator[Row]:
    ways = [Training(shape, settings_of(shape)) for _ in range(2)]
    ways[0].model.recompute_layers()
    yield row("layers recomputed / kept", compare(*ways, repeats))
    ours, theirs = (activations_mib(shape, is_recomputed) for is_recomputed in (True, False))
    yield Row("their memory, MiB", ours, theirs, ours / theirs, None, "peak of a step beyond weights and gradients")


def activations_mib(shape: Shape, is_recomputed: bool) -> float:
    """Peak memory of forward and backward in a process of its own, so that peaks do not mix."""
    asked = [sys.executable, __file__, "--peak", json.dumps([asdict(shape), is_recomputed])]
    return float(subprocess.run(asked, check=True, capture_output=True, text=True).stdout)


def print_peak(shape: Shape, is_recomputed: bool) -> None:
    training = Training(shape, settings_of(shape))
    if is_recomputed:
        training.model.recompute_layers()
    small = replace(shape, batch=1, length=32)
    training.batch = batch_of(small)  # libraries load at their first call, which is no memory of ours
    training.settings = training.settings.model_copy(update={"batch_size": 1})
    gradients(training.root, training.batch, training.settings, SHARE, 0, World())
    training.batch, training.settings = batch_of(shape), settings_of(shape)
    ctypes.CDLL("libc.so.6").malloc_trim(0)
    Path("/proc/self/clear_refs").write_text("5", encoding="utf-8")
    before = memory_mib("VmRSS")
    gradients(training.root, training.batch, training.settings, SHARE, 0, World())
    print(memory_mib("VmHWM") - before)


def memory(shape: Shape, _repeats: int) -> Iterator[Row]:
    training, found = Training(shape, settings_of(shape)), {}
    for step in range(1, 201):
        # As in a run: other text, labels and draws, and so another number of predicted positions in every step.
        training.batch = batch_of(shape, step)
        training.step(step)
        found[step] = memory_mib("VmRSS")
    yield Row("memory after 200 steps / 50, MiB", found[200], found[50], found[200] / found[50], 1.05)


def memory_mib(field: str) -> float:
    """Memory of this process: `VmRSS` now, `VmHWM` the peak since the last reset (Linux)."""
    status = Path("/proc/self/status").read_text(encoding="utf-8")
    return int(status.split(field + ":")[1].split()[0]) / 1024


MEASURES: dict[str, Callable[[Shape, int], Iterator[Row]]] = {
    "concepts": concepts,
    "backbones": backbones,
    "block_diffusion": block_diffusion,
    "precision": precision,
    "compile": compiled,
    "checkpointing": checkpointing,
    "memory": memory,
}


def line(found: Row) -> str:
    target = "" if found.target is None else f"{found.target:.2f}"
    met = {None: "", True: "yes", False: "NO"}[found.is_met]
    costs = f"{found.ms:>9.0f} {found.base_ms:>9.0f} {found.ratio:>6.2f}"
    return f"{found.name:<34} {costs} {target:>6} {met:>4}  {found.note}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", default=list(MEASURES), choices=list(MEASURES))
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--json", action="store_true", help="one JSON object in place of the table")
    parser.add_argument("--peak", help=argparse.SUPPRESS)
    for name, value in asdict(Shape()).items():
        parser.add_argument(f"--{name}", type=int, default=value)
    asked = parser.parse_args()
    torch.set_num_threads(1)
    if asked.peak:
        shape, is_recomputed = json.loads(asked.peak)
        print_peak(Shape(**shape), is_recomputed)
        return
    shape = Shape(**{name: getattr(asked, name) for name in asdict(Shape())})
    rows: dict[str, list[dict[str, Any]]] = {}
    if not asked.json:
        print(f"{'':<34} {'ms':>9} {'base':>9} {'ratio':>6} {'target':>6} {'met':>4}")
    for name in asked.only:
        for found in MEASURES[name](shape, asked.repeats):
            rows.setdefault(name, []).append(asdict(found) | {"is_met": found.is_met})
            if not asked.json:
                print(line(found), flush=True)
    if asked.json:
        print(json.dumps({"shape": asdict(shape), "rows": rows}))


if __name__ == "__main__":
    main()
