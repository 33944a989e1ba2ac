"""The packing stage: an annotated corpus, or conversations, in; token shards with aligned labels out (§4.5.2).

Work is cut into windows of whole documents. Each window becomes one shard, packed by itself, so that memory holds one
window a worker, and the bytes do not depend on how many workers there are. Chunks are whole: none straddles two
sequences. Splits `train` and `heldout` are packed; `judge` documents are not.

Files: `shards/NNNNN.SPLIT.safetensors` (columns: see `shard`), `shards.parquet` (how many sequences of each group each
shard holds), `concepts.parquet`, `tokenizer/`, and `dropped.jsonl` where something was too long.
"""

import json
import os
import shutil
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from vitrail.artifacts import MANIFEST_NAME, Manifest, Stage, Writing, file_sha256, read_json, read_manifest
from vitrail.atlas import LIBRARY_NAME, AnnotatedCorpus
from vitrail.errors import ConfigError, CorpusError
from vitrail.packed.conversations import windows as conversation_windows
from vitrail.packed.documents import PACKED_SPLITS
from vitrail.packed.index import write_index
from vitrail.packed.settings import PackSettings
from vitrail.packed.shard import total
from vitrail.packed.working import SHARD_NAME, PackJob, Window, pack_windows, shard_folder
from vitrail.text import Tokenizer

KIND = "packed"
LAYOUT = 2
"""Version of the layout of the shards; raised when a reader of older ones would misread."""
TOKENIZER_FOLDER = "tokenizer"
SHARDS_FOLDER = "shards"


