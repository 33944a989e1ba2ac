"""MiniLM for tags: the vector of a tag depends on the tag alone, to the last bit (§4.2.2; encoder: chosen by us).

Matrix kernels may sum in another order when the number of rows changes, so that a tag of a batch of 340 and the
same tag of a batch of 7 may differ in the last bits; then a cache, or one more document, would change an atlas in
places that have nothing to do with it. Here every batch of tags of one length has the same number of rows, the
last one filled up with copies.

Letters: B tags of a batch.
"""

from functools import cached_property

import numpy as np
import torch
from jaxtyping import Float32

from vitrail.atlas.concepts.encoder import WEIGHTS_SHA256, MiniLM

ROWS_TOKENS = 2048
"""Tokens of a batch, filler included."""


class TagEncoder(MiniLM):
    """Tags to unit vectors of width 384, each independent of its companions."""

    @cached_property
    def fingerprint(self) -> str:
        """Weights, precision, batch, and what computes them: the address of a cache."""
        precision = str(self.dtype).removeprefix("torch.")
        machine = torch.backends.cpu.get_cpu_capability().replace(" ", "-")
        return f"minilm-{WEIGHTS_SHA256[:12]}-{precision}-{ROWS_TOKENS}-torch-{torch.__version__}-{machine}"

    def _forward_batch(self, rows: list[list[int]]) -> Float32[np.ndarray, "B 384"]:
        num_rows = max(ROWS_TOKENS // len(rows[0]), 1)
        parts = []
        for start in range(0, len(rows), num_rows):
            part = rows[start : start + num_rows]
            filled = part + [part[0]] * (num_rows - len(part))
            parts.append(super()._forward_batch(filled)[: len(part)])
        return np.concatenate(parts)
