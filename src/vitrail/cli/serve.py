"""`vitrail serve`, `vitrail chat`."""

import importlib
import os
import sys
from contextlib import suppress
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter, validators
from rich.console import Console

from vitrail.api import load
from vitrail.cli.chatting import Conversation, Terminal
from vitrail.cli.output import Count, Device, Dtype, Json, SeedFlag, Whole, answering, emit, progress_console
from vitrail.errors import ConfigError
from vitrail.explain import Index
from vitrail.generate import Sampling
from vitrail.serve import ServeSettings, create_app, listen, own_names
from vitrail.serve import serve as run_server

Port = Annotated[Whole, Parameter(validator=validators.Number(gte=0, lte=65535))]
Steering = Annotated[str, Parameter(help='such as "exports=+1.0; religions=off"')]


def serve(
    model: Path,
    *,
    index: Path | None = None,
    host: str = "127.0.0.1",
    port: Port = 8000,
    name: str = "model",
    report: Path | None = None,
    max_batch: Count = 16,
    device: Device = "auto",
    dtype: Dtype = "auto",
    json: Json = False,
) -> None:
    """Serve a model: a page to explore it, and OpenAI's API with explanations and steering.

    Example: `vitrail serve runs/demo/model --index runs/demo/index`

    Ends at Ctrl-C. There is no authentication: on another host than this machine's own, anyone who can reach
    the port can use it.

    Args:
        model: a model directory.
        index: training-data index of this model.
        host: address to listen on.
        port: port to listen on; 0 takes a free one.
        name: what clients call the model.
        report: page of figures to show beside it; the demo's is found by itself.
        max_batch: answers written together.
        device: where to run.
        dtype: of the weights.
        json: print one JSON object with the address on stdout once the server listens.
    """
    if report is not None and not report.is_file():
        raise ConfigError(f"{report}: no such file; name a page for --report, or leave it out")
    listener = listen(host, port)
    names = own_names(host, listener)
    loaded = load(model, device=device, dtype=dtype, needs_text=True)
    settings = ServeSettings(max_batch=max_batch, allowed_hosts=names)
    opened = None if index is None else Index.open(index)
    app = create_app(loaded, index=opened, name=name, report=report or _report_beside(model), settings=settings)
    if not names:
        warning = f"warning: {host} can be reached from other machines, and there is no authentication"
        progress_console.print(warning, soft_wrap=True)

    def on_listening(url: str) -> None:
        if json:
            emit({"url": url, "model": name, "model_id": loaded.model_id}, as_json=True, text="")
        progress_console.print(f"look at  {url}  (Ctrl-C ends)", soft_wrap=True)

    run_server(app, listener, on_listening)
    # Python would wait for an explanation that is under way, and nobody is left to read it.
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, AttributeError):
            stream.flush()
    os._exit(0)


def chat(
    model: Path,
    *,
    index: Path | None = None,
    steer: Steering = "",
    temperature: float = 0.7,
    top_p: float | None = None,
    repetition_penalty: float = 1.5,
    max_new_tokens: Count = 64,
    seed: SeedFlag = 0,
    device: Device = "auto",
    dtype: Dtype = "auto",
) -> None:
    """Talk with a model at the terminal; ask it why, and steer it on the way.

    Example: `vitrail chat runs/demo/model --index runs/demo/index`

    `/help` lists what can be done beside talking. Answers are written as they are denoised.

    Args:
        model: a model directory.
        index: training-data index of this model, for `/why`.
        steer: concepts to turn up or down from the beginning.
        temperature: 0 takes the most likely token.
        top_p: nucleus of the sampling; 0.9, where the temperature is not 0.
        repetition_penalty: above 1, tokens already there become less likely.
        max_new_tokens: tokens of an answer, at most.
        seed: of the first answer; each later one takes the next.
        device: where to run.
        dtype: of the weights.
    """
    values = {
        "max_new_tokens": max_new_tokens,
        "temperature": temperature,
        "top_p": (0.9 if temperature else 1.0) if top_p is None else top_p,
        "repetition_penalty": repetition_penalty,
        "seed": seed,
        "allowed_specials": ("eoc", "eos"),
    }
    if sys.stdin is None or sys.stdout is None:
        raise ConfigError("chat needs standard input and standard output; one of them is closed")
    sampling = Sampling.parse(values, where="chat")
    loaded = load(model, device=device, dtype=dtype, needs_text=True)
    opened = None if index is None else Index.open(index)
    if opened is not None:
        opened.require_model(loaded.model_id)
    conversation = Conversation(loaded, sampling)
    conversation.steer(steer)
    with suppress(ImportError):
        importlib.import_module("readline")  # gives input() a history
    out = Console(highlight=False, emoji=False, soft_wrap=not sys.stdout.isatty())
    if sys.stdin.isatty():
        progress_console.print("/help lists what can be done beside talking; Ctrl-D leaves", style="dim")
    with answering(), suppress(KeyboardInterrupt):  # one that comes while nothing is read or written: leave
        Terminal(conversation, opened, out, progress_console).run()


def _report_beside(model: Path) -> Path | None:
    report = model.resolve().parent / "report.html"
    return report if report.is_file() else None
