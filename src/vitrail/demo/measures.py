"""The figures of a demo, measured on held-out text and kept as artifacts of kind `runs`."""

from collections.abc import Callable
from typing import Any

import torch

from vitrail.artifacts import Stage, write_json
from vitrail.atlas import AnnotatedCorpus, ConceptLibrary
from vitrail.atlas.judge import Judge, KeywordScore
from vitrail.demo.places import Places, made_from
from vitrail.demo.plan import DemoPlan
from vitrail.eval import Judges, Variant, benchmark_concepts, steering_benchmark
from vitrail.explain import decompose_tokens
from vitrail.metrics import (
    concept_detection,
    count_tokens,
    fit_ngram,
    known_alignment,
    masked_states,
    measure_model,
)
from vitrail.model import ConceptLM, load_model
from vitrail.packed import PackedCorpus
from vitrail.steer import Calibration

VARIANTS = {"before": "base", "control": "control", "after": "model"}
"""Variants of the steering benchmark → stage whose model they are."""


def write_measures(places: Places, plan: DemoPlan) -> None:
    """Likelihood, detection, contribution, deletion, decomposition, alignment (§7) → `measures.json`.

    Args:
        places: the demo's directories.
        plan: its settings.
    """
    settings = {"num_sequences": plan.measured_sequences, "seed": plan.seed}
    inputs = made_from(places, "model", "packed", "annotated")
    stage = Stage(places.of("measures"), "runs", settings, inputs)
    if stage.is_done:
        return
    model, packed = load_model(places.of("model")), PackedCorpus.open(places.of("packed"))
    with stage.write() as writing:
        figures = measure_model(model, packed, num_sequences=plan.measured_sequences, seed=plan.seed)
        annotated = AnnotatedCorpus.open(places.of("annotated"))
        figures["concepts"] = concept_detection(model, packed, annotated, seed=plan.seed)
        figures["decomposition"] = _decomposition(model, packed, plan)
        library = ConceptLibrary.load(places.of("model"))
        figures["alignment"] = known_alignment(model, packed.tokenizer(), library, count_tokens(packed), seed=plan.seed)
        write_json(writing.dir / "measures.json", figures)
        writing.counts["heldout_chunks"] = figures["concepts"]["num_chunks"]
        writing.counts["masked_tokens"] = figures["deletion_nats"]["n"]


def write_steering(places: Places, plan: DemoPlan, on_progress: Callable[[float], None]) -> None:
    """The steering benchmark before and after the phase, and for the control → `steering.json`.

    Args:
        places: the demo's directories.
        plan: its settings.
        on_progress: called with the share done.
    """
    inputs = made_from(places, *VARIANTS.values(), "annotated", "packed")
    stage = Stage(places.of("steering"), "runs", plan.bench.model_dump(mode="json"), inputs)
    if stage.is_done:
        return
    packed = PackedCorpus.open(places.of("packed"))
    library = ConceptLibrary.load(places.of("packed"))
    chunks = list(AnnotatedCorpus.open(places.of("annotated")).chunks())
    with stage.write() as writing:
        concept_ids = benchmark_concepts(library, plan.bench)
        judges = Judges(
            judge=Judge.fit(chunks, concept_ids, seed=plan.seed),
            keyword=KeywordScore(library),
            ngram=fit_ngram(packed, 3),
            tokenizer=packed.tokenizer(),
        )
        variants = {name: _variant(places, stage_name) for name, stage_name in VARIANTS.items()}
        held_out = [chunk for chunk in chunks if chunk.split == "heldout"]
        table = steering_benchmark(variants, library, held_out, judges, plan.bench, on_progress=on_progress)
        write_json(writing.dir / "steering.json", table)
        writing.counts["concepts"] = table["num_concepts"]
        writing.counts["texts"] = table["after"]["target"]["n"]


def _variant(places: Places, stage: str) -> Variant:
    directory = places.of(stage)
    return Variant(load_model(directory), Calibration.load(directory))


@torch.no_grad()
def _decomposition(model: ConceptLM, packed: PackedCorpus, plan: DemoPlan) -> dict[str, Any]:
    """How far the parts' sum is from the logit of the forward, at held-out masked positions."""
    states = masked_states(model, packed, "heldout", num_sequences=plan.measured_sequences, seed=plan.seed)
    parts = decompose_tokens(model, states.hidden, states.targets)
    logits = model.lm_logits(model.decompose(states.hidden[None], with_logits=False).composed[0])
    total = parts.known.contribution.sum(-1) + parts.discovered.contribution.sum(-1) + parts.residual
    error = (total - logits.gather(1, states.targets[:, None])[:, 0]).abs().max()
    return {"max_abs_error": float(error), "dtype": "float32", "n": len(states.targets)}
