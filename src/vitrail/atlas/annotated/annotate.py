"""Annotating a corpus: every document is cut into chunks, every chunk labelled, its vector kept (§4.5.1).

One datatrove pipeline, a task a shard: cut, annotate, write. Then the shards become the parts of one artifact: their
files are linked into place, not copied, and their counts merged. All splits are annotated. What comes out follows
from the corpus and the atlas alone: not from the engine, the number of workers, or how often the run was killed.
"""

import logging
import shutil
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from vitrail.artifacts import Manifest, Stage, Writing, read_manifest, read_unchanged
from vitrail.atlas.annotated.engines import Engine, Job, LocalEngine, Step
from vitrail.atlas.annotated.finished import Marker, Shelf
from vitrail.atlas.annotated.guide import FieldGuide
from vitrail.atlas.annotated.labelling import BatchAnnotator
from vitrail.atlas.annotated.shards import fitting_bytes, plan_shards
from vitrail.atlas.annotated.steps import CHUNKS_NAME, VECTORS_NAME, AnnotateChunks, CutShard, WriteShard
from vitrail.atlas.annotated.store import KIND, chunks_name, vectors_name, write_parts
from vitrail.atlas.library import LIBRARY_NAME, ConceptLibrary
from vitrail.atlas.resources import Resources
from vitrail.atlas.settings import AtlasSettings
from vitrail.corpus import Corpus
from vitrail.errors import ArtifactError, CorpusError, RunFailed

LAYOUT = 2
"""Of the files in an annotated corpus; 1 had one file of vectors."""

ATTEMPTS = 3
"""How often shards are made again that turn out to be damaged; more would hide a broken disk."""

_POLL_S = 0.5

logger = logging.getLogger("vitrail.atlas")


def annotate_corpus(
    corpus_dir: Path,
    atlas_dir: Path,
    out: Path,
    resources: Resources | None = None,
    engine: Engine | None = None,
    on_progress: Callable[[int, int], None] | None = None,
    shard_bytes: int | None = None,
) -> Manifest:
    """Label every chunk of a corpus (kind `annotated`).

    Args:
        corpus_dir: corpus directory; all splits are annotated.
        atlas_dir: atlas directory; its settings say how long a chunk is.
        out: directory to be made.
        resources: processes to use on this machine, and the server of embeddings; None takes one process.
        engine: who runs the shards; None takes processes of this machine.
        on_progress: told of (finished shards, all shards) while the run goes on.
        shard_bytes: text of a shard, part of the artifact's id; None takes what fits the corpus.

    Returns:
        the manifest; counts `chunks`, `labels`, `unlabelled_chunks`, and `<split>_chunks`.

    Raises:
        ArtifactError: an input is not what it should be, or `out` is something else.
        CorpusError: the corpus holds no text.
        ConfigError: the engine is not installed, or not told enough.
        RunFailed: the disk is full, a worker died, or a shard failed; finished shards are kept, run again.
    """
    resources = resources or Resources()
    corpus = Corpus.open(corpus_dir)
    size = shard_bytes or fitting_bytes(corpus)
    stage = Stage(out, KIND, {"layout": LAYOUT, "shard_bytes": size}, {"corpus": corpus_dir, "atlas": atlas_dir})
    if stage.is_done:
        return read_manifest(out, KIND)
    settings = AtlasSettings.parse(read_unchanged(atlas_dir, "atlas").settings, where=str(atlas_dir))
    library, annotate = ConceptLibrary.load(atlas_dir), BatchAnnotator.of(atlas_dir, resources.endpoint)
    with stage.write() as writing:
        shards = plan_shards(corpus, size)
        steps: list[Step] = [
            CutShard(tuple(shards), settings),
            AnnotateChunks(annotate),
            WriteShard(Shelf(writing.work), annotate),
        ]
        job = Job(steps, len(shards), writing.work, resources.workers)
        with _swept(job):
            with _watched(job, on_progress):
                markers = _finished_shards(job, engine or LocalEngine())
            if not sum(marker.counts.get("chunks", 0) for marker in markers):
                job.clear()
                raise CorpusError(f"{corpus_dir}: the corpus holds no text to annotate; import documents with text")
            _merge(job, markers, library, writing)
    return read_manifest(out, KIND)


