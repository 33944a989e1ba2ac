"""From a packed corpus to a model artifact, and from a model to its continuation, on any number of processes.

`config.json`, `model.safetensors` (released layout), `tokenizer/`, `concepts.parquet` (known concepts from
the atlas, discovered ones named by their top tokens), `log.jsonl`, and `training/` (optimiser state, so that
a continuation keeps its momentum). Rank 0 writes; the others train along and wait.
"""

import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from vitrail.artifacts import Manifest, Stage, Writing, read_manifest
from vitrail.atlas import ConceptLibrary
from vitrail.errors import ConfigError, RunFailed
from vitrail.model import ConceptLM, empty_model, is_bare_checkpoint, save_model, training_kernel
from vitrail.packed import PackedCorpus
from vitrail.train.adapters import add_adapters, merge_adapters
from vitrail.train.consistency import check_steerable
from vitrail.train.distributed import Root, World, shard, whole
from vitrail.train.loop import OnProgress, num_steps, train
from vitrail.train.naming import name_discovered
from vitrail.train.objective import check_objective
from vitrail.train.optim import Optimisers
from vitrail.train.settings import TrainSettings
from vitrail.train.start import continued_model, new_model, origin_id, run_library
from vitrail.train.state import load_optimisers, save_optimisers
from vitrail.train.tracking import Tracker

_TRAINING = "training"
_COST_ONLY: dict[str, Any] = {
    **dict.fromkeys(("micro_batch", "compile", "activation_checkpointing"), True),
    **dict.fromkeys(("checkpoint_every_s", "checkpoint_every_steps"), True),
    "data": {"workers"},
}
"""Settings that may change between an interruption and the next attempt: they say how a run computes, not what."""


def train_model(
    packed_dir: Path,
    out: Path,
    settings: TrainSettings,
    *,
    init_from: Path | None = None,
    resume: bool = True,
    world: World | None = None,
    trackers: Sequence[Tracker] = (),
    on_progress: OnProgress | None = None,
) -> Manifest:
    """Train a model and write it as an artifact; an interrupted run goes on where it was.

    Args:
        packed_dir: the packed corpus.
        out: directory of the model.
        settings: the run; with `steering` it interleaves steering batches.
        init_from: what to continue: a model artifact, with its optimiser state where the run trains the same
            parameters, or a checkpoint in the released layout; None starts from random weights.
        resume: go on from an interrupted run's checkpoint; otherwise that is thrown away.
        world: the processes of the run; None is this one alone, on the CPU.
        trackers: told the figures of the run, on rank 0.
        on_progress: called after every step.

    Returns:
        the manifest (kind `model`).

    Raises:
        ConfigError: settings that contradict each other, or `init_from` has another vocabulary or library than the
            packed corpus.
        RunFailed: the loss became NaN, memory ran out, or the disk is full; the last checkpoint is intact.
        Stopped: SIGTERM came, and the checkpoint was written.
    """
    world = world or World()
    if init_from is not None and out.resolve() == init_from.resolve():
        raise ConfigError(f"{out}: is the model that is continued, and would be lost; name another --out")
    if settings.lora is not None and init_from is None:
        raise ConfigError("lora adapts a model that is there already; name it with --init-from, or leave lora out")
    stage = _stage(packed_dir, out, settings, init_from, world)
    if world.shared(stage.is_done):
        return read_manifest(out, "model")
    packed = PackedCorpus.open(packed_dir)
    library = run_library(packed, init_from)
    with _writing(stage, world, resume=resume) as (work, writing), _memory_faults_are_clear(settings):
        root, optimisers = _start(packed, settings, init_from, world)
        train(
            root,
            optimisers,
            packed,
            settings,
            work,
            world=world,
            library=library,
            trackers=trackers if world.is_main else (),
            on_progress=on_progress,
            name=stage.fingerprint,
        )
        model = _whole_model(root.model, world)
        if settings.lora is None:
            save_optimisers(work / _TRAINING, optimisers, world)
        if writing is not None:
            _write_model(model, packed, library, settings, writing)
    return read_manifest(out, "model")


