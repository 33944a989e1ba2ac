"""Annotating a corpus: seconds by stage, start of the workers, memory, and what the encoder alone would take.

    python benchmarks/annotate.py CORPUS ATLAS [--shards 4] [--encoder-chunks 256]

One thread, this process, CPU seconds (a busy machine changes them little). Each stage of the pipeline is timed alone
on the first shards of the corpus. `overhead` is the whole over the annotator's own pass; `minilm` is that ratio where
the encoder is MiniLM, from its bare pass over some of the chunks. Memory is the peak of this process after each shard.
The start is from the call of the local engine with two workers to the first task that runs, imports being done.
"""

import argparse
import resource
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from vitrail.atlas import AtlasSettings, MiniLM
from vitrail.atlas.annotated.engines import Job, LocalEngine
from vitrail.atlas.annotated.finished import Shelf
from vitrail.atlas.annotated.labelling import BatchAnnotator
from vitrail.atlas.annotated.shards import fitting_bytes, plan_shards
from vitrail.atlas.annotated.steps import CutShard, WriteShard
from vitrail.corpus import Corpus

MB = 1e6


@dataclass(frozen=True)
class Clock:
    """A task that writes down when it began."""

    folder: Path

    def __call__(self, data: object, rank: int, world_size: int) -> None:
        """Write it down."""
        (self.folder / f"began-{rank}").write_text(str(time.monotonic()))


def timed(run: Callable[[], Any]) -> tuple[float, Any]:
    started = time.process_time()
    result = run()
    return time.process_time() - started, result


def start_s() -> float:
    """Seconds until a worker runs its first task."""
    with tempfile.TemporaryDirectory() as name:
        work = Path(name)
        started = time.monotonic()
        LocalEngine().run(Job([Clock(work)], 4, work, 2))
        return min(float(path.read_text()) for path in work.glob("began-*")) - started


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("corpus", type=Path)
    parser.add_argument("atlas", type=Path)
    parser.add_argument("--shards", type=int, default=4)
    parser.add_argument("--encoder-chunks", type=int, default=256)
    flags = parser.parse_args()
    torch.set_num_threads(1)
    print(f"start of two workers: {start_s():.2f} s")
    corpus, annotate = Corpus.open(flags.corpus), BatchAnnotator.of(flags.atlas)
    shards = plan_shards(corpus, fitting_bytes(corpus))[: flags.shards]
    load_s, _ = timed(lambda: annotate.width)
    print(f"load of the annotator: {load_s:.2f} s")
    cut, spent, num_chunks, num_bytes, texts = CutShard(tuple(shards), AtlasSettings()), [0.0, 0.0, 0.0], 0, 0, []
    with tempfile.TemporaryDirectory() as name:
        write = WriteShard(Shelf(Path(name)), annotate)
        for shard in shards:
            cut_s, tables = timed(lambda number=shard.number: list(cut(None, number, len(shards))))
            annotate_s, annotated = timed(lambda tables=tables: [annotate(table) for table in tables])
            write_s, _ = timed(lambda rows=annotated, number=shard.number: write(rows, number, len(shards)))
            spent = [a + b for a, b in zip(spent, (cut_s, annotate_s, write_s), strict=True)]
            num_chunks += sum(map(len, tables))
            num_bytes += sum(len(text.encode()) for table in tables for text in table["text"].to_pylist())
            texts = tables[0]["text"].to_pylist()
            peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
            print(f"shard {shard.number}: {num_chunks:,} chunks so far, peak memory {peak:,.0f} MiB")
        stored = sum(path.stat().st_size for path in Path(name).rglob("*") if path.is_file())
    for stage, seconds in zip(("read and cut", "annotate", "write"), spent, strict=True):
        print(f"{stage:13s} {seconds:7.2f} s  {100 * MB * seconds / num_bytes:6.1f} s per 100 MB")
    print(f"{'all':13s} {sum(spent):7.2f} s  {100 * MB * sum(spent) / num_bytes:6.1f} s per 100 MB")
    print(f"{num_bytes / num_chunks:.0f} bytes a chunk; {num_chunks / sum(spent):,.0f} chunks per core-second")
    print(f"stored: {stored / num_chunks:,.0f} bytes a chunk; overhead: {sum(spent) / spent[1]:.2f}")
    sample = texts[: flags.encoder_chunks]
    encode_s, _ = timed(lambda: MiniLM().encode(sample))
    per_chunk = encode_s / len(sample)
    ratio = (per_chunk + sum(spent) / num_chunks) / per_chunk
    print(f"minilm: {1 / per_chunk:.0f} chunks per core-second alone; with everything else {ratio:.3f} times that long")


if __name__ == "__main__":
    main()
