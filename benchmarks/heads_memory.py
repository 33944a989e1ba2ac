"""Peak memory and time of one forward and backward of a concept head: streamed in slabs against all at once.

    python benchmarks/heads_memory.py

Each measurement runs in a process of its own, so that peaks do not mix. Prints one line per case.
"""

import resource
import subprocess
import sys
import time

import torch

from vitrail.model import ModelConfig
from vitrail.model.heads import discovered_head

NUM_POSITIONS, WIDTH, RANK = 2048, 256, 64


def measure(num_concepts: int, slab: int, top_k: int | None) -> None:
    config = ModelConfig(width=WIDTH, num_heads=4, num_discovered=num_concepts, discovered_rank=RANK, slab=slab)
    head = discovered_head(config)
    hidden = torch.randn(1, NUM_POSITIONS, WIDTH, requires_grad=True)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    start = time.process_time()
    torch.autograd.backward([head.features(hidden, top_k).features.sum()])
    cpu_s = time.process_time() - start
    peak_mib = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
    print(f"C {num_concepts:>6}  slab {slab:>6}  top-k {top_k}  +{peak_mib:>6.0f} MiB  {cpu_s:.2f} cpu-s")


def main() -> None:
    if len(sys.argv) == 4:
        num_concepts, slab, top_k = map(int, sys.argv[1:])
        measure(num_concepts, slab, top_k or None)
        return
    for num_concepts in (4096, 16384, 65536):
        for slab in sorted({4096, num_concepts}):
            for top_k in (0, 128):
                case = [str(num_concepts), str(slab), str(top_k)]
                subprocess.run([sys.executable, __file__, *case], check=True)


if __name__ == "__main__":
    main()
