"""The `vitrail` command: its table of commands, and how faults become one line and an exit code.

Exit codes: 0 done, 1 failed, 2 bad input, 130 interrupted. A user's mistake gets one line; `--debug`
adds the traceback. Commands are named by string, so that `vitrail --help` loads no tensor library.
"""

import os
import sys
import traceback
from collections.abc import Sequence
from importlib.metadata import version

from cyclopts import App, CycloptsError
from rich.console import Console

from vitrail.errors import VitrailError

app = App(
    name="vitrail",
    help="Language models whose every word is a sum of named concepts. Start with: `vitrail demo`",
    version=version("vitrail"),
    help_format="markdown",
)

_COMMANDS = {
    "vitrail.cli.demo:demo": "The whole path on this machine, with a report: `vitrail demo`",
    "vitrail.cli.data:pack": "Token shards with aligned labels: `vitrail pack ANNOTATED --out DIR`",
    "vitrail.cli.data:info": "What a directory holds and what it was made from: `vitrail info runs/demo/model`",
    "vitrail.cli.model:train": "Train or continue a model: `vitrail train configs/small.yaml --packed DIR --out DIR`",
    "vitrail.cli.model:generate": 'Continue a prompt: `vitrail generate MODEL "The economy" --steer "exports=+1.0"`',
    "vitrail.cli.model:explain": "Inputs, concepts, training passages: `vitrail explain MODEL PROMPT --index DIR`",
    "vitrail.cli.model:metrics": "Held-out figures of a model: `vitrail metrics MODEL PACKED`",
}
for _target, _help in _COMMANDS.items():
    app.command(_target, help=_help)

_corpus = App(name="corpus", help="Raw text in: `vitrail corpus import texts/ --out runs/corpus`")
_corpus.command("vitrail.cli.data:import_corpus", name="import")
_atlas = App(name="atlas", help="Concept libraries: `vitrail atlas build runs/corpus --out runs/atlas`")
_atlas.command("vitrail.cli.atlas:build")
_atlas.command("vitrail.cli.atlas:annotate")
_atlas.command("vitrail.cli.atlas:search")
_atlas.command("vitrail.cli.atlas:show")
_index = App(name="index", help="Training passages by meaning: `vitrail index query MODEL TEXT --index DIR`")
_index.command("vitrail.cli.index:build")
_index.command("vitrail.cli.index:query")
_steer = App(name="steer", help="Strengths in calibrated units: `vitrail steer calibrate MODEL --packed DIR`")
_steer.command("vitrail.cli.model:calibrate")
for _group in (_corpus, _atlas, _index, _steer):
    app.command(_group)

INTERRUPTED = 130


def settle_environment() -> None:
    """Set what OpenMP and tokenizers read once, when they are first loaded.

    Idle OpenMP threads that spin slow a busy two-core machine down several times; passive waiting
    mends it. A user's own values win.
    """
    for name, value in (
        ("OMP_WAIT_POLICY", "PASSIVE"),
        ("GOMP_SPINCOUNT", "0"),
        ("TOKENIZERS_PARALLELISM", "false"),
    ):
        os.environ.setdefault(name, value)


def main(argv: Sequence[str] | None = None) -> None:
    """Run one command and exit with its code.

    Args:
        argv: the words after `vitrail`; None takes them from the process.

    Raises:
        SystemExit: always: 0 done, 1 failed, 2 bad input, 130 interrupted.
    """
    settle_environment()
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
        sys.stdout = None  # the reader left; Python would flush into nothing
        sys.exit(1)
    sys.exit(0)


def _say(message: str, is_debug: bool) -> None:
    if is_debug:
        traceback.print_exc()
    Console(stderr=True, highlight=False, soft_wrap=True).print(f"[bold red]vitrail:[/bold red] {_escaped(message)}")


def _escaped(message: str) -> str:
    return message.replace("[", r"\[")