def _stage(packed_dir: Path, out: Path, settings: TrainSettings, init_from: Path | None, world: World) -> Stage:
    values, inputs = settings.model_dump(mode="json", exclude=_COST_ONLY), {"packed": packed_dir}
    if init_from is not None and is_bare_checkpoint(init_from):
        # Rank 0 alone reads it all.
        values["init_checkpoint"] = world.shared(origin_id(init_from) if world.is_main else "")
    elif init_from is not None:
        inputs["init"] = init_from
    return Stage(out, "model", values, inputs, later=["calibration.json"])


@contextmanager
def _writing(stage: Stage, world: World, *, resume: bool) -> Iterator[tuple[Path, Writing | None]]:
    """Scratch for all ranks, and for rank 0 the artifact that is being written."""
    if not world.is_main:
        yield world.shared(Path()), None
        world.wait()
        return
    with stage.write() as writing:
        if not resume:
            shutil.rmtree(writing.work)
            writing.work.mkdir()
        yield world.shared(writing.work), writing
    world.wait()


@contextmanager
def _memory_faults_are_clear(settings: TrainSettings) -> Iterator[None]:
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        if not isinstance(error, MemoryError | torch.OutOfMemoryError) and "allocate memory" not in str(error):
            raise
        raise RunFailed(
            f"out of memory ({settings.micro_batch or settings.batch_size} sequences at once); lower micro_batch, "
            "switch activation_checkpointing on, take a smaller model, or more processes; the last checkpoint is intact"
        ) from error


def _start(
    packed: PackedCorpus, settings: TrainSettings, init_from: Path | None, world: World
) -> tuple[Root, Optimisers]:
    """Model and optimisers as the first step finds them."""
    model = continued_model(init_from, packed) if init_from else new_model(packed, settings)
    if settings.steering is not None:
        check_steerable(settings.steering.layer, model.config, packed)
    root = _prepared(model, settings, world)
    optimisers = Optimisers(root.model, settings.optim)
    # A bare checkpoint has none, and neither has a model whose adapters alone were trained.
    if init_from is not None and settings.lora is None and (init_from / _TRAINING).is_dir():
        load_optimisers(init_from / _TRAINING, optimisers)
    return root, optimisers


def _prepared(model: ConceptLM, settings: TrainSettings, world: World) -> Root:
    """On its device, with its kernel, with adapters, in shards, layers compiled or recomputed: as the settings say."""
    check_objective(model.config, settings.loss, settings.compose)
    model = model.to(world.device)
    model.transformer.kernel = training_kernel(model.config, world.device)
    if settings.lora is not None:
        add_adapters(model, settings.lora, settings.seed)
    if settings.activation_checkpointing:
        model.recompute_layers()
    if settings.compile:
        model.compile_layers()
    root = Root(model)
    shard(root, world, is_half=settings.precision == "bf16")
    return root


def _whole_model(model: ConceptLM, world: World) -> ConceptLM:
    """The trained model without shards and adapters, on rank 0's CPU; every rank must call it."""
    merge_adapters(model)
    tensors = {}
    for name, parameter in model.named_parameters():
        tensor = whole(parameter.detach())  # one at a time: only rank 0 keeps what is gathered
        if world.is_main:
            tensors[name] = tensor.cpu()
    plain = empty_model(model.config)
    if world.is_main:
        plain.load_state_dict(tensors, assign=True, strict=False)
        plain.transformer.tie()
    return plain


def _write_model(
    model: ConceptLM, packed: PackedCorpus, library: ConceptLibrary, settings: TrainSettings, writing: Writing
) -> None:
    tokenizer = packed.tokenizer()
    save_model(model, writing.dir)
    tokenizer.save(writing.dir / "tokenizer")
    cards = [card for card in library.cards if card.head == "known"] if model.known_head.num_concepts else []
    ConceptLibrary([*cards, *name_discovered(model, tokenizer)]).save(writing.dir / "concepts.parquet")
    shutil.copyfile(writing.work / "log.jsonl", writing.dir / "log.jsonl")
    if (writing.work / _TRAINING).is_dir():
        shutil.copytree(writing.work / _TRAINING, writing.dir / _TRAINING)
    steps = num_steps(settings, packed.length)
    writing.counts.update(
        parameters=sum(p.numel() for p in model.parameters()),
        steps=steps,
        tokens=steps * settings.batch_size * packed.length,
        known=model.known_head.num_concepts,
        discovered=model.unknown_head.num_concepts,
    )
