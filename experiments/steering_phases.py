"""Steering before and after the steering phases, and their price in likelihood (§9.4.4, §10.2.4, table 15).

    python experiments/steering_phases.py --base runs/ablations/base-0 --packed PACKED --annotated ANNOTATED \
        --out docs/results/steering_phases.csv

One trained model, and continuations of it with equal tokens: without injections (the control), with steering batches
that inject whole chunks, and with four front-loaded phases that inject at token-level labels. Each is calibrated anew;
strengths are chosen on other prompts than those reported, at two limits of perplexity.
"""

import argparse
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from tables import add_row, rows_in

from vitrail.artifacts import read_manifest
from vitrail.atlas import AnnotatedCorpus, ConceptLibrary, Judge, KeywordScore
from vitrail.eval import Judges, Variant, benchmark_concepts, steering_benchmark
from vitrail.eval.steering import SteeringSettings as BenchSettings
from vitrail.metrics import bits_per_byte, fit_ngram
from vitrail.model import ConceptLM, load_model
from vitrail.packed import PackedCorpus
from vitrail.steer import calibrate
from vitrail.train import SteeringSettings, TrainSettings, continued, train_model
from vitrail.train.steering_probe import calibrated_scales, deaf_share

FOUR_PHASES = (
    *((0.0, 0.8), (0.15, 0.8), (0.15, 0.0), (0.25, 0.0), (0.25, 0.6), (0.4, 0.6), (0.4, 0.0)),
    *((0.5, 0.0), (0.5, 0.4), (0.65, 0.4), (0.65, 0.0), (0.75, 0.0), (0.75, 0.2), (0.9, 0.2), (0.9, 0.0)),
)
"""Four phases of steering batches among plain ones, each thinner than the one before."""
STEERING: dict[str, SteeringSettings | None] = {
    "control": None,
    "chunks": SteeringSettings(),
    "four_phases_spans": SteeringSettings(density=FOUR_PHASES, warmup_steps=20, attributed="spans"),
}
COLUMNS = (
    *("variant", "limit", "strength", "texts", "target", "unsteered", "random"),
    *("target_minus_unsteered", "low", "high", "perplexity_ratio", "distinct2_ratio"),
    *("bits_per_byte", "bits_low", "bits_high", "deaf"),
)


def trained(base: Path, packed: Path, work: Path, total_tokens: int) -> dict[str, Path]:
    """The continuations, each trained unless it is there."""
    settings = TrainSettings.parse(read_manifest(base, "model").settings)
    phase = continued(settings, total_tokens)
    places = {"before": base}
    for name, steering in STEERING.items():
        places[name] = work / name
        train_model(packed, places[name], phase.model_copy(update={"steering": steering}), init_from=base)
    return places


def deaf(model: ConceptLM, packed: PackedCorpus) -> float:
    """Share of all concepts whose own activation does not rise when they are injected at strength 1 (§9.4.4)."""
    layer, concepts = max(1, model.config.num_layers // 2), range(model.known_head.num_concepts)
    scales = calibrated_scales(model, packed, layer, SteeringSettings().target_logit_change, concepts, 0)
    return deaf_share(model, packed, layer, scales, 0)


def rows_of(name: str, table: Mapping[str, Any], bits: Mapping[str, Any], deaf: float) -> list[dict[str, Any]]:
    """One row for each limit of perplexity."""
    rows = []
    for point in table["points"]:
        difference = point["target_minus_unsteered"]
        rows.append(
            {
                "variant": name,
                "limit": point["limit"],
                "strength": point["strength"],
                "texts": point["target"]["n"],
                **{arm: point[arm]["rate"] for arm in ("target", "unsteered", "random")},
                "target_minus_unsteered": difference["value"],
                "low": difference["ci95"][0],
                "high": difference["ci95"][1],
                "perplexity_ratio": point["perplexity_ratio"],
                "distinct2_ratio": point["distinct2_ratio"],
                "bits_per_byte": bits["model"],
                "bits_low": bits["ci95"][0],
                "bits_high": bits["ci95"][1],
                "deaf": deaf,
            }
        )
    return rows


def main() -> None:
    """Train what is missing, and measure every variant on the same prompts."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--base", type=Path, required=True)
    parser.add_argument("--packed", type=Path, required=True)
    parser.add_argument("--annotated", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--work", type=Path, default=Path("runs/steering"))
    parser.add_argument("--tokens", type=int, default=400_000)
    parser.add_argument("--concepts", type=int, default=32)
    flags = parser.parse_args()
    places = trained(flags.base, flags.packed, flags.work, flags.tokens)
    if rows_in(flags.out):
        return
    packed, library = PackedCorpus.open(flags.packed), ConceptLibrary.load(flags.packed)
    bench = BenchSettings(num_concepts=flags.concepts, prompts=5, prompts_of_others=5)
    chunks = list(AnnotatedCorpus.open(flags.annotated).chunks())
    held_out = [chunk for chunk in chunks if chunk.split == "heldout"]
    judges = Judges(
        judge=Judge.fit(chunks, benchmark_concepts(library, bench), seed=0),
        keyword=KeywordScore(library),
        ngram=fit_ngram(packed, 3),
        tokenizer=packed.tokenizer(),
    )
    tokens = packed.batch("heldout", list(range(min(64, packed.num_sequences("heldout"))))).tokens
    for name, place in places.items():
        model = load_model(place, "cpu", torch.float32)
        variant = Variant(model, calibrate(model, tokens, layer=max(1, model.config.num_layers // 2)))
        # The benchmark wants its headline variant named so; each variant is measured alone, on the same prompts.
        table = steering_benchmark({"after": variant}, library, held_out, judges, bench)["after"]
        bits = bits_per_byte(model, packed, ngrams={}, num_sequences=96)
        for row in rows_of(name, table, bits, deaf(model, packed)):
            add_row(flags.out, COLUMNS, row)
        print(f"{name}: measured", flush=True)


if __name__ == "__main__":
    main()
