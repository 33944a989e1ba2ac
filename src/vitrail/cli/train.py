"""`vitrail train`."""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from rich.progress import BarColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as Bar

from vitrail.cli.output import (
    Count,
    Device,
    Json,
    Overrides,
    described,
    emit,
    parse_overrides,
    progress_console,
)
from vitrail.errors import ConfigError
from vitrail.train import (
    OnProgress,
    Progress,
    TensorBoard,
    Tracker,
    TrainSettings,
    WeightsAndBiases,
    World,
    describe_plan,
    joined,
    train_model,
)


def train(
    config: Path,
    *overrides: Overrides,
    packed: Path | None = None,
    out: Path | None = None,
    init_from: Path | None = None,
    resume: bool = True,
    device: Device = "auto",
    logs: Path | None = None,
    wandb: str | None = None,
    plan: bool = False,
    ranks: Count = 1,
    length: Count | None = None,
    json: Json = False,
) -> None:
    """Train a model, or continue one.

    Example: `vitrail train configs/train.yaml --packed runs/packed --out runs/model --optim.matrix_rate 0.02`

    An interrupted run goes on where it was and ends with the same weights as one that was not. On several processes:
    `torchrun --nproc-per-node 2 --no-python vitrail train …`; a run may go on with another number of them.

    Args:
        config: YAML file of settings; see `configs/`.
        overrides: any setting of it.
        packed: a packed corpus.
        out: directory of the model.
        init_from: a model to continue: one of ours, or a checkpoint in the released layout.
        resume: go on with an interrupted run of the same settings; `--no-resume` begins again.
        device: where to run: auto, cpu or cuda.
        logs: directory of TensorBoard files and speeds; default: `logs/NAME` beside the model.
        wandb: also log to this project of Weights & Biases.
        plan: only say what the run would be: parameters, operations, memory. Needs no corpus.
        ranks: processes that the plan counts with.
        length: tokens of a sequence that the plan counts with, where no corpus says it.
        json: print one JSON object.
    """
    settings = TrainSettings.load(config, parse_overrides(overrides))
    if plan:
        report = describe_plan(settings, packed, ranks, length)
        emit(report.as_json(), json, report.text)
        return
    if packed is None or out is None:
        missing = "--packed" if packed is None else "--out"
        raise ConfigError(f"{missing} is missing; name a packed corpus and the directory of the model (or use --plan)")
    with joined(device) as world, ExitStack() as stack:
        trackers = _trackers(settings, out, logs, wandb) if world.is_main else []
        for tracker in trackers:
            stack.callback(tracker.close)
        on_progress = stack.enter_context(_progress(world))
        manifest = train_model(
            packed,
            out,
            settings,
            init_from=init_from,
            resume=resume,
            world=world,
            trackers=trackers,
            on_progress=on_progress,
        )
        if world.is_main:
            emit({"id": manifest.id, "counts": manifest.counts}, json, described(out, manifest.counts))


def _trackers(settings: TrainSettings, out: Path, logs: Path | None, wandb: str | None) -> Sequence[Tracker]:
    folder = logs or out.resolve().parent / "logs" / out.name
    trackers: list[Tracker] = [TensorBoard(folder)]
    if wandb is not None:
        trackers.append(WeightsAndBiases(wandb, out.name, settings.model_dump(mode="json"), folder))
    return trackers


@contextmanager
def _progress(world: World) -> Iterator[OnProgress | None]:
    if not world.is_main:
        yield None
        return
    columns = (BarColumn(bar_width=24), TextColumn("{task.fields[note]}"), TimeRemainingColumn())
    with Bar(*columns, console=progress_console, transient=True) as bar:
        task = bar.add_task("training", total=1.0, note="")

        def show(progress: Progress) -> None:
            bar.update(task, completed=progress.step / progress.num_steps, note=progress.line)

        yield show
