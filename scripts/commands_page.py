"""The reference page of all commands, from their own `--help` and settings.

    python scripts/commands_page.py

writes docs/commands.md. The page is a function of the code alone: 100 columns, no colour, no local paths.
`tests/test_docs.py` fails where the committed page differs.
"""

import argparse
import io
import json
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

from pydantic import BaseModel
from pydantic.fields import FieldInfo
from rich.console import Console

from vitrail.atlas import AtlasSettings
from vitrail.atlas.judge.relevance import RelevanceSettings
from vitrail.atlas.llm import Endpoint
from vitrail.atlas.view import PageSettings
from vitrail.cli.main import app
from vitrail.explain import IndexSettings
from vitrail.packed import PackSettings
from vitrail.train import TrainSettings

PAGE = Path(__file__).parents[1] / "docs" / "commands.md"
COLUMNS = 100

SETTINGS: dict[str, type[BaseModel]] = {
    "atlas build": AtlasSettings,
    "atlas evaluate": RelevanceSettings,
    "atlas page": PageSettings,
    "index build": IndexSettings,
    "pack": PackSettings,
    "train": TrainSettings,
}
"""Commands that take any setting as a flag, which their `--help` does not list."""

ASKING = ("atlas build", "atlas evaluate")
"""Commands that also take `--endpoint.…`, the address of a language model."""

HEAD = """\
# Commands

This page is generated: `python scripts/commands_page.py` writes it from the `--help` of every command and
from the settings classes.

What all commands share:

- The result goes to stdout, progress and messages to stderr. With `--json` the result is one JSON object.
- Exit code 0: done; 1: the run failed, what was finished is kept; 2: the input can be mended, one line says
  how; 130: interrupted. `--debug` adds the traceback.
- Flags are given as `--name value` or `--name=value`; `-` and `_` in a name are the same. Where a section lists
  settings, each of them is a flag too, groups with a dot. Values are read as YAML: numbers, `true`, `null`, lists.
- A command whose output directory already holds the result of the same inputs and settings does nothing;
  see [artifacts](artifacts.md).
"""


def page() -> str:
    """The page as Markdown text."""
    sections = [HEAD, _section([]), *(_section(words) for words in commands())]
    return "\n".join(sections)


def commands(above: tuple[str, ...] = ()) -> Iterator[list[str]]:
    """Every command and group of commands, in alphabetical order.

    Args:
        above: words of the group to look into; empty for all.

    Yields:
        the words after `vitrail`.
    """
    place = app
    for word in above:
        place = place[word]
    for name in sorted(name for name in place if not name.startswith("-")):
        words = (*above, name)
        yield list(words)
        yield from commands(words)


def help_text(words: list[str]) -> str:
    """What `vitrail WORDS --help` prints on a terminal of 100 columns without colour.

    Args:
        words: of the command.

    Returns:
        the text, without blanks at the ends of lines.
    """
    shown = io.StringIO()
    console = Console(file=shown, width=COLUMNS, color_system=None, force_terminal=False, legacy_windows=False)
    app([*words, "--help"], console=console, exit_on_error=False, result_action="return_value")
    return "\n".join(line.rstrip() for line in shown.getvalue().strip().splitlines())


def setting_lines(model: type[BaseModel], above: str = "") -> Iterator[tuple[str, str]]:
    """Every setting of a settings class, the groups inside it included.

    Args:
        model: the class.
        above: dotted name of the group it stands in.

    Yields:
        flag and default; a group that is off by default is followed by its own fields.
    """
    for name, field in model.model_fields.items():
        if not field.repr:  # set by the software, not by flags
            continue
        key = f"{above}.{name}" if above else name
        group = _group(field.annotation)
        if group is None or field.default is None:
            yield f"--{key}", _default(field)
        if group is not None:
            yield from setting_lines(group, key)


def _group(annotation: Any) -> type[BaseModel] | None:
    kinds = get_args(annotation) if isinstance(annotation, types.UnionType) else (annotation,)
    groups = [kind for kind in kinds if isinstance(kind, type) and issubclass(kind, BaseModel)]
    return groups[0] if groups else None


def _default(field: FieldInfo) -> str:
    if field.is_required():
        return "(to be given)"
    if field.default_factory is not None:
        return "(built in)"
    return field.default if isinstance(field.default, str) else json.dumps(field.default)


def _section(words: list[str]) -> str:
    parts = [f"## `{' '.join(['vitrail', *words])}`", "", "```text", help_text(words), "```", ""]
    settings = SETTINGS.get(" ".join(words))
    if settings is not None:
        lines = list(setting_lines(settings))
        lines += setting_lines(Endpoint, "endpoint") if " ".join(words) in ASKING else []
        width = max(len(flag) for flag, _ in lines)
        table = [f"{flag:<{width}}  {value}" for flag, value in lines]
        parts += [f"Settings (`{settings.__name__}`) and their defaults:", "", "```text", *table, "```", ""]
    return "\n".join(parts)


def main() -> None:
    """Write the page."""
    parser = argparse.ArgumentParser(description="Write the reference page of all commands.")
    parser.add_argument("page", type=Path, nargs="?", default=PAGE, help="where; docs/commands.md by default")
    parser.parse_args().page.write_text(page(), encoding="utf-8")


if __name__ == "__main__":
    main()
