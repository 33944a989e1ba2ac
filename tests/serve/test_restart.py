"""A server that dies, stops or cannot start: clients learn of it, and the same request gives the same answer again."""

import json
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.serve.conftest import Server, free_port, sse
from vitrail.api import load

REQUEST: dict[str, Any] = {"prompt": "the river", "max_tokens": 100, "temperature": 0.9, "seed": 11, "stream": True}


@pytest.fixture(scope="module")
def mortal(world: Path) -> Iterator[Server]:
    running = Server(world, load(world / "model", device="cpu"), free_port())
    running.start()
    yield running
    if running.process is not None:
        running.stop()


def text_of(events: list[dict[str, Any]]) -> str:
    return "".join(choice["text"] for event in events for choice in event["choices"])


def whole(url: str) -> str:
    answer = httpx.post(f"{url}/v1/completions", json=REQUEST, timeout=60)
    answer.raise_for_status()
    return text_of(sse(answer.text))


def read_and_kill(server: Server, received: list[str]) -> None:
    """Read a stream; kill the server at its first event."""
    with httpx.stream("POST", f"{server.url}/v1/completions", json=REQUEST, timeout=60) as stream:
        for line in stream.iter_lines():
            assert line != "data: [DONE]", "the answer was over before the server was killed"
            if line.startswith("data: "):
                received.append(text_of([json.loads(line.removeprefix("data: "))]))
                if server.process is not None:
                    server.stop(signal.SIGKILL)


def test_killed_under_a_streaming_client_and_restarted(mortal: Server) -> None:
    wanted, received = whole(mortal.url), list[str]()
    with pytest.raises(httpx.TransportError):
        read_and_kill(mortal, received)
    assert wanted.startswith("".join(received))
    mortal.start()
    assert whole(mortal.url) == wanted


def test_a_polite_stop_ends_open_streams_soon(mortal: Server) -> None:
    ends: list[str] = []

    def read() -> None:
        try:
            answer = httpx.post(f"{mortal.url}/v1/completions", json=REQUEST | {"n": 4}, timeout=60)
            ends.append(answer.text)
        except httpx.TransportError as error:
            ends.append(type(error).__name__)

    readers = [threading.Thread(target=read) for _ in range(12)]
    for reader in readers:
        reader.start()
    deadline = time.monotonic() + 30
    while "vitrail_answers_active 0" in (text := httpx.get(f"{mortal.url}/metrics").text):
        assert time.monotonic() < deadline, f"nothing is being written: {text[-500:]}"
    started = time.monotonic()
    assert mortal.stop(signal.SIGTERM) == 0
    assert time.monotonic() - started < 8
    for reader in readers:
        reader.join(20)
    assert len(ends) == 12, "a client was left hanging"
    mortal.start()


def serve(*words: str) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-c", "from vitrail.cli.main import main; main()", "serve", *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=60)


def test_a_model_that_is_not_there_is_one_line(tmp_path: Path) -> None:
    done = serve(str(tmp_path / "none"))
    assert done.returncode == 2
    (line,) = done.stderr.strip().splitlines()
    assert "none" in line
