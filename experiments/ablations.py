"""Ablations at small scale: one short training run for each arm, one row of a CSV for each run (§8, appendix J).

    python experiments/ablations.py --packed PACKED --out docs/results/ablations.csv [--arms base,ar] [--seeds 0,1]

Every arm is the base configuration with a few settings changed. Runs that are in the CSV already are skipped, an
interrupted run goes on where it was, and a row is added when its run is finished and measured. All arms see the same
number of tokens, and are measured on the same held-out sequences: loss at half the tokens masked (an autoregressive
model: next token), bits per byte, and the four interpretability metrics (§7).
"""

import argparse
import time
from pathlib import Path
from typing import Any

import torch
from tables import add_row, rows_in

from vitrail.atlas import ConceptLibrary
from vitrail.metrics import bits_per_byte, count_tokens, known_alignment
from vitrail.model import load_model
from vitrail.packed import PackedCorpus
from vitrail.train import HeldoutSettings, TrainSettings, train_model
from vitrail.train.heldout import evaluate

Changes = dict[str, Any]
BASE = Path(__file__).parent / "ablations.yaml"
PLAIN: Changes = {"model.interpretable": False, "loss": {}, "compose": {}}
UNIFORM: Changes = {"noise": {"schedule": "uniform", "low": 0.05, "high": [[0.0, 0.95]]}}
ARMS: dict[str, Changes] = {
    "base": {},
    "plain": PLAIN,
    "ar": {"model.backbone": "ar"},
    "ar_plain": PLAIN | {"model.backbone": "ar"},
    "no_residual": {"model.use_residual": False, "loss.lm_grad_through_activations": True},
    "no_residual_dropout": {"compose.residual_dropout": [[0.0, 0.0]]},
    "both_parts_kept": {"compose.discovered_dropout": 0.0},
    "known_floor_0": {"compose.known_forcing": [[0.0, 1.0], [0.15, 1.0], [0.5, 0.0]]},
    "known_floor_half": {"compose.known_forcing": [[0.0, 1.0], [0.15, 1.0], [0.5, 0.5]]},
    "discovered_floor_half": {"compose.discovered_forcing": [[0.0, 0.9], [0.25, 0.9, "linear"], [1.0, 0.5]]},
    "discovered_floor_0": {"compose.discovered_forcing": [[0.0, 0.9], [0.25, 0.9, "linear"], [1.0, 0.0]]},
    "discovered_half": {"model.discovered_ratio": 0.5},
    "discovered_equal": {"model.discovered_ratio": 1.0},
    "dense": {"model.factorize_discovered": False},
    "block_8": {"model.block": 8},
    "block_64": {"model.block": 64},
    "block_256": {"model.block": 256},
    "noise_uniform": UNIFORM,
    "noise_gaussian": {
        "noise": {"schedule": "moving_gaussian", "low": 0.0, "high": [[0.0, 1.0]], "mean": [[0.0, 0.2], [1.0, 0.8]]}
    },
    "noisy_or": {"loss.aggregation": "noisy_or"},
    "reconstruct_labels": {"loss.reconstruction_target": "labels"},
    "heads_muon": {"optim.heads": "muon"},
}
COLUMNS = (
    *("arm", "seed", "tokens", "parameters", "loss", "accuracy", "bits_per_byte", "bits_low", "bits_high"),
    *("concept_loss", "concept_gain", "independence_hsic", "independence_cka"),
    *("contribution_known", "contribution_discovered", "alignment", "alignment_shuffled"),
    *("without_residual", "known_alone", "train_s"),
)
HELDOUT = HeldoutSettings(sequences=128)
SEQUENCES = 96


def settings_of(arm: str, seed: int, total_tokens: int | None) -> TrainSettings:
    """The base configuration with an arm's changes."""
    changes = dict(ARMS[arm], seed=seed)
    if total_tokens is not None:
        changes["total_tokens"] = total_tokens
    return TrainSettings.load(BASE, changes)


def measured(model_dir: Path, packed: PackedCorpus, settings: TrainSettings) -> dict[str, Any]:
    """All figures of a finished run."""
    model = load_model(model_dir, "cpu", torch.float32)
    found = evaluate(model, packed, HELDOUT, settings.loss.aggregation, 0)
    bits = bits_per_byte(model, packed, ngrams={}, num_sequences=SEQUENCES)
    row: dict[str, Any] = {
        **{name: value for name, value in found.items() if name in COLUMNS},
        "independence_cka": found.get("independence", ""),
        "parameters": sum(p.numel() for p in model.parameters()),
        "bits_per_byte": bits["model"],
        "bits_low": bits["ci95"][0],
        "bits_high": bits["ci95"][1],
    }
    if model.known_head.num_concepts:
        library = ConceptLibrary.load(packed.path)
        alignment = known_alignment(model, packed.tokenizer(), library, count_tokens(packed))
        row |= {"alignment": alignment["share"], "alignment_shuffled": alignment["shuffled"]}
    return row


def main() -> None:
    """Run the arms that are missing."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--packed", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--work", type=Path, default=Path("runs/ablations"))
    parser.add_argument("--arms", default=",".join(ARMS))
    parser.add_argument("--seeds", default="0")
    parser.add_argument("--tokens", type=int, default=None)
    flags = parser.parse_args()
    packed = PackedCorpus.open(flags.packed)
    for seed in map(int, flags.seeds.split(",")):
        for arm in flags.arms.split(","):
            if any(row["arm"] == arm and int(row["seed"]) == seed for row in rows_in(flags.out)):
                continue
            settings = settings_of(arm, seed, flags.tokens)
            started, out = time.monotonic(), flags.work / f"{arm}-{seed}"
            manifest = train_model(flags.packed, out, settings)
            row = {"arm": arm, "seed": seed, "tokens": manifest.counts["tokens"], "train_s": time.monotonic() - started}
            add_row(flags.out, COLUMNS, row | measured(out, packed, settings))
            print(f"{arm}, seed {seed}: {time.monotonic() - started:.0f} s", flush=True)


if __name__ == "__main__":
    main()
