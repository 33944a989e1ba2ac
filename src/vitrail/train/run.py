"""From a packed corpus to a model artifact, and from a model to its continuation.

`config.json`, `model.safetensors` (released layout), `tokenizer/`, `concepts.parquet` (known concepts from
the atlas, discovered ones named by their top tokens), `log.jsonl`, and `training/` (optimiser state, so that
a continuation keeps its momentum).
"""

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from vitrail.artifacts import Manifest, Stage, read_manifest
from vitrail.atlas import ConceptLibrary
from vitrail.errors import ConfigError
from vitrail.model import ConceptLM, ModelConfig, init_model, load_model, save_model
from vitrail.packed import PackedCorpus
from vitrail.text import Tokenizer
from vitrail.train.loop import OnProgress, num_steps, train
from vitrail.train.naming import name_discovered
from vitrail.train.optim import Optimisers
from vitrail.train.settings import ModelSettings, TrainSettings
from vitrail.train.state import TrainState, load_optimisers, save_state

_TRAINING = "training"


def train_model(
    packed_dir: Path,
    out: Path,
    settings: TrainSettings,
    *,
    init_from: Path | None = None,
    resume: bool = True,
    on_progress: OnProgress | None = None,
) -> Manifest:
    """Train a model and write it as an artifact; an interrupted run goes on where it was.

    Args:
        packed_dir: the packed corpus.
        out: directory of the model.
        settings: the run; with `steering` it interleaves steering batches.
        init_from: a model artifact to continue, with its optimiser state; None starts from random weights.
        resume: go on from an interrupted run's checkpoint; otherwise that is thrown away.
        on_progress: called after every step.

    Returns:
        the manifest (kind `model`).

    Raises:
        ConfigError: `init_from` was trained with another vocabulary or library than the packed corpus has.
        RunFailed: the loss became NaN, or the disk is full; the last checkpoint is intact.
    """
    inputs = {"packed": packed_dir} | ({"init": init_from} if init_from else {})
    stage = Stage(out, "model", settings.model_dump(mode="json"), inputs, later=["calibration.json"])
    if stage.is_done:
        return read_manifest(out, "model")
    packed = PackedCorpus.open(packed_dir)
    tokenizer = packed.tokenizer()
    with stage.write() as writing:
        if not resume:
            shutil.rmtree(writing.work)
            writing.work.mkdir()
        model = _start(packed, tokenizer, settings, init_from)
        optimisers = Optimisers(model, settings.optim)
        if init_from is not None:
            load_optimisers(init_from / _TRAINING, optimisers)
        train(model, packed, settings, writing.work, optimisers=optimisers, on_progress=on_progress)
        save_model(model, writing.dir)
        tokenizer.save(writing.dir / "tokenizer")
        known = ConceptLibrary.load(packed_dir).cards
        ConceptLibrary([*known, *name_discovered(model, tokenizer)]).save(writing.dir / "concepts.parquet")
        shutil.copyfile(writing.work / "log.jsonl", writing.dir / "log.jsonl")
        save_state(writing.dir / _TRAINING, model, optimisers, TrainState())
        writing.counts.update(_counts(model, packed, settings))
    return read_manifest(out, "model")


def model_config(settings: ModelSettings, packed: PackedCorpus, tokenizer: Tokenizer) -> ModelConfig:
    """The shape of a new model: the user's settings, with vocabulary and library sizes of the corpus.

    Args:
        settings: width, layers, block and so on.
        packed: length of sequences, number of concepts.
        tokenizer: vocabulary and special tokens.

    Returns:
        the configuration.
    """
    shared: Mapping[str, Any] = settings.model_dump(
        exclude={"discovered_ratio", "known_bias", "top_k_known", "top_k_discovered"}
    )
    num_discovered = max(1, round(settings.discovered_ratio * packed.num_concepts))
    values = dict(
        shared,
        backbone="cdlm",
        vocab_size=tokenizer.vocab_size,
        max_length=packed.length,
        num_concepts=packed.num_concepts,
        num_discovered=num_discovered,
        top_k_known=min(settings.top_k_known, packed.num_concepts),
        top_k_known_features=min(settings.top_k_known, packed.num_concepts),
        top_k_discovered=min(settings.top_k_discovered, num_discovered),
        pad_id=tokenizer.pad_id,
        bos_id=tokenizer.bos_id,
        eos_id=tokenizer.eos_id,
        mask_id=tokenizer.mask_id,
        eoc_id=tokenizer.eoc_id,
    )
    return ModelConfig.parse(values, where="model settings")


def _start(packed: PackedCorpus, tokenizer: Tokenizer, settings: TrainSettings, init_from: Path | None) -> ConceptLM:
    if init_from is None:
        config = model_config(settings.model, packed, tokenizer)
        return init_model(config, settings.seed, known_bias=settings.model.known_bias)
    model = load_model(init_from, torch.device("cpu"), torch.float32)
    found, wanted = model.config, (tokenizer.vocab_size, packed.num_concepts)
    if (found.vocab_size, found.num_concepts) != wanted:
        raise ConfigError(
            f"{init_from}: has {found.vocab_size} tokens and {found.num_concepts} known concepts, the packed "
            f"corpus {wanted[0]} and {wanted[1]}; continue it on the corpus it was trained on"
        )
    return model.train()


def _counts(model: ConceptLM, packed: PackedCorpus, settings: TrainSettings) -> dict[str, int]:
    steps = num_steps(settings, packed.length)
    return {
        "parameters": sum(p.numel() for p in model.parameters()),
        "steps": steps,
        "tokens": steps * settings.batch_size * packed.length,
        "known": model.config.num_concepts,
        "discovered": model.unknown_head.num_concepts,
    }