def pack_corpus(
    annotated_dir: Path, tokenizer: Tokenizer, out: Path, settings: PackSettings, *, workers: int = 1
) -> Manifest:
    """Pack an annotated corpus into sequences of equal length (kind `packed`).

    The directory also holds the tokenizer and the library of concepts, so that training needs nothing else.

    Args:
        annotated_dir: annotated corpus.
        tokenizer: what to encode with.
        out: directory to be made; if it is there already and made of the same, nothing is done.
        settings: length, treatment of long chunks, groups, size of a shard.
        workers: processes; the bytes do not depend on it.

    Returns:
        the manifest; counts: `concepts`, `shards`, and per split `<split>_sequences`, `_chunks`, `_tokens` (without
        control tokens), `_padding_tokens`, `_text_bytes`, `_labels`, `_dropped_chunks`.

    Raises:
        ArtifactError: `annotated_dir` is not an annotated corpus or was changed, or `out` holds something else.
        ConfigError: a chunk does not fit a sequence, or there are no workers.
        CorpusError: the train split is empty.
        RunFailed: the disk is full, or a worker died.

    Cost: about 2 MB of text per core-second.
    """
    _require_workers(workers)
    stage = Stage(out, KIND, _recipe(settings, tokenizer), {"annotated": annotated_dir})
    if stage.is_done:
        return read_manifest(out, KIND)
    corpus = AnnotatedCorpus.open(annotated_dir)
    library = corpus.library()
    with stage.write() as writing:
        library.save(writing.dir / LIBRARY_NAME)
        num_windows = -(-corpus.num_chunks // settings.shard_chunks)
        job = _job(annotated_dir, tokenizer, settings, writing, num_known=library.num_known, is_annotated=True)
        _pack(job, tokenizer, range(num_windows), writing, workers)
        if not writing.counts.get("train_sequences"):
            raise CorpusError(f"{annotated_dir}: no document falls into the train split; import more documents")
    return read_manifest(out, KIND)


def pack_conversations(
    conversations: Path,
    model_dir: Path,
    tokenizer: Tokenizer,
    num_concepts: int,
    out: Path,
    settings: PackSettings,
    *,
    workers: int = 1,
) -> Manifest:
    """Pack conversations for supervised fine-tuning of a model (kind `packed`); only answers are asked for.

    Args:
        conversations: `.jsonl`, `.jsonl.gz` or `.jsonl.zst`; each line with `messages`, or `prompt` and `response`.
        model_dir: the model, whose library of concepts is copied, if it has one.
        tokenizer: of the model.
        num_concepts: C of the model.
        out: directory to be made; if it is there already and made of the same, nothing is done.
        settings: of the packing; `shard_chunks` counts conversations.
        workers: processes; the bytes do not depend on it.

    Returns:
        the manifest; counts as of `pack_corpus`, with conversations for chunks, and `_text_bytes` of the answers.

    Raises:
        ArtifactError: `model_dir` cannot be read, or `out` holds something else.
        ConfigError: a conversation does not fit a sequence, or the template refuses it, or there are no workers.
        CorpusError: the file cannot be read, a line is no conversation, or none falls into the train split.
        RunFailed: the disk is full, or a worker died.
    """
    _require_workers(workers)
    library = model_dir / LIBRARY_NAME
    try:
        origin = file_sha256(conversations)
        cards = file_sha256(library) if library.is_file() else None
    except OSError as error:
        raise CorpusError(f"{conversations}: cannot be read ({error.strerror}); name a JSONL file") from error
    recipe = _recipe(settings, tokenizer) | {"conversations": origin, "concepts": num_concepts, "library": cards}
    inputs = {"model": model_dir} if (model_dir / MANIFEST_NAME).is_file() else {}
    stage = Stage(out, KIND, recipe, inputs)
    if stage.is_done:
        return read_manifest(out, KIND)
    with stage.write() as writing:
        if cards is not None:
            shutil.copyfile(library, writing.dir / LIBRARY_NAME)
        job = _job(conversations, tokenizer, settings, writing, num_known=num_concepts, is_annotated=False)
        _pack(job, tokenizer, conversation_windows(conversations, settings.shard_chunks), writing, workers)
        if not writing.counts.get("train_sequences"):
            raise CorpusError(f"{conversations}: no conversation falls into the train split; add more")
    return read_manifest(out, KIND)


def _recipe(settings: PackSettings, tokenizer: Tokenizer) -> dict[str, Any]:
    return {
        **settings.model_dump(),
        "layout": LAYOUT,
        "tokenizer": tokenizer.fingerprint,
        "controls": asdict(tokenizer.controls),
        "vocab_size": tokenizer.vocab_size,
    }


def _job(
    source: Path, tokenizer: Tokenizer, settings: PackSettings, writing: Writing, *, num_known: int, is_annotated: bool
) -> PackJob:
    tokenizer.save(writing.dir / TOKENIZER_FOLDER)
    writing.counts["concepts"] = num_known
    return PackJob(
        source=source,
        is_annotated=is_annotated,
        num_known=num_known,
        folder=writing.dir,
        controls=tokenizer.controls,
        vocab_size=tokenizer.vocab_size,
        settings=settings,
        work=writing.work,
    )


def _pack(job: PackJob, tokenizer: Tokenizer, windows: Iterable[Window], writing: Writing, workers: int) -> None:
    """Make the shards, and gather them; they stay in `work` too until the artifact is whole."""
    num_shards = pack_windows(job, tokenizer, windows, workers)
    (writing.dir / SHARDS_FOLDER).mkdir()
    shards: list[dict[str, Any]] = []
    for number in range(num_shards):
        folder = shard_folder(writing.work, number)
        shards.append(read_json(folder / SHARD_NAME))
        for split in PACKED_SPLITS:
            if shards[-1]["groups"][split]:
                name = f"{split}.safetensors"
                _link(folder / name, writing.dir / SHARDS_FOLDER / f"{number:05d}.{name}")
    write_index(writing.dir, [shard["groups"] for shard in shards])
    writing.counts["shards"] = num_shards
    writing.counts.update(total(shard["counts"] for shard in shards))
    if dropped := [json.dumps(one) + "\n" for shard in shards for one in shard["dropped"]]:
        (writing.dir / "dropped.jsonl").write_text("".join(dropped), encoding="utf-8")


def _link(file: Path, place: Path) -> None:
    """The same file at another place; a copy where the file system has no links."""
    try:
        os.link(file, place)
    except OSError:
        shutil.copyfile(file, place)


def _require_workers(workers: int) -> None:
    if workers < 1:
        raise ConfigError(f"workers = {workers}: packing needs at least one process; set workers to 1 or more")
