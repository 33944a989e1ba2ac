"""The tour: every stage of the project in order, each an artifact, so that a rerun does only the rest.

    corpus → atlas → annotated → tokenizer → packed → base → control → model
    → calibration → index → measures → steering → answers → report

`base`, `control` and `model` are one training run: the main part, its continuation with plain batches, and
its continuation, of equal length, with the steering phase.
"""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

from vitrail.api import calibrate_on
from vitrail.artifacts import Stage, make_folder, read_manifest
from vitrail.atlas import AnnotatedCorpus, annotate_corpus, build_atlas
from vitrail.corpus import Corpus, CorpusSettings, Split, import_corpus, split_of
from vitrail.demo.answers import write_answers
from vitrail.demo.closing import write_closing
from vitrail.demo.measures import write_measures, write_steering
from vitrail.demo.places import STAGES, Journal, Places, counts_in_words
from vitrail.demo.plan import DemoPlan, plan_demo
from vitrail.demo.progress import Guide
from vitrail.errors import CorpusError
from vitrail.explain import build_index
from vitrail.model import load_model
from vitrail.packed import PackedCorpus, pack_corpus
from vitrail.text import Tokenizer, train_tokenizer
from vitrail.train import Progress, TrainSettings, train_model

MODELS = ("base", "control", "model")

LEAST_DOCUMENTS: dict[Split, int] = {"train": 1, "heldout": 1, "judge": 3}
"""What each split must hold: the judge learns from some documents and sets its scale on others."""


def run_tour(out: Path, *, minutes: float, corpus: Path | None, seed: int) -> dict[str, Any]:
    """Run every stage that is not done yet, and write `summary.json` and `report.html`.

    Args:
        out: directory of the demo.
        minutes: wall clock to aim at on two idle cores.
        corpus: text to use instead of the embedded corpus: a file, a folder, or a corpus artifact.
        seed: of everything random.

    Returns:
        the content of `summary.json`.
    """
    make_folder(out)
    is_artifact = corpus is not None and (corpus / "manifest.json").is_file()
    places = Places(out, corpus if corpus is not None and is_artifact else out / "corpus")
    tour = _Tour(places, plan_demo(minutes, seed), None if is_artifact else corpus)
    for stage in STAGES:
        tour.visit(stage)
    return write_closing(places, tour.plan, tour.journal)


class _Tour:
    """Runs stages by name: one method for each, and `visit` around them."""

    def __init__(self, places: Places, plan: DemoPlan, source: Path | None) -> None:
        self.places, self.plan, self.source = places, plan, source
        self.guide = Guide(plan.expected_s, Console(stderr=True, highlight=False, emoji=False))
        self.journal = Journal(places.out / "stages.json")

    def visit(self, stage: str) -> None:
        """Run one stage, or find that it is done."""
        run: Callable[[], None] = getattr(self, f"_{stage}")
        before, started = self._stamp(stage), time.monotonic()
        # Thread pools of earlier stages leave OpenMP in another state than a fresh process has, and sums come out
        # in another order: a resumed run would then differ from an uninterrupted one.
        torch.set_num_threads(torch.get_num_threads())
        with self.guide.stage(stage):
            run()
        if self._stamp(stage) == before and stage in self.journal.stages:
            self.guide.skip(stage, self._result(stage))
            return
        self.journal.note(stage, time.monotonic() - started)
        self.guide.finish(stage, self._result(stage))

    def _stamp(self, stage: str) -> tuple[int, ...]:
        """Changes when the stage's files are written anew."""
        files = [self.places.of(stage) / "manifest.json"]
        if stage == "calibration":
            files = [self.places.of(name) / "calibration.json" for name in MODELS]
        return tuple(file.stat().st_mtime_ns for file in files if file.is_file())

    def _result(self, stage: str) -> str:
        if stage == "calibration":
            num_concepts = read_manifest(self.places.of("model")).counts["known"]
            return f"strength 1.0 of {num_concepts} concepts, three models"
        return counts_in_words(self.places.of(stage))

    def _corpus(self) -> None:
        if self.places.corpus == self.places.out / "corpus":
            import_corpus([self.source] if self.source else None, self.places.corpus, CorpusSettings())
        _require_splits(Corpus.open(self.places.corpus))

    def _atlas(self) -> None:
        build_atlas(self.places.corpus, self.places.of("atlas"), self.plan.atlas)

    def _annotated(self) -> None:
        annotate_corpus(self.places.corpus, self.places.of("atlas"), self.places.of("annotated"))

    def _tokenizer(self) -> None:
        annotated, size = self.places.of("annotated"), self.plan.vocab_size
        stage = Stage(self.places.of("tokenizer"), "tokenizer", {"vocab_size": size}, {"annotated": annotated})
        if stage.is_done:
            return
        chunks = AnnotatedCorpus.open(annotated).chunks()
        with stage.write() as writing:
            tokenizer = train_tokenizer((chunk.text for chunk in chunks if chunk.split == "train"), size)
            tokenizer.save(writing.dir)
            writing.counts["tokens"] = tokenizer.vocab_size

    def _packed(self) -> None:
        tokenizer = Tokenizer.load(self.places.of("tokenizer"))
        pack_corpus(self.places.of("annotated"), tokenizer, self.places.of("packed"), self.plan.pack)

    def _base(self) -> None:
        self._train("base", self.plan.base, None)

    def _control(self) -> None:
        self._train("control", self.plan.control, self.places.of("base"))

    def _model(self) -> None:
        self._train("model", self.plan.steered, self.places.of("base"))

    def _train(self, stage: str, settings: TrainSettings, init_from: Path | None) -> None:
        def show(progress: Progress) -> None:
            self.guide.advance(progress.step / progress.num_steps, progress.line)

        train_model(self.places.of("packed"), self.places.of(stage), settings, init_from=init_from, on_progress=show)

    def _calibration(self) -> None:
        packed = PackedCorpus.open(self.places.of("packed"))
        for name in MODELS:
            directory = self.places.of(name)
            if not (directory / "calibration.json").is_file():
                calibrate_on(load_model(directory), packed, seed=self.plan.seed).save(directory)

    def _index(self) -> None:
        model, annotated, packed = (self.places.of(name) for name in ("model", "annotated", "packed"))
        build_index(model, annotated, packed, self.places.of("index"), self.plan.index)

    def _measures(self) -> None:
        write_measures(self.places, self.plan)

    def _steering(self) -> None:
        write_steering(self.places, self.plan, self.guide.advance)

    def _answers(self) -> None:
        write_answers(self.places, self.plan)


def _require_splits(corpus: Corpus) -> None:
    """Say at once, and not after the training, that a few long documents leave nothing to measure on."""
    missing = dict(LEAST_DOCUMENTS)
    for document in corpus.documents():
        missing[split_of(document.id)] -= 1
        if max(missing.values()) <= 0:
            return
    split = max(missing, key=missing.__getitem__)
    raise CorpusError(
        f"{corpus.path}: too small: of its {corpus.num_documents} documents {LEAST_DOCUMENTS[split] - missing[split]} "
        f"fall into the split '{split}', at least {LEAST_DOCUMENTS[split]} are needed (of a hundred, 84 train, 8 "
        "are held out, 8 teach the judge); add documents, or cut long ones: each file or JSONL line is one"
    )
