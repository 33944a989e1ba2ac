"""What a run starts from: new weights, or any checkpoint in the released layout that fits the packed corpus.

A checkpoint that is continued keeps its shape: `config.json` decides, and the `model` settings of the run are not
looked at. Weights are trained in fp32, whatever they are stored in.
"""

import hashlib
import json
from dataclasses import replace
from pathlib import Path

import torch

from vitrail.artifacts import content_id, file_sha256, read_manifest, read_whole
from vitrail.atlas import LABELS_NAME, LIBRARY_NAME, ConceptLibrary, load_library, numbered_library
from vitrail.errors import ConfigError
from vitrail.model import (
    ConceptLM,
    ModelConfig,
    StoredTensors,
    init_model,
    is_bare_checkpoint,
    load_config,
    load_model,
)
from vitrail.packed import PackedCorpus
from vitrail.text import Tokenizer, load_tokenizer
from vitrail.train.settings import TrainSettings
from vitrail.train.shape import packed_config


def origin_id(directory: Path) -> str:
    """What identifies a checkpoint that is continued: the artifact's id, or a hash of all that a bare one is.

    Args:
        directory: a model artifact, or a checkpoint in the released layout.

    Returns:
        the id; of a bare checkpoint over its configuration, every byte of its tensors (however they are sharded) and
        the names of its concepts.

    Raises:
        ArtifactError: neither, or damaged.

    Cost: of a bare checkpoint, reads every byte once; about 1 GB a second.
    """
    if not is_bare_checkpoint(directory):
        return read_manifest(directory, "model").id
    digest = hashlib.sha256()
    for name, tensor in sorted(StoredTensors(directory).by_name.items()):
        digest.update(json.dumps([name, tensor.kind, tensor.shape]).encode())
        digest.update(tensor.read().reshape(-1).view(torch.uint8).numpy().data)
    names = _names_file(directory)
    return content_id(
        {
            "config": load_config(directory).to_released(),
            "weights": digest.hexdigest(),
            "names": file_sha256(names) if names else None,
        }
    )


def new_model(packed: PackedCorpus, settings: TrainSettings) -> ConceptLM:
    """Random weights of the shape that settings and corpus give.

    Args:
        packed: vocabulary, control tokens, number of concepts, length.
        settings: the run.

    Returns:
        the model, in training mode.

    Raises:
        ConfigError: settings that do not fit together, or not the corpus.
    """
    config = packed_config(settings.model, packed)
    known_bias = settings.model.known_bias if settings.model.interpretable else 0.0
    return init_model(answering(config, packed), settings.seed, known_bias=known_bias)


def continued_model(directory: Path, packed: PackedCorpus) -> ConceptLM:
    """The weights of a checkpoint, in fp32 as all training keeps them.

    Args:
        directory: a model artifact, or a checkpoint in the released layout.
        packed: what it will be trained on.

    Returns:
        the model, in training mode.

    Raises:
        ArtifactError: a file of the artifact is missing or cut.
        ConfigError: the corpus was packed with another tokenizer or library, or its sequences are too long.
        CheckpointError: damaged, or in a type that cannot be trained, such as int8.
    """
    if not is_bare_checkpoint(directory):
        read_whole(directory, "model")
    config = load_config(directory)
    _check_fit(directory, config, packed)
    config = answering(config, packed)
    return load_model(directory, torch.device("cpu"), torch.float32, config=config).train()


def run_library(packed: PackedCorpus, directory: Path | None) -> ConceptLibrary:
    """The names of the known concepts of a run: those of the corpus, else of what is continued, else numbers.

    Args:
        packed: a corpus; conversations have a library where the model they were packed for has one of ours.
        directory: what is continued, or None.

    Returns:
        the library.

    Raises:
        ArtifactError: damaged.
    """
    if (packed.path / LIBRARY_NAME).is_file():
        return ConceptLibrary.load(packed.path)
    if directory is None:
        return numbered_library(packed.num_concepts, 0)
    config = load_config(directory)
    return load_library(directory, config.known_count, config.discovered_count)


def answering(config: ModelConfig, packed: PackedCorpus) -> ModelConfig:
    """The configuration of a model that learns from a corpus: after conversations it is one that answers.

    Such a model says so (`instruct`), and knows the token that ends an answer, so that generation stops there. Which
    template writes its prompts stays a matter of its tokenizer.

    Args:
        config: before.
        packed: the corpus.

    Returns:
        the configuration to train and to store.
    """
    if not packed.has_conversations:
        return config
    tokenizer = packed.tokenizer()
    said = [{"role": "user", "content": "."}, {"role": "assistant", "content": "."}]
    last = tokenizer.chat_turns(said)[-1][0][-1]
    end = last if last in tokenizer.special_ids else tokenizer.eos_id
    return config.model_copy(update={"instruct": True, "eot_id": end})


def _names_file(directory: Path) -> Path | None:
    return next((path for name in (LIBRARY_NAME, LABELS_NAME) if (path := directory / name).is_file()), None)


def _check_fit(directory: Path, config: ModelConfig, packed: PackedCorpus) -> None:
    if packed.length > config.max_length:
        raise ConfigError(
            f"{packed.path}: sequences of {packed.length} tokens, {directory} reads {config.max_length}; "
            f"pack with --length {config.max_length}"
        )
    _check_tokenizer(directory, config, packed.path, packed.tokenizer())
    if config.known_count:
        _check_concepts(directory, config, packed)


def _check_tokenizer(directory: Path, config: ModelConfig, packed_path: Path, tokenizer: Tokenizer) -> None:
    mend = f"pack with --tokenizer {directory}"
    if tokenizer.vocab_size != config.vocab_size:
        raise ConfigError(
            f"{packed_path}: packed with another tokenizer ({tokenizer.vocab_size} tokens) than {directory} has "
            f"({config.vocab_size}); {mend}"
        )
    # The end of an answer is learnt: `answering` adds it.
    if replace(tokenizer.controls, eot=None) != replace(config.controls, eot=None):
        raise ConfigError(
            f"{packed_path}: packed with the control ids {sorted(tokenizer.controls.ids)}, {directory} has "
            f"{sorted(config.controls.ids)}; {mend}"
        )
    own = load_tokenizer(directory, config.controls, config.vocab_size)
    if own is not None and own.fingerprint != tokenizer.fingerprint:
        raise ConfigError(
            f"{packed_path}: packed with another tokenizer than {directory} has, of the same size; {mend}"
        )


def _check_concepts(directory: Path, config: ModelConfig, packed: PackedCorpus) -> None:
    if packed.num_concepts != config.known_count:
        raise ConfigError(
            f"{packed.path}: made for {packed.num_concepts} known concepts, {directory} has {config.known_count}; "
            "annotate with the library that it was trained with"
        )
    if not (packed.path / LIBRARY_NAME).is_file():
        return
    ours = load_library(directory, config.known_count, config.discovered_count)
    theirs = ConceptLibrary.load(packed.path)
    for concept_id in range(config.known_count):
        name, packed_name = (library.card("known", concept_id).name for library in (ours, theirs))
        # A concept that nobody named has its number for a name, which says nothing against another.
        if f"#{concept_id}" not in (name, packed_name) and name != packed_name:
            raise ConfigError(
                f"{packed.path}: concept {concept_id} is '{packed_name}', in {directory} it is '{name}'; "
                "annotate with the library that it was trained with"
            )
