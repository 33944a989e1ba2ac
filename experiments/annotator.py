"""The annotator, judged by truth that did not make it (§4.2.3).

    python experiments/annotator.py ATLAS CORPUS [--encoder tags|minilm] [--data DIR] [--out docs/results]

ATLAS was built from CORPUS, which holds the subdomain of each document (`vitrail corpus import DIR/corpus/*`). The
heads are fitted anew with either loss, and judged on chunks of split "judge", which no fit and no threshold saw:

- `annotator_blanked.csv`: with every member tag struck out of the text, AUC of chunks that evidence labels against
  others, for the head, for the cosine with the concept's centroid, and with the mean labelled chunk; intervals by
  bootstrap over concepts. Mean average precision and expected calibration error of heads alone on whole chunks.
- `annotator_frequency.csv`: recall of struck-out chunks at 5 % false positives, by labelled training chunks.
- `annotator_reliability.csv`: stated chance against the share of chunks that evidence labels.
- `annotator_subdomains.csv`: purity and recall of labels against subdomains.
- `annotator_axbench.csv`: AUROC on `axbench_concept10`, each concept added from its description and 72, 10 or no
  examples.
"""

import argparse
import csv
import gzip
import json
import time
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from annotator_truth import (
    BUCKETS,
    Given,
    Remembering,
    aucs,
    evidence_labels,
    interval,
    purity,
    ranking,
    recall_of_subdomains,
    restore,
    struck,
)
from sklearn.metrics import roc_auc_score
from threadpoolctl import threadpool_limits

from vitrail.atlas.annotator import ChunkEncoder, make_encoder
from vitrail.atlas.annotator.fit import FittedAnnotator
from vitrail.atlas.concepts.own import OwnConcept

EXAMPLES = (72, 10, 0)


