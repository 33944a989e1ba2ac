"""Packing windows into shards, in this process or in many, so that finished shards survive an interruption.

A shard is one folder: its files, and `shard.json` with what is counted. It is written under a name of its process and
renamed when it is whole; a folder under its final name is a finished shard, which a restarted run takes over.
"""

import os
import shutil
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import asdict, dataclass
from functools import lru_cache
from itertools import islice
from multiprocessing import get_context
from pathlib import Path

from vitrail.artifacts import write_json
from vitrail.atlas import AnnotatedCorpus
from vitrail.errors import RunFailed
from vitrail.packed.conversations import ConversationWindows, Line
from vitrail.packed.documents import PACKED_SPLITS, AnnotatedWindows
from vitrail.packed.settings import PackSettings
from vitrail.packed.shard import ShardWriter
from vitrail.packed.units import Dropped, PackedDocument
from vitrail.processes import worker_pool
from vitrail.text import ControlIds, Tokenizer, load_tokenizer

SHARD_NAME = "shard.json"
Window = int | Sequence[Line]
"""A stretch of an annotated corpus, by its number; or lines of a file of conversations."""


@dataclass(frozen=True)
class PackJob:
    """All that a process needs to know to pack windows.

    Attributes:
        source: annotated corpus, or file of conversations.
        is_annotated: which of the two.
        num_known: concepts of the library.
        folder: holds `tokenizer/`.
        controls: ids of the tokenizer's control tokens.
        vocab_size: ids of the model.
        settings: of the packing.
        work: where finished shards go.
    """

    source: Path
    is_annotated: bool
    num_known: int
    folder: Path
    controls: ControlIds
    vocab_size: int
    settings: PackSettings
    work: Path


def shard_folder(work: Path, number: int) -> Path:
    """Where a finished shard lies.

    Args:
        work: of the run.
        number: of the shard.

    Returns:
        the folder, whether or not it is there.
    """
    return work / f"{number:05d}"


def pack_windows(job: PackJob, tokenizer: Tokenizer, windows: Iterable[Window], workers: int) -> int:
    """Pack every window that is not packed yet.

    Args:
        job: what to do.
        tokenizer: that of the job, for this process.
        windows: all, in order.
        workers: processes; 1 works in this one.

    Returns:
        how many windows there are.

    Raises:
        RunFailed: a worker died.
    """
    for partial in job.work.glob(".*.part"):
        shutil.rmtree(partial)
    count = 0

    def missing() -> Iterator[tuple[int, Window]]:
        nonlocal count
        for number, window in enumerate(windows):
            count = number + 1
            if not shard_folder(job.work, number).exists():
                yield number, window

    if workers == 1:
        packer = _Packer(job, tokenizer)
        for number, window in missing():
            packer.pack(number, window)
    else:
        context = get_context("spawn")  # a fork would copy the threads' locks of torch and tokenizers
        with worker_pool(context, workers, _begin_worker) as pool:
            _run(pool, job, missing(), limit=2 * workers)
    return count


def _run(pool: ProcessPoolExecutor, job: PackJob, tasks: Iterator[tuple[int, Window]], limit: int) -> None:
    """Keep the workers busy with few windows waiting; the first window that failed is the one that is told of."""
    waiting: list[Future[None]] = []
    try:
        while True:
            waiting += [pool.submit(_pack, job, *task) for task in islice(tasks, limit - len(waiting))]
            if not waiting:
                return
            waiting.pop(0).result()
    except BrokenProcessPool as error:
        raise RunFailed(
            f"{job.source}: a worker died while packing (out of memory?); finished shards are kept: run again with "
            "fewer workers, or a smaller shard_chunks"
        ) from error


def _begin_worker() -> None:
    os.environ["TOKENIZERS_PARALLELISM"] = "false"


def _pack(job: PackJob, number: int, window: Window) -> None:
    _packer(job).pack(number, window)


@lru_cache(maxsize=1)
def _packer(job: PackJob) -> "_Packer":
    """Of a worker, which lives for one job."""
    tokenizer = load_tokenizer(job.folder, job.controls, job.vocab_size)
    assert tokenizer is not None, "the parent saved it"
    return _Packer(job, tokenizer)


class _Packer:
    """Packs windows of one source."""

    def __init__(self, job: PackJob, tokenizer: Tokenizer) -> None:
        self._job, self._tokenizer = job, tokenizer
        if job.is_annotated:
            corpus = AnnotatedCorpus.open(job.source)
            self._annotated = AnnotatedWindows(corpus, tokenizer, job.settings, job.num_known)
        else:
            self._conversations = ConversationWindows(job.source, tokenizer, job.settings)

    def pack(self, number: int, window: Window) -> None:
        """Make one shard, whole."""
        partial = self._job.work / f".{number:05d}.{os.getpid()}.part"
        partial.mkdir()
        try:
            documents = list(self._documents(window))
            counts: dict[str, int] = {}
            groups: dict[str, dict[str, int]] = {}
            for split in PACKED_SPLITS:
                job = self._job
                writer = ShardWriter(
                    job.settings, self._tokenizer.pad_id, job.vocab_size, has_answers=not job.is_annotated
                )
                writer.fill(document for document in documents if document.split == split)
                writer.save(partial / f"{split}.safetensors")
                counts |= {f"{split}_{name}": count for name, count in writer.counts.items()}
                groups[split] = writer.groups
            dropped = [asdict(one) for one in _dropped(documents)]
            write_json(partial / SHARD_NAME, {"counts": counts, "groups": groups, "dropped": dropped})
            partial.rename(shard_folder(self._job.work, number))
        except BaseException:
            shutil.rmtree(partial, ignore_errors=True)
            raise

    def _documents(self, window: Window) -> Iterator[PackedDocument]:
        if isinstance(window, int):
            return self._annotated.documents(window)
        return self._conversations.documents(window)


def _dropped(documents: Iterable[PackedDocument]) -> Iterator[Dropped]:
    for document in documents:
        yield from document.dropped
