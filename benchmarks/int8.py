"""What int8 weights cost: error of the logits on held-out text, and the size of the released 8 B model.

    python benchmarks/int8.py runs/demo/model runs/demo/packed

Half of the tokens are masked; every masked position counts. `rms` is the root mean square of the difference of
centred logits over that of the logits, `top-1` the share of positions whose best token stays, `nats` the change of the
cross-entropy. The reference are the weights as stored.
"""

import sys
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

from vitrail.model import ConceptLM, ModelConfig, empty_model, load_model
from vitrail.model.quantized import is_quantized
from vitrail.packed import PackedCorpus

NUM_SEQUENCES = 32


@torch.inference_mode()
def masked_logits(model: ConceptLM, ids: Tensor, is_masked: Tensor) -> Tensor:
    noisy = ids.masked_fill(is_masked, model.config.mask_id)
    rows = [model(noisy[[row]]).logits[0, is_masked[row]].float() for row in range(len(ids))]
    logits = torch.cat(rows)
    return logits - logits.mean(-1, keepdim=True)


def compare(model_dir: Path, packed_dir: Path) -> None:
    packed = PackedCorpus.open(packed_dir)
    ids = packed.batch("heldout", range(min(NUM_SEQUENCES, packed.num_sequences("heldout")))).tokens
    is_masked = torch.rand(ids.shape, generator=torch.Generator().manual_seed(0)) < 0.5
    targets = ids[is_masked].long()
    stored = load_model(model_dir)
    wanted = masked_logits(stored, ids, is_masked)
    print(f"{model_dir}: {sum(p.numel() for p in stored.parameters()):,} parameters, {len(targets):,} positions")
    for name, dtype, int8 in (
        ("bfloat16", torch.bfloat16, False),
        ("int8, rest as stored", None, True),
        ("int8, rest bfloat16", torch.bfloat16, True),
    ):
        got = masked_logits(load_model(model_dir, dtype=dtype, int8=int8), ids, is_masked)
        rms = float((got - wanted).norm() / wanted.norm())
        same = float((got.argmax(-1) == wanted.argmax(-1)).float().mean())
        nats = float(F.cross_entropy(got, targets) - F.cross_entropy(wanted, targets))
        print(f"{name:<21} rms {rms:.4f}  top-1 {same:.4f}  nats {nats:+.5f}")


def project() -> None:
    shapes = empty_model(ModelConfig()).state_dict()
    del shapes["transformer.lm_head.weight"]  # tied
    matrices = [tensor for name, tensor in shapes.items() if is_quantized(name)]
    num_quantized = sum(tensor.numel() for tensor in matrices)
    num_rest = sum(tensor.numel() for tensor in shapes.values()) - num_quantized
    num_bytes = num_quantized + 2 * sum(len(tensor) for tensor in matrices) + 2 * num_rest
    print(f"the 8 B shapes: {num_quantized:,} weights in int8, {num_rest:,} in bfloat16: {num_bytes / 1e9:.2f} GB")


if __name__ == "__main__":
    compare(Path(sys.argv[1]), Path(sys.argv[2]))
    project()
