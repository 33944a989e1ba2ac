"""Peak memory and time of one forward and backward of a concept head: streamed in slabs against all at once.

    python benchmarks/heads_memory.py          the heads of the released 8B model, bf16, about a minute
    python benchmarks/heads_memory.py small    sizes where both fit easily, fp32

`all at once` is the same function with ordinary operations: every activation [n C], and for a factorised head every
embedding row U = A·B [M D]. Extra memory is the peak beyond weights and their gradients; `bound` is what the streaming
kernel states for its slab: logits of a slab and rows of a slab, a few times (`COPIES`) in fp32. Each measurement
runs in a process of its own, so that peaks do not mix; times are CPU times.
"""

import ctypes
import json
import subprocess
import sys
import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from vitrail.model import ConceptHead, ModelConfig
from vitrail.model.heads import discovered_head, known_head

COPIES = 4
"""Of a slab's logits and rows that are alive at once: logits, weights, slope, and what they are multiplied with."""


@dataclass(frozen=True)
class Case:
    """One head, tokens, and how it is run."""

    head: str
    num_concepts: int
    width: int
    rank: int
    num_tokens: int
    top_k: int | None
    dtype: str
    slab: int = 4096
    is_streamed: bool = True

    @property
    def bound_mib(self) -> float:
        """Stated bound of the extra memory."""
        row = self.rank if self.head == "discovered" else self.width
        states = 4 * self.num_tokens * self.width
        return (COPIES * 4 * (self.slab * (self.num_tokens + row)) + 4 * states) / 2**20


EIGHT_B = [
    Case("known", 33_732, 4096, 256, 64, 32, "bfloat16"),
    Case("known", 33_732, 4096, 256, 64, None, "bfloat16"),
    Case("discovered", 101_196, 4096, 256, 256, 128, "bfloat16"),
    Case("discovered", 101_196, 4096, 256, 256, None, "bfloat16"),
]
SMALL = [
    Case(head, 3 * count if head == "discovered" else count, 256, 64, 2048, top_k, "float32")
    for count in (1024, 4096)
    for head, top_k in (("known", 32), ("known", None), ("discovered", 64), ("discovered", None))
]


def build(case: Case) -> ConceptHead:
    config = ModelConfig(
        width=case.width,
        num_heads=4,
        num_concepts=case.num_concepts,
        num_discovered=case.num_concepts,
        discovered_rank=case.rank,
        slab=case.slab,
    )
    torch.manual_seed(0)
    torch.set_default_dtype(getattr(torch, case.dtype))
    head = known_head(config) if case.head == "known" else discovered_head(config)
    for parameter in head.parameters():
        torch.nn.init.normal_(parameter, std=parameter.shape[1] ** -0.5)
    return head


def forward(case: Case, head: ConceptHead, hidden: Tensor) -> Tensor:
    if case.is_streamed:
        return head.features(hidden, case.top_k).features
    return all_at_once(head, hidden, case.top_k)


def all_at_once(head: ConceptHead, hidden: Tensor, top_k: int | None) -> Tensor:
    everything = slice(0, head.num_concepts)
    activations = head.logits(hidden, everything).clamp(-15, 15).sigmoid()
    if top_k is not None:
        kept = activations.topk(top_k)
        activations = torch.zeros_like(activations).scatter(-1, kept.indices, kept.values)
    embedding = head.embedding(everything)
    return activations.to(embedding.dtype) @ embedding


def memory_mib(field: str) -> float:
    """Memory of this process: `VmRSS` now, `VmHWM` the peak since the last `forget_peak` (Linux)."""
    status = Path("/proc/self/status").read_text(encoding="utf-8")
    return int(status.split(field + ":")[1].split()[0]) / 1024


def forget_peak() -> None:
    ctypes.CDLL("libc.so.6").malloc_trim(0)
    Path("/proc/self/clear_refs").write_text("5", encoding="utf-8")


def measure(case: Case) -> None:
    head = build(case)
    hidden = torch.randn(1, case.num_tokens, case.width, requires_grad=True)
    towards = torch.randn(1, case.num_tokens, case.width)
    # Libraries load at their first call, which is no memory of ours.
    forward(case, build(replace(case, num_concepts=200, slab=100)), hidden).backward(towards)
    hidden.grad = None
    forget_peak()
    before, started = memory_mib("VmRSS"), time.process_time()
    features = forward(case, head, hidden)
    forward_s = time.process_time() - started
    grads = torch.autograd.grad(features, (hidden, *head.parameters()), towards)
    grads_mib = sum(grad.nbytes for grad in grads) / 2**20
    found = {
        "extra_mib": memory_mib("VmHWM") - before - grads_mib,
        "forward_cpu_s": forward_s,
        "cpu_s": time.process_time() - started,
        "norm": float(torch.stack([grad.double().norm() for grad in grads]).norm()),
    }
    print(json.dumps(found))


def run(case: Case) -> dict[str, float]:
    asked = [sys.executable, __file__, json.dumps(asdict(case))]
    found: dict[str, float] = json.loads(subprocess.run(asked, check=True, capture_output=True, text=True).stdout)
    return found


def main(words: list[str]) -> None:
    if words and words[0].startswith("{"):
        measure(Case(**json.loads(words[0])))
        return
    print(
        "head            C      D    r     n  top-k  extra MiB  bound  all at once  ratio    cpu-s (fwd)  all at once"
    )
    for case in SMALL if words == ["small"] else EIGHT_B:
        ours, dense = run(case), run(replace(case, is_streamed=False))
        row = f"{case.head:<10} {case.num_concepts:>6} {case.width:>6} {case.rank:>4} {case.num_tokens:>5}"
        row += (
            f" {case.top_k or 'all':>6} {ours['extra_mib']:>10.0f} {case.bound_mib:>6.0f} {dense['extra_mib']:>12.0f}"
        )
        row += f" {dense['extra_mib'] / max(ours['extra_mib'], 1):>6.1f}"
        row += f" {ours['cpu_s']:>7.2f} ({ours['forward_cpu_s']:.2f})"
        row += f" {dense['cpu_s']:>7.2f} ({dense['forward_cpu_s']:.2f})"
        print(row + f"  {ours['norm']:.5g} {dense['norm']:.5g}", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
