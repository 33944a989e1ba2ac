"""`vitrail generate`: continue prompts, or fill gaps in them."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal

from cyclopts import Parameter
from rich.console import Console

from vitrail.api import Generation, LoadedModel, Prompt, load
from vitrail.cli.output import Device, Dtype, Json, SeedFlag, Whole, emit, progress_console
from vitrail.errors import ConfigError, VitrailError
from vitrail.generate import Commit, Sampling

GAP = "[...]"
Steering = Annotated[str, Parameter(help='such as "exports=+1.0; religions=off"')]


@Parameter(name="*")
@dataclass(frozen=True)
class SamplingFlags:
    """How tokens are chosen; an option that has no effect beside another is refused."""

    temperature: Annotated[float, Parameter(help="0 takes the most likely token")] = 0.0
    top_p: Annotated[float, Parameter(help="nucleus of the sampling")] = 1.0
    top_k: Annotated[Whole | None, Parameter(help="draw among so many of the most likely tokens")] = None
    tokens_per_step: Annotated[Whole, Parameter(help="tokens that each denoising step commits")] = 1
    steps_per_block: Annotated[Whole | None, Parameter(help="denoising steps a block, tokens spread evenly")] = None
    threshold: Annotated[float | None, Parameter(help="commit every token at least this probable")] = None
    factor: Annotated[float | None, Parameter(help="commit the n surest, n + 1 times the n-th doubt below it")] = None
    order: Annotated[
        Literal["confidence", "left_to_right"], Parameter(help="the surest positions first, or the leftmost")
    ] = "confidence"
    repetition_penalty: Annotated[float, Parameter(help="above 1, tokens already there become less likely")] = 1.0
    guidance: Annotated[float, Parameter(help="how far to lean on the prompt (classifier-free guidance)")] = 0.0
    grid: Annotated[
        Literal["attention", "prompt"], Parameter(help="where blocks begin; prompt: behind the prompt, as the release")
    ] = "attention"
    seed: Annotated[SeedFlag, Parameter(help="of the sampling")] = 0

    def sampling(self, max_new_tokens: int) -> Sampling:
        """The settings.

        Args:
            max_new_tokens: tokens to add.

        Returns:
            them as one object.

        Raises:
            ConfigError: a value out of range or without effect.
        """
        return Sampling.parse({**vars(self), "max_new_tokens": max_new_tokens}, where="generate")


_DEFAULTS = SamplingFlags()


def generate(
    model: Path,
    *prompt: str,
    steer: Steering = "",
    max_new_tokens: Whole | None = None,
    stop: Annotated[Sequence[str], Parameter(negative="")] = (),
    gap: Whole | None = None,
    flags: SamplingFlags = _DEFAULTS,
    save: Path | None = None,
    device: Device = "auto",
    dtype: Dtype = "auto",
    json: Json = False,
) -> None:
    """Continue a prompt; watch the tokens appear in the order in which the model fills them in.

    Example: `vitrail generate runs/demo/model "The economy of France" --steer "exports=+1.0"`

    Several prompts are continued together, each as if it were alone; one that fails leaves the others alone.
    With `--gap 4` each `[...]` in a prompt is filled with four tokens.

    Args:
        model: a model directory, a released checkpoint, or a repository of the Hugging Face Hub.
        prompt: texts to continue.
        steer: concepts to turn up or down.
        max_new_tokens: tokens to add; 64, or none where gaps are filled.
        stop: text that ends the answer; may be given several times.
        gap: tokens of each gap.
        flags: how tokens are chosen.
        save: directory for the trace of one prompt, to explain it later.
        device: where to run.
        dtype: of the weights.
        json: print one JSON object.
    """
    if not prompt:
        raise ConfigError('no prompt; write one behind the model, such as "The economy of France"')
    if save is not None and len(prompt) > 1:
        raise ConfigError("--save keeps the trace of one prompt; give one, or leave it out")
    loaded = load(model, device=device, dtype=dtype, needs_text=True)
    sampling = flags.sampling(max_new_tokens if max_new_tokens is not None else 64 if gap is None else 0)
    asked = [asked_for(loaded, text, gap, Prompt("", steer, tuple(stop), sampling)) for text in prompt]
    printer = CommitPrinter(loaded, progress_console, has_many=len(prompt) > 1)
    readable = [one for one in asked if isinstance(one, Prompt)]
    written = iter(loaded.generate_many(readable, on_commit=None if json else printer))
    answers = [next(written) if isinstance(one, Prompt) else one for one in asked]
    faults = [answer for answer in answers if isinstance(answer, VitrailError)]
    if len(prompt) == 1 and faults:
        raise faults[0]
    results = [result_of(text, steer, answer) for text, answer in zip(prompt, answers, strict=True)]
    try:
        if save is not None and isinstance(answers[0], Generation):
            answers[0].trace.save(save)
            results[0]["trace"] = str(save)
    finally:
        # A trace that finds no place does not cost the answer.
        text = "\n\n".join(str(result.get("text", result.get("error"))) for result in results)
        emit(results[0] if len(results) == 1 else {"answers": results}, json, text)
    if faults:
        raise faults[0]


def asked_for(loaded: LoadedModel, text: str, gap: int | None, options: Prompt) -> Prompt | VitrailError:
    """A prompt, its gaps as masked ids.

    Args:
        loaded: the model.
        text: as typed.
        gap: tokens of each gap; None where there are none.
        options: the prompt but for its words.

    Returns:
        the prompt, or what is wrong with it: a size of gaps but no gap, or a text that cannot be read.
    """
    if gap is None:
        return replace(options, words=text)
    if GAP not in text:
        return ConfigError(f"--gap {gap}: no {GAP} in the prompt '{text[:40]}'; mark where the gap is")
    try:
        return replace(options, words=loaded.with_gaps(text.split(GAP), gap))
    except ConfigError as error:
        return error


def result_of(prompt: str, steer: str, answer: Generation | VitrailError) -> dict[str, Any]:
    """An answer as plain values.

    Args:
        prompt: what was asked.
        steer: how it was steered.
        answer: the answer, or what was wrong.

    Returns:
        the values.
    """
    if isinstance(answer, VitrailError):
        return {"prompt": prompt, "error": str(answer), "steer": steer}
    return {"prompt": prompt, "text": answer.text, "token_ids": list(answer.token_ids), "steer": steer}


class CommitPrinter:
    """Shows committed tokens on stderr as they come: step, position, text."""

    def __init__(self, loaded: LoadedModel, console: Console, *, has_many: bool = False) -> None:
        """Remember what names the tokens.

        Args:
            loaded: the model.
            console: where to print.
            has_many: whether to name the prompt of each commit.
        """
        self._tokenizer, self._console, self._has_many = loaded.tokenizer, console, has_many

    def __call__(self, commit: Commit) -> None:
        """Print one commit.

        Args:
            commit: what was filled in by one step.
        """
        words = ", ".join(
            f"{position}:{self._tokenizer.token_text(token)!r}"
            for position, token in zip(commit.positions, commit.tokens, strict=True)
        )
        name = f"prompt {commit.request:>3}  " if self._has_many else ""
        self._console.print(f"{name}step {commit.step:>4}  {words}", markup=False, style="dim")
