"""What every command shares: result on stdout (text, or one JSON object), progress on stderr."""

import json as json_format
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import yaml
from cyclopts import CoercionError, Parameter, Token, validators
from rich.console import Console

from vitrail.artifacts import write_faults_are_clear
from vitrail.errors import ConfigError
from vitrail.settings import MAX_SEED

Json = Annotated[bool, Parameter(name="--json", negative="", help="print one JSON object on stdout")]
Device = Annotated[str, Parameter(help="auto, cpu, cuda or mps")]
Dtype = Annotated[str, Parameter(help="auto (as stored), int8, float32, bfloat16, float16 or float64")]
Overrides = Annotated[str, Parameter(allow_leading_hyphen=True, show=False, help="any setting: --group.field value")]


def _whole(hint: Any, tokens: Sequence[Token]) -> int:
    """The whole number that was typed; a fraction is refused, and not cut."""
    (token,) = tokens
    try:
        return int(token.value)
    except ValueError:
        raise CoercionError(token=token, target_type=int, msg=f"{token.value!r} is not a whole number") from None


Whole = Annotated[int, Parameter(converter=_whole)]
Count = Annotated[int, Parameter(converter=_whole, validator=validators.Number(gte=1))]
SeedFlag = Annotated[int, Parameter(converter=_whole, validator=validators.Number(gte=0, lte=MAX_SEED))]

progress_console = Console(stderr=True, highlight=False, emoji=False)


def emit(result: Mapping[str, Any], as_json: bool, text: str) -> None:
    """Print the result of a command.

    Args:
        result: plain values; becomes the JSON object.
        as_json: JSON instead of text.
        text: the readable form.

    Raises:
        BrokenPipeError: the reader left.
        RunFailed: standard output goes to a full disk.
    """
    if sys.stdout is None:  # closed by the caller, who wants no answer
        return
    is_unicode = (sys.stdout.encoding or "").lower().startswith("utf")
    if as_json:
        text = json_format.dumps(result, indent=2, ensure_ascii=not is_unicode, allow_nan=False)
    with answering():
        sys.stdout.write(text.rstrip("\n") + "\n")


@contextmanager
def answering() -> Iterator[None]:
    """Write to standard output so that a full disk behind it is one line, and nothing is written twice.

    Yields:
        while something prints the result.

    Raises:
        BrokenPipeError: the reader left.
        RunFailed: standard output goes to a full disk.
    """
    with write_faults_are_clear(Path("standard output")):
        try:
            yield
            sys.stdout.flush()
        except OSError:
            sys.stdout = None  # or Python writes again what is left, when it ends
            raise


def parse_overrides(words: Sequence[str]) -> dict[str, Any]:
    """Dotted flags as a mapping: `--model.width 256 --seed=3` → `{"model.width": 256, "seed": 3}`.

    Args:
        words: the words of the command line that are no flags of the command itself.

    Returns:
        dotted key → value, read as YAML (numbers, true/false, null, lists).

    Raises:
        ConfigError: a word that is no flag, or a flag without its value.
    """
    values: dict[str, Any] = {}
    rest = list(words)
    while rest:
        flag = rest.pop(0)
        if not flag.startswith("--"):
            raise ConfigError(f"'{flag}' is not a setting; settings are written --group.field value")
        key, has_value, raw = flag[2:].partition("=")
        if not has_value:
            if not rest:
                raise ConfigError(f"setting '{key}' has no value; write --{key} VALUE")
            raw = rest.pop(0)
        try:
            values[key.replace("-", "_")] = yaml.safe_load(raw)
        except yaml.YAMLError as error:
            raise ConfigError(f"setting '{key}': {raw!r} cannot be read as a value") from error
    return values


@contextmanager
def working(what: str) -> Iterator[None]:
    """Show that something runs, on stderr.

    Args:
        what: a present participle and its object, such as "building the atlas".

    Yields:
        while it runs.
    """
    if progress_console.is_terminal:
        with progress_console.status(what + " …"):
            yield
    else:
        progress_console.print(what + " …")
        yield


def described(path: Path, counts: Mapping[str, int]) -> str:
    """One line about a finished artifact.

    Args:
        path: its directory.
        counts: its counts, by unit.

    Returns:
        text such as `runs/corpus: 1,204 documents, 8,120,334 bytes`.
    """
    return f"{path}: " + ", ".join(f"{count:,} {unit.replace('_', ' ')}" for unit, count in counts.items())
