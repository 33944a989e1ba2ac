"""`vitrail demo`."""

import contextlib
import sys
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter, validators

from vitrail.cli.output import Json, SeedFlag, emit, progress_console
from vitrail.demo import closing_text, report_address, report_server, run_tour


def demo(
    *,
    out: Path = Path("runs/demo"),
    minutes: Annotated[float, Parameter(validator=validators.Number(gte=0.1, lte=100_000))] = 8.0,
    corpus: Path | None = None,
    seed: SeedFlag = 0,
    serve: bool = True,
    json: Json = False,
) -> None:
    """Raw text in, a model that explains and changes its own words out, and a report of it.

    Example: `vitrail demo`, or `vitrail demo --minutes 60 --corpus texts/ --out runs/mine`

    Can be interrupted and run again: finished stages are kept, and the result is the same.

    Args:
        out: directory to make; `report.html` and `summary.json` lie in it at the end.
        minutes: wall clock to aim at on two idle cores; model, data and concept library follow.
        corpus: your own text (file, folder, JSONL, Parquet, or corpus directory), not the embedded one.
        seed: of everything random.
        serve: on a terminal, keep the report at an address of this machine until Ctrl-C.
        json: print `summary.json` on stdout.
    """
    summary = run_tour(out, minutes=minutes, corpus=corpus, seed=seed)
    files = f"report   {out / 'report.html'}\nfigures  {out / 'summary.json'}"
    emit(summary, json, closing_text(out, summary) + "\n" + files)
    if serve and not json and sys.stdout.isatty():
        _serve(out)


def _serve(out: Path) -> None:
    with report_server(out) as server:
        progress_console.print(f"look at  {report_address(server)}  (Ctrl-C ends)")
        with contextlib.suppress(KeyboardInterrupt):
            server.serve_forever()
