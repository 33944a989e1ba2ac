"""The `vitrail` command: its table of commands, and how faults become one line and an exit code.

Exit codes: 0 done, 1 failed, 2 bad input, 130 interrupted, 143 stopped by SIGTERM with its work saved. A user's
mistake gets one line; `--debug` adds the traceback. Commands are named by string, so that `vitrail --help` loads no
tensor library.
"""

import ast
import errno
import io
import os
import sys
import traceback
from collections.abc import Sequence
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

from cyclopts import App, CycloptsError
from rich.console import Console

from vitrail.errors import VitrailError

INTERRUPTED = 130

_COMMANDS = {
    "demo": "vitrail.cli.demo:demo",
    "pack": "vitrail.cli.data:pack",
    "train": "vitrail.cli.train:train",
    "generate": "vitrail.cli.generate:generate",
    "explain": "vitrail.cli.model:explain",
    "chat": "vitrail.cli.serve:chat",
    "serve": "vitrail.cli.serve:serve",
    "metrics": "vitrail.cli.model:metrics",
    "convert": "vitrail.cli.convert:convert",
    "info": "vitrail.cli.data:info",
    "corpus import": "vitrail.cli.data:import_corpus",
    "atlas build": "vitrail.cli.atlas:build",
    "atlas annotate": "vitrail.cli.atlas_annotate:annotate",
    "atlas search": "vitrail.cli.atlas_view:search",
    "atlas show": "vitrail.cli.atlas_view:show",
    "atlas page": "vitrail.cli.atlas_view:page",
    "atlas compare": "vitrail.cli.atlas_view:compare",
    "atlas import": "vitrail.cli.atlas_import:import_source",
    "atlas edit": "vitrail.cli.atlas_edit:edit",
    "atlas tree": "vitrail.cli.atlas_tree:tree",
    "atlas evaluate": "vitrail.cli.atlas_evaluate:evaluate",
    "atlas prompts": "vitrail.cli.atlas_evaluate:prompts",
    "index build": "vitrail.cli.index:build",
    "index query": "vitrail.cli.index:query",
    "steer calibrate": "vitrail.cli.model:calibrate",
}
_GROUPS = {
    "corpus": "Raw text in: `vitrail corpus import texts/ --out runs/corpus`",
    "atlas": "Concept libraries: `vitrail atlas build runs/corpus --out runs/atlas`",
    "index": "Training passages by meaning: `vitrail index query MODEL TEXT --index DIR`",
    "steer": "Strengths in calibrated units: `vitrail steer calibrate MODEL --packed DIR`",
}


def _docstring(target: str) -> str:
    """What a command's docstring says before its arguments, read from the source: nothing is imported."""
    module, function = target.split(":")
    spec = find_spec(module)
    assert spec is not None
    assert spec.origin is not None
    tree = ast.parse(Path(spec.origin).read_text(encoding="utf-8"))
    (node,) = (node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == function)
    return (ast.get_docstring(node) or "").partition("\nArgs:")[0].strip()


def _build_app() -> App:
    app = App(
        name="vitrail",
        help="Language models whose every word is a sum of named concepts. Start with: `vitrail demo`",
        version=version("vitrail"),
        help_format="markdown",
        suppress_keyboard_interrupt=False,  # `main` says how to go on
    )
    groups = {name: App(name=name, help=text) for name, text in _GROUPS.items()}
    for words, target in _COMMANDS.items():
        group, _, name = words.rpartition(" ")
        (groups[group] if group else app).command(target, name=name, help=_docstring(target))
    for sub_app in groups.values():
        app.command(sub_app)
    return app


app = _build_app()


def settle_environment() -> None:
    """Set what OpenMP, oneDNN and tokenizers read once, when they are first loaded.

    Idle OpenMP threads that spin for long slow a busy two-core machine down several times, and threads that
    do not spin at all halve the speed of a small model on an idle one; a short spin serves both. oneDNN and
    its wrapper keep a thousand compiled products each, one for every new shape; a training step has a new
    number of masked tokens each time, and memory grew by 1.5 MB a step. A user's own values win.
    """
    for name, value in (
        ("GOMP_SPINCOUNT", "10000"),
        ("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "64"),
        ("LRU_CACHE_CAPACITY", "64"),
        ("TOKENIZERS_PARALLELISM", "false"),
    ):
        os.environ.setdefault(name, value)


def main(argv: Sequence[str] | None = None) -> None:
    """Run one command and exit with its code.

    Args:
        argv: the words after `vitrail`; None takes them from the process.

    Raises:
        SystemExit: always: 0 done, 1 failed, 2 bad input, 130 interrupted, 143 stopped by SIGTERM.
    """
    settle_environment()
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # a terminal that lacks a sign shows its number
    words = list(sys.argv[1:] if argv is None else argv)
    is_debug = "--debug" in words
    words = [word for word in words if word != "--debug"]
    try:
        app(words, exit_on_error=False, print_error=False)
    except VitrailError as error:
        _say(str(error), is_debug)
        sys.exit(error.exit_code)
    except CycloptsError as error:
        _say(" ".join(str(error).split()) + " (see --help)", is_debug)
        sys.exit(2)
    except KeyboardInterrupt:
        _say("interrupted; run the same command again to go on from what is done", is_debug)
        sys.exit(INTERRUPTED)
    except BrokenPipeError:
        sys.exit(1)  # the reader left, as `head` does
    except OSError as error:  # the help on a full disk; what commands write has its own words
        if error.errno != errno.ENOSPC:
            raise
        sys.stdout = None  # or Python writes again what is left, when it ends
        _say(f"{error.filename or 'standard output'}: the disk is full; free some space and run again", is_debug)
        sys.exit(1)
    sys.exit(0)


def _say(message: str, is_debug: bool) -> None:
    if is_debug:
        traceback.print_exc()
    line = message.replace("\n", " ").replace("[", r"\[")
    Console(stderr=True, highlight=False, soft_wrap=True, emoji=False).print(f"[bold red]vitrail:[/bold red] {line}")
