"""The end of the tour: `summary.json`, and `report.html` that shows it."""

import json
import platform
from importlib.metadata import version
from pathlib import Path
from typing import Any

from vitrail.artifacts import lineage, read_json, read_manifest, write_json
from vitrail.atlas import AnnotatedCorpus, Card, ConceptLibrary
from vitrail.demo.places import Journal, Places
from vitrail.demo.plan import DemoPlan
from vitrail.demo.report import (
    ConceptCard,
    LineageEntry,
    ReportData,
    ReportMeta,
    SteeringPair,
    TrainingPoint,
    write_report,
)
from vitrail.metrics import count_tokens, top_tokens
from vitrail.model import load_model
from vitrail.packed import PackedCorpus

NUM_EXAMPLES = 2
NUM_TOP_TOKENS = 10
MIN_TOKEN_COUNT = 100
EXAMPLE_CHARS = 220
POINTS_PER_STAGE = 80
_PACKAGES = ("vitrail", "torch", "numpy", "faiss-cpu", "tokenizers")


def write_closing(places: Places, plan: DemoPlan, journal: Journal) -> dict[str, Any]:
    """Put the figures together and write both files.

    Args:
        places: the demo's directories; all stages are done.
        plan: its settings.
        journal: what the stages cost.

    Returns:
        the content of `summary.json`.
    """
    summary = _summary(places, plan, journal)
    write_json(places.out / "summary.json", summary)
    data = ReportData(
        meta=_meta(places, plan, journal),
        summary=summary,
        explanation=read_json(places.of("answers") / "explanation.json"),
        steering_pairs=tuple(SteeringPair(**pair) for pair in read_json(places.of("answers") / "pairs.json")),
        cards=_cards(places),
        training_log=_training_log(places),
        lineage=tuple(
            LineageEntry(kind=manifest.kind, id=manifest.id, path=_short(path, places.out), counts=manifest.counts)
            for _, manifest, path in lineage(places.of("index"))
        ),
    )
    write_report(places.out / "report.html", data)
    return summary


def _summary(places: Places, plan: DemoPlan, journal: Journal) -> dict[str, Any]:
    measures = read_json(places.of("measures") / "measures.json")
    return {
        "wall_s": journal.wall_s,
        "peak_rss_bytes": journal.peak_rss_bytes,
        "stages": {name: spent["wall_s"] for name, spent in journal.stages.items()},
        **measures,
        "steering": read_json(places.of("steering") / "steering.json"),
        "recall": read_json(places.of("index") / "recall.json"),
        "model": {"id": read_manifest(places.of("model")).id, **read_manifest(places.of("model")).counts},
        "minutes": plan.minutes,
        "seed": plan.seed,
        "versions": _versions(),
    }


def _versions() -> dict[str, str]:
    return {"python": platform.python_version(), **{name: version(name) for name in _PACKAGES}}


def _meta(places: Places, plan: DemoPlan, journal: Journal) -> ReportMeta:
    counts = {stage: read_manifest(places.of(stage)).counts for stage in ("corpus", "annotated", "base", "model")}
    return ReportMeta(
        out=str(places.out),
        machine=f"{platform.system()} {platform.machine()}",
        versions=_versions(),
        seed=plan.seed,
        wall_s=journal.wall_s,
        peak_rss_bytes=journal.peak_rss_bytes,
        num_params=counts["model"]["parameters"],
        num_train_tokens=counts["base"]["tokens"] + counts["model"]["tokens"],
        num_documents=counts["corpus"]["documents"],
        num_chunks=AnnotatedCorpus.open(places.of("annotated")).num_chunks,
        corpus_bytes=counts["corpus"]["text_bytes"],
        num_known=counts["model"]["known"],
        num_discovered=counts["model"]["discovered"],
    )


def _cards(places: Places) -> tuple[ConceptCard, ...]:
    packed = PackedCorpus.open(places.of("packed"))
    tokenizer = packed.tokenizer()
    tops = top_tokens(load_model(places.of("model")), count_tokens(packed), NUM_TOP_TOKENS, MIN_TOKEN_COUNT)
    known = [card for card in ConceptLibrary.load(places.of("model")).cards if card.head == "known"]
    examples = _examples(places, known)
    return tuple(
        ConceptCard(
            concept_id=card.concept_id,
            name=card.name,
            description=card.description,
            words=card.words,
            num_chunks=card.num_chunks,
            examples=tuple(examples[card.concept_id]),
            top_tokens=tuple(tokenizer.token_text(int(token)) for token in tops[card.concept_id]),
        )
        for card in known
    )


def _examples(places: Places, cards: list[Card]) -> list[list[str]]:
    """The training chunks with the surest label of each concept."""
    best: list[list[tuple[float, str]]] = [[] for _ in cards]
    for chunk in AnnotatedCorpus.open(places.of("annotated")).chunks():
        if chunk.split != "train":
            continue
        for label in chunk.labels:
            held = best[label.concept_id]
            if len(held) < NUM_EXAMPLES or label.score > held[-1][0]:
                held.append((label.score, chunk.text[:EXAMPLE_CHARS]))
                held.sort(reverse=True)
                del held[NUM_EXAMPLES:]
    return [[text for _, text in held] for held in best]


def _training_log(places: Places) -> tuple[TrainingPoint, ...]:
    """The language loss of the main run and of the phase after it, averaged over stretches of plain steps."""
    points: list[TrainingPoint] = []
    tokens_before = 0
    for stage in ("base", "model"):
        counts = read_manifest(places.of(stage)).counts
        rows = map(json.loads, (places.of(stage) / "log.jsonl").read_text(encoding="utf-8").splitlines())
        losses = [(row["step"] + 1, row["language"]) for row in rows if row.get("batch") == "plain"]
        stretch = max(1, len(losses) // POINTS_PER_STAGE)
        for start in range(0, len(losses), stretch):
            part = losses[start : start + stretch]
            tokens = tokens_before + counts["tokens"] * part[-1][0] // counts["steps"]
            mean = sum(loss for _, loss in part) / len(part)
            points.append(TrainingPoint(tokens=tokens, loss=mean, stage=stage))
        tokens_before += counts["tokens"]
    return tuple(points)


def _short(path: Path, out: Path) -> str:
    resolved = path.resolve()
    return str(resolved.relative_to(out.resolve())) if resolved.is_relative_to(out.resolve()) else path.name
