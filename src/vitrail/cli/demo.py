"""`vitrail demo`."""

import sys
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter, validators

from vitrail.cli.output import Json, SeedFlag, emit


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
        serve: on a terminal, serve the model and its page at an address of this machine until Ctrl-C.
        json: print `summary.json` on stdout.
    """
    from vitrail.demo import closing_text, run_tour  # all there is: seconds, which a misspelt flag need not wait for

    summary = run_tour(out, minutes=minutes, corpus=corpus, seed=seed)
    model, index = out / "model", out / "index"
    files = f"report   {out / 'report.html'}\nfigures  {out / 'summary.json'}"
    is_watched = serve and not json and sys.stdout.isatty()
    ask = "" if is_watched else f"\nask it   vitrail serve {model} --index {index}"
    emit(summary, json, closing_text(out, summary) + "\n" + files + ask)
    if is_watched:
        from vitrail.cli.serve import serve as serve_model

        serve_model(model, index=index, port=0)
