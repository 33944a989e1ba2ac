"""`vitrail corpus import`, `vitrail pack`, `vitrail info`."""

from pathlib import Path

from vitrail.artifacts import Manifest, damage, lineage, read_manifest
from vitrail.atlas import AnnotatedCorpus
from vitrail.cli.output import Count, Json, Overrides, Whole, described, emit, parse_overrides, working
from vitrail.corpus import CorpusSettings
from vitrail.corpus import import_corpus as import_documents
from vitrail.errors import ConfigError
from vitrail.model import describe_checkpoint, is_bare_checkpoint, load_config
from vitrail.packed import PackSettings, is_conversations, pack_conversations, pack_corpus
from vitrail.text import Tokenizer, load_tokenizer, missing_tokenizer, train_tokenizer


def import_corpus(
    *sources: Path, out: Path, text_field: str = "text", min_chars: Whole = 1, json: Json = False
) -> None:
    """Read text files, folders, JSONL (.gz, .zst) and Parquet into a corpus.

    Example: `vitrail corpus import texts/ more.jsonl.gz --out runs/corpus`

    Without sources: the embedded corpus (documentation of Python packages and the World Factbook).

    Args:
        sources: files and folders.
        out: directory to make.
        text_field: field (JSONL) or column (Parquet) that holds the text.
        min_chars: documents with fewer visible characters are skipped.
        json: print one JSON object.
    """
    settings = CorpusSettings.parse({"text_field": text_field, "min_chars": min_chars}, where="flags")
    with working("reading documents"):
        manifest = import_documents(sources or None, out, settings)
    emit({"id": manifest.id, "counts": manifest.counts}, json, described(out, manifest.counts))


def pack(
    source: Path,
    *overrides: Overrides,
    out: Path,
    tokenizer: str = "train:2048",
    workers: Count = 1,
    json: Json = False,
) -> None:
    """Turn an annotated corpus, or conversations, into token shards with aligned labels.

    Example: `vitrail pack runs/annotated --out runs/packed --tokenizer train:2048 --workers 8`

    Conversations (`.jsonl`, `.jsonl.gz`, `.jsonl.zst`; a line holds `messages`, or `prompt` and `response`) are
    written with the chat template of the model that `--tokenizer` names; only answers are trained on.

    Args:
        source: an annotated corpus, or a file of conversations.
        overrides: settings of the packing, such as `--length 512`.
        out: directory to make.
        tokenizer: a tokenizer or model directory, or `train:SIZE` to train one on the corpus.
        workers: processes; the result does not depend on it.
        json: print one JSON object.
    """
    settings = PackSettings.load(overrides=parse_overrides(overrides))
    with working("packing"):
        if is_conversations(source):
            manifest = _pack_conversations(source, tokenizer, out, settings, workers)
        else:
            manifest = pack_corpus(source, tokenizer_from(tokenizer, source), out, settings, workers=workers)
    emit({"id": manifest.id, "counts": manifest.counts}, json, described(out, manifest.counts))


def _pack_conversations(source: Path, choice: str, out: Path, settings: PackSettings, workers: int) -> Manifest:
    model = Path(choice)
    if not (model / "config.json").is_file():
        raise ConfigError(
            f"--tokenizer {choice}: conversations are written for a model; name its directory, with config.json"
        )
    num_concepts = load_config(model).num_concepts
    return pack_conversations(source, model, _of_model(model), num_concepts, out, settings, workers=workers)


def tokenizer_from(choice: str, annotated: Path) -> Tokenizer:
    """The tokenizer that a `--tokenizer` value names.

    Args:
        choice: a directory of a tokenizer or a model, or `train:SIZE`.
        annotated: the corpus to train on; its training split is used.

    Returns:
        the tokenizer.

    Raises:
        ConfigError: SIZE is not a whole number.
    """
    kind, _, size = choice.partition(":")
    if kind != "train":
        is_model = (Path(choice) / "config.json").is_file()
        return _of_model(Path(choice)) if is_model else Tokenizer.load(Path(choice))
    if not size.isdecimal():
        raise ConfigError(f"--tokenizer {choice}: write train:SIZE, such as train:2048, or a directory")
    chunks = AnnotatedCorpus.open(annotated).chunks()
    return train_tokenizer((chunk.text for chunk in chunks if chunk.split == "train"), int(size))


def _of_model(directory: Path) -> Tokenizer:
    config = load_config(directory)
    tokenizer = load_tokenizer(directory, config.controls, config.vocab_size)
    if tokenizer is None:
        raise missing_tokenizer(directory, config.controls)
    return tokenizer


def info(directory: Path, *, json: Json = False) -> None:
    """Describe an artifact and print its lineage to the raw text, or a released checkpoint.

    Example: `vitrail info runs/demo/model`

    Args:
        directory: any artifact, or a checkpoint.
        json: print one JSON object.
    """
    if is_bare_checkpoint(directory):
        found = describe_checkpoint(directory)
        emit(found, json, "\n".join([str(directory), *(f"  {key}: {value}" for key, value in found.items())]))
        return
    manifest = read_manifest(directory)
    fault = damage(directory, manifest)
    rows = lineage(directory)
    tree = [
        "  " * depth
        + f"{ancestor.kind} {ancestor.id[:12]}  {path}  "
        + ", ".join(f"{count:,} {unit}" for unit, count in ancestor.counts.items())
        for depth, ancestor, path in rows
    ]
    result = manifest.model_dump() | {
        "damage": fault,
        "lineage": [{"depth": depth, "kind": m.kind, "id": m.id, "path": str(path)} for depth, m, path in rows],
    }
    if fault:
        tree.append(f"{fault}; build the {manifest.kind} again, with the command that made it")
    emit(result, json, "\n".join(tree))