def _finished_shards(job: Job, engine: Engine) -> list[Marker]:
    """Run what is missing until every shard is there and has the bytes it was written with."""
    shelf = Shelf(job.work)
    for _ in range(ATTEMPTS):
        if job.missing():
            engine.run(job)
            _require_all(job)
        damaged, markers = _checked(shelf, job.num_tasks)
        if not damaged:
            return markers
        for number, fault in damaged:
            logger.warning("%s; shard %d is made again", fault, number)
            shelf.discard(number)
    raise RunFailed(f"{job.work}: shards were damaged {ATTEMPTS} times in a row; check the disk, then run again")


def _require_all(job: Job) -> None:
    missing = job.missing()
    if not missing:
        return
    for number, failure in sorted(Shelf(job.work).failures(job.num_tasks).items()):
        raise failure.error(f"shard {number} of {job.num_tasks}")
    named = ", ".join(map(str, missing[:5])) + (", …" if len(missing) > 5 else "")
    raise RunFailed(
        f"{len(missing)} of {job.num_tasks} shards were not finished ({named}); the others are kept: "
        f"read {job.log_dir}, then run again"
    )


def _checked(shelf: Shelf, num_shards: int) -> tuple[list[tuple[int, str]], list[Marker]]:
    damaged, markers = [], []
    for number in range(num_shards):
        try:
            markers.append(shelf.marker(number))
        except ArtifactError as error:
            damaged.append((number, str(error)))
    return damaged, markers


def _merge(job: Job, markers: Sequence[Marker], library: ConceptLibrary, writing: Writing) -> None:
    """Make one artifact of the shards; those without a chunk have no part."""
    for name in ("chunks", "embeddings"):
        (writing.dir / name).mkdir()
    guide, counts, sizes = FieldGuide(), Counter[str](chunks=0, labels=0, unlabelled_chunks=0), list[int]()
    for number, marker in enumerate(markers):
        if not marker.counts.get("chunks"):
            continue
        folder, part = Shelf(job.work).folder(number), len(sizes)
        _place(folder / CHUNKS_NAME, writing.dir / chunks_name(part))
        _place(folder / VECTORS_NAME, writing.dir / vectors_name(part))
        guide.merge(folder, sum(sizes))
        counts.update(marker.counts)
        sizes.append(marker.counts["chunks"])
    write_parts(writing.dir, sizes)
    library.save(writing.dir / LIBRARY_NAME)
    guide.write(writing.dir, library)
    writing.counts.update(counts)


def _place(file: Path, to: Path) -> None:
    """Link a file: the shard stays whole should the merge be interrupted, and nothing is copied."""
    try:
        to.hardlink_to(file)
    except OSError:  # a file system without links
        shutil.copyfile(file, to)


@contextmanager
def _swept(job: Job) -> Iterator[None]:
    """Leave nothing behind where a run fails before its first shard; an interrupted one may have tasks elsewhere."""
    try:
        yield
    except Exception:
        if len(job.missing()) == job.num_tasks:
            job.clear()
        raise


@contextmanager
def _watched(job: Job, on_progress: Callable[[int, int], None] | None) -> Iterator[None]:
    """Tell how many shards are finished, whoever finishes them."""
    if on_progress is None:
        yield
        return
    is_over = threading.Event()

    def tell() -> None:
        on_progress(Shelf(job.work).finished(job.num_tasks), job.num_tasks)

    def watch() -> None:
        while not is_over.wait(_POLL_S):
            tell()

    watching = threading.Thread(target=watch, daemon=True)
    watching.start()
    try:
        yield
    finally:
        is_over.set()
        watching.join()
    tell()
