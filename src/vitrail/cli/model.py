"""`vitrail explain`, `metrics`, `steer calibrate`."""

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter
from rich.console import Console

from vitrail.api import load
from vitrail.cli.output import (
    Count,
    Device,
    Dtype,
    Json,
    SeedFlag,
    Whole,
    answering,
    emit,
    working,
)
from vitrail.errors import ConfigError
from vitrail.generate import Trace
from vitrail.metrics import measure_model
from vitrail.packed import PackedCorpus

Steering = Annotated[str, Parameter(help='such as "exports=+1.0; religions=off"')]


def explain(
    model: Path,
    prompt: str,
    *,
    index: Path | None = None,
    steer: Steering = "",
    max_new_tokens: Whole = 64,
    temperature: float = 0.0,
    seed: SeedFlag = 0,
    device: Device = "auto",
    dtype: Dtype = "auto",
    json: Json = False,
) -> None:
    """Say why the model answers as it does: inputs, concepts, training passages, certificate.

    Example: `vitrail explain runs/demo/model "The economy of France" --index runs/demo/index`

    Args:
        model: a model directory.
        prompt: text to continue, or the directory of a saved trace.
        index: training-data index of this model.
        steer: concepts to turn up or down.
        max_new_tokens: tokens to add.
        temperature: 0 takes the most likely token.
        seed: of the sampling.
        device: where to run.
        dtype: of the weights.
        json: print one JSON object.
    """
    loaded = load(model, device=device, dtype=dtype, needs_text=True)
    if _is_folder(prompt):
        if steer:
            raise ConfigError(f"--steer {steer}: {prompt} is a trace, steered as it was when it was generated")
        answer = loaded.answer(Trace.load(Path(prompt)))
    else:
        answer = loaded.generate(prompt, max_new_tokens=max_new_tokens, temperature=temperature, seed=seed, steer=steer)
    why = answer.explain(index)
    if json:
        emit(why.model_dump(mode="json"), as_json=True, text="")
    else:
        with answering():
            why.render(Console(highlight=False, emoji=False))


def _is_folder(prompt: str) -> bool:
    """Whether a prompt is the path of a trace; an empty or a long text is no path to any system."""
    try:
        return bool(prompt) and Path(prompt).is_dir()
    except OSError:
        return False


def metrics(model: Path, packed: Path, *, sequences: Count = 64, seed: SeedFlag = 0, json: Json = False) -> None:
    """Measure a model on held-out text: likelihood, contribution, deletion, independence.

    Example: `vitrail metrics runs/demo/model runs/demo/packed --json`

    Args:
        model: a model directory.
        packed: a packed corpus with a held-out split.
        sequences: held-out sequences to use.
        seed: of the draws.
        json: print one JSON object.
    """
    with working("measuring"):
        result = measure_model(
            load(model, device="cpu").network, PackedCorpus.open(packed), num_sequences=sequences, seed=seed
        )
    emit(result, json, "\n".join(f"{name}: {value}" for name, value in result.items()))


def calibrate(
    model: Path,
    *,
    packed: Path,
    layer: Whole | None = None,
    target: float = 8.0,
    seed: SeedFlag = 0,
    json: Json = False,
) -> None:
    """Find each concept's strength 1.0 on held-out text, and store it with the model.

    Example: `vitrail steer calibrate runs/demo/model --packed runs/demo/packed`

    Args:
        model: a model directory.
        packed: the packed corpus with its held-out split.
        layer: inject after this block and all later ones; default: the middle one.
        target: mean largest logit change of strength 1.0.
        seed: of the positions.
        json: print one JSON object.
    """
    with working("calibrating"):
        loaded = load(model)
        calibration = loaded.calibrate(PackedCorpus.open(packed), layer=layer, target=target, seed=seed)
        calibration.save(loaded.directory)
    scales = [scale.scale for scale in calibration.known.values()]
    text = f"{model}/calibration.json: {len(scales)} concepts, layer {calibration.layer}, target {target}"
    emit({"layer": calibration.layer, "target": target, "scales": scales}, json, text)