def main() -> None:
    """Write the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("atlas", type=Path)
    parser.add_argument("corpus", type=Path)
    parser.add_argument("--encoder", choices=("tags", "minilm"), default="tags")
    parser.add_argument("--data", type=Path, help="folder with eval/axbench_concept10.jsonl.gz; none leaves it out")
    parser.add_argument("--out", type=Path, default=Path("docs/results"))
    parser.add_argument("--chunks", type=int, default=40_000, help="training chunks")
    parser.add_argument("--concepts", type=int, default=1_000_000, help="concepts at most")
    parser.add_argument("--judged", type=int, default=12_000, help="chunks to judge by")
    arguments = parser.parse_args()
    with threadpool_limits(1):
        given = restore(arguments.atlas, arguments.corpus, arguments.chunks, arguments.concepts, arguments.judged)
        encoder = Remembering(make_encoder(arguments.encoder, given.encoded.space.vectors))
        for loss in ("pu", "bce"):
            judge(given, encoder, loss, arguments.out)
        if arguments.data:
            axbench(given, encoder, arguments.data / "eval" / "axbench_concept10.jsonl.gz", arguments.out)


def judge(given: Given, encoder: ChunkEncoder, loss: str, out: Path) -> None:
    """Fit with a loss, and add its rows to the tables."""
    key = {"encoder": encoder.name, "loss": loss}
    start = time.perf_counter()
    fitted = given.fit(encoder, loss)
    fit_s = time.perf_counter() - start
    truth = evidence_labels(given, fitted)
    blanked = list(struck(given, fitted, truth))
    found = aucs(given, fitted, blanked)
    vectors = fitted.annotator.reader.read(given.sample.texts).vectors
    precision, ece, reliability = ranking(fitted, vectors, truth)
    put(out / "annotator_blanked.csv", key, [_blanked(given, found, truth, fit_s) | {"map": precision, "ece": ece}])
    counts = np.array([len(given.evidence.labelled[one.concept]) for one in blanked])
    put(out / "annotator_frequency.csv", key, _by_frequency(counts, found))
    put(
        out / "annotator_reliability.csv",
        key,
        [{"stated": stated, "carried": share, "pairs": n} for stated, share, n in reliability],
    )
    put(out / "annotator_subdomains.csv", key, _subdomains(given, fitted, truth))


def _blanked(
    given: Given, found: Mapping[str, np.ndarray], truth: Sequence[np.ndarray], fit_s: float
) -> dict[str, Any]:
    row: dict[str, Any] = {"chunks": len(given.texts), "concepts": len(found["head"]), "fit_s": fit_s}
    for name in ("head", "centroid", "mean_chunk"):
        low, high = interval(found[name])
        row |= {f"auc_{name}": found[name].mean(), f"{name}_low": low, f"{name}_high": high}
    gain = found["head"] - np.maximum(found["centroid"], -1)
    low, high = interval(gain)
    base_rate = float(np.mean([len(rows) for rows in truth]) / len(given.sample.texts))
    return row | {"gain": gain.mean(), "gain_low": low, "gain_high": high, "base_rate": base_rate}


def _by_frequency(counts: np.ndarray, found: Mapping[str, np.ndarray]) -> list[dict[str, Any]]:
    rows = []
    for low, high in pairwise(BUCKETS):
        inside = (counts >= low) & (counts < high)
        if inside.any():
            rows.append(
                {
                    "from_chunks": low,
                    "to_chunks": high if high < BUCKETS[-1] else "",
                    "concepts": int(inside.sum()),
                    "recall": found["recall"][inside].mean(),
                    "auc_head": found["head"][inside].mean(),
                    "auc_centroid": found["centroid"][inside].mean(),
                }
            )
    return rows


def _subdomains(given: Given, fitted: FittedAnnotator, truth: Sequence[np.ndarray]) -> list[dict[str, Any]]:
    annotation = fitted.annotator.annotate(given.sample.texts)
    judged: list[list[int]] = [[] for _ in truth]
    for row, labels in enumerate(annotation.labels):
        for label in labels:
            judged[label.concept_id].append(row)
    rows = []
    for rule, on_train, on_judged in (
        ("evidence", given.evidence.labelled, truth),
        ("annotator", fitted.labelled, [np.array(found, np.int64) for found in judged]),
    ):
        share, chance, concepts = purity(on_judged, given.sample)
        precision, recall, subdomains = recall_of_subdomains(given, on_train, on_judged)
        rows.append(
            {
                "rule": rule,
                "labels_per_chunk": sum(map(len, on_judged)) / len(given.sample.texts),
                "concepts": concepts,
                "purity": share,
                "purity_random": chance,
                "subdomains": subdomains,
                "precision": precision,
                "recall": recall,
            }
        )
    return rows


def axbench(given: Given, encoder: ChunkEncoder, path: Path, out: Path) -> None:
    """AUROC of concepts added from their description and examples."""
    with gzip.open(path, "rt", encoding="utf-8") as file:
        texts = [json.loads(line) for line in file]
    keys = sorted({(text["origin"], text["concept_id"]) for text in texts if text["concept_id"] >= 0})
    for num_examples in EXAMPLES:
        own = [_own(texts, origin, number, num_examples) for origin, number in keys]
        fitted = given.fit(encoder, "pu", own)
        judged = [text for text in texts if text["split"] == "eval"]
        odds = fitted.annotator.log_odds([text["output"] for text in judged], range(len(keys)))
        rows = []
        for column, (origin, number) in enumerate(keys):
            inside = [i for i, text in enumerate(judged) if (text["origin"], text["concept_id"]) == (origin, number)]
            rows.append(
                {
                    "concept": f"{origin} {number}",
                    "auroc": _auroc(judged, inside, odds[:, column], "negative"),
                    "auroc_hard": _auroc(judged, inside, odds[:, column], "hard negative"),
                }
            )
        means = {name: np.mean([row[name] for row in rows if row[name] != ""]) for name in ("auroc", "auroc_hard")}
        put(
            out / "annotator_axbench.csv",
            {"encoder": encoder.name, "examples": num_examples},
            [*rows, {"concept": "mean", **means}],
        )


def _own(texts: Sequence[Mapping[str, Any]], origin: str, number: int, num_examples: int) -> OwnConcept:
    mine = [t for t in texts if (t["origin"], t["concept_id"]) == (origin, number) and t["split"] == "train"]
    description = next(text["concept"] for text in mine if text["concept"])
    examples = [text["output"] for text in mine if text["category"] == "positive"][:num_examples]
    return OwnConcept(name=f"{origin} {number}", description=description, examples=tuple(examples))


def _auroc(texts: Sequence[Mapping[str, Any]], inside: Sequence[int], odds: np.ndarray, against: str) -> float | str:
    kept = [i for i in inside if texts[i]["category"] in ("positive", against)]
    truth = [texts[i]["category"] == "positive" for i in kept]
    return "" if all(truth) else float(roc_auc_score(truth, odds[kept]))


def put(path: Path, key: Mapping[str, Any], rows: Iterable[Mapping[str, Any]]) -> None:
    """Put rows into a table, in place of those of the same key."""
    path.parent.mkdir(parents=True, exist_ok=True)
    kept: list[dict[str, Any]] = []
    if path.is_file():
        with path.open(encoding="utf-8", newline="") as file:
            kept = [row for row in csv.DictReader(file) if any(row[k] != str(v) for k, v in key.items())]
    added = [{**key, **{name: _plain(value) for name, value in row.items()}} for row in rows]
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, list(added[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows([*kept, *added])


def _plain(value: Any) -> Any:
    return f"{value:.5g}" if isinstance(value, float | np.floating) else value


if __name__ == "__main__":
    main()
