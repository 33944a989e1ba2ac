"""Compiled layers against eager ones, run as a program: shape checks by import hook and compilation do not mix."""

import torch
from torch import Tensor
from torch._dynamo.utils import counters

from tests.model.shapes import small_config
from vitrail.model import BlockCache, ConceptLM, Injection, init_model


def _ids(batch: int, length: int) -> Tensor:
    return torch.randint(30, (batch, length), generator=torch.Generator().manual_seed(length))


@torch.no_grad()
def _differences(compiled: ConceptLM, eager: ConceptLM) -> list[float]:
    """Largest differences: of a forward, and of cached, steered block steps after longer and longer prefixes."""
    found = [float((compiled(_ids(2, 15)).logits - eager(_ids(2, 15)).logits).abs().max())]
    caches = BlockCache(), BlockCache()
    block = _ids(2, 5)
    injection = Injection(torch.ones(2, 12), block > 15, layer=1)
    for _step in range(6):
        ours, theirs = (
            model.hidden(block, injection=injection, cache=cache)
            for model, cache in zip((compiled, eager), caches, strict=True)
        )
        found.append(float((ours - theirs).abs().max()))
        for model, cache in zip((compiled, eager), caches, strict=True):
            model.extend_cache(block, cache)
    return found


def main() -> None:
    compiled, eager = (init_model(small_config(num_layers=4), 0).eval() for _ in range(2))
    compiled.compile_layers()
    worst = max(_differences(compiled, eager))
    assert worst < 1e-5, f"compiled and eager differ by {worst}: more than fp32 rounding"
    graphs = counters["stats"]["unique_graphs"]
    assert graphs == 2, f"{graphs} graphs for two functions that all layers, lengths and prefixes share"


if __name__ == "__main__":
    main()
