"""Mid-training mixtures: what more code and mathematics in the data buys and costs (§9.4.3, §10.1, table 12).

    python experiments/mixtures.py --packed PACKED_BY_DOMAIN --out docs/results/mixtures.csv

A model is trained on a mixture that is poor in code and mathematics, as the paper's was, and then continued at equal
tokens on four mixtures, beside one that stays as it was. Each row is one continuation: held-out loss in nats per masked
token (half masked) by group of domains. The corpus must be packed with `--group_by domain`.
"""

import argparse
from pathlib import Path
from typing import Any

import torch
from tables import add_row, rows_in

from vitrail.model import load_model
from vitrail.packed import DataSettings, MixtureStage, PackedCorpus
from vitrail.train import TrainSettings, continued, train_model
from vitrail.train.heldout import HeldoutBatch, finish, sums

CONFIG = Path(__file__).parent / "ablations.yaml"
CODE, MATH = ("code", "tech_docs"), ("math", "academic_abstracts")
POOR = 0.1
"""What is left of code and mathematics in the first mixture, relative to their size."""
FACTORS: dict[str, tuple[float, float]] = {
    "unchanged": (POOR, POOR),
    "natural": (1.0, 1.0),
    "code": (3.0, POOR),
    "math": (POOR, 3.0),
    "code_and_math": (3.0, 3.0),
}
ROWS = 48


def mixture(packed: PackedCorpus, code: float, maths: float) -> DataSettings:
    """Weights by the size of each domain, times a factor for code and for mathematics."""
    factor = dict.fromkeys(CODE, code) | dict.fromkeys(MATH, maths)
    sizes = packed.groups("train")
    return DataSettings(mixture=(MixtureStage(weights={name: n * factor.get(name, 1.0) for name, n in sizes.items()}),))


def losses(model_dir: Path, packed: PackedCorpus) -> dict[str, float]:
    """Held-out loss of code, mathematics, and everything else."""
    model = load_model(model_dir, "cpu", torch.float32)
    rows = list(range(packed.num_sequences("heldout")))
    by_part: dict[str, list[int]] = {"code": [], "math": [], "prose": []}
    for row, group in zip(rows, packed.groups_of("heldout", rows), strict=True):
        by_part["code" if group in CODE else "math" if group in MATH else "prose"].append(row)
    found = {}
    for part, own in by_part.items():
        chosen = own[:: max(1, len(own) // ROWS)][:ROWS]
        batches = [
            HeldoutBatch(number, packed.batch("heldout", chosen[start : start + 8]), True)
            for number, start in enumerate(range(0, len(chosen), 8))
        ]
        found[part] = finish(sums(model, batches, 0.5, "log_mean_exp", 0))["loss"]
    return found


def main() -> None:
    """Run the continuations that are missing."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--packed", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--work", type=Path, default=Path("runs/mixtures"))
    parser.add_argument("--tokens", type=int, default=1_000_000)
    parser.add_argument("--more-tokens", type=int, default=400_000)
    flags = parser.parse_args()
    packed = PackedCorpus.open(flags.packed)
    first = TrainSettings.load(CONFIG, {"total_tokens": flags.tokens})
    first = first.model_copy(update={"data": mixture(packed, POOR, POOR)})
    base = flags.work / "base"
    train_model(flags.packed, base, first)
    columns = ("mixture", "code_factor", "math_factor", "tokens", "code", "math", "prose")
    for name, factors in {"before": (POOR, POOR), **FACTORS}.items():
        if any(row["mixture"] == name for row in rows_in(flags.out)):
            continue
        place, tokens = base, flags.tokens
        if name != "before":
            place, tokens = flags.work / name, flags.tokens + flags.more_tokens
            phase = continued(first, flags.more_tokens).model_copy(
                update={"steering": None, "data": mixture(packed, *factors)}
            )
            train_model(flags.packed, place, phase, init_from=base)
        row: dict[str, Any] = {"mixture": name, "code_factor": factors[0], "math_factor": factors[1], "tokens": tokens}
        add_row(flags.out, columns, row | losses(place, packed))
        print(f"{name}: measured", flush=True)


if __name__ == "__main__":
    main()
