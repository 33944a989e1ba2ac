"""Attacks on the server and the conversation, each of which once succeeded."""

import asyncio
import io
import json
import shutil
import threading
from collections.abc import Callable, Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any

import httpx
import pytest
from rich.console import Console

from tests.serve.conftest import LENGTH, Server, sse
from vitrail.api import LoadedModel, load
from vitrail.cli.chatting import Conversation, Terminal
from vitrail.cli.main import main
from vitrail.errors import ArtifactError, ConfigError, RunFailed
from vitrail.generate import Sampling
from vitrail.serve import create_app, listen, own_names
from vitrail.serve.engine import Engine, Finished, Job, Stopping
from vitrail.serve.errors import as_api_error
from vitrail.steer import Steer, SteerPlan

COMPLETIONS = "/v1/completions"


@pytest.fixture
def http(server: Server) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=server.url, timeout=120) as client:
        yield client


@pytest.fixture(scope="module")
def model(world: Path) -> LoadedModel:
    return load(world / "model", device="cpu")


def refusal(http: httpx.Client, body: str | dict[str, Any]) -> dict[str, Any]:
    content = body if isinstance(body, str) else json.dumps(body)
    answer = http.post(COMPLETIONS, content=content, headers={"Content-Type": "application/json"})
    assert answer.status_code == 400, answer.text
    return dict(answer.json()["error"])


# What is behind the end


def test_nothing_behind_an_end_mark_is_text(http: httpx.Client, server: Server) -> None:
    """A block fills in any order: words behind an end mark were shown where they had been filled in before it."""
    num_behind = 0
    wanted = {"prompt": "", "max_tokens": 100, "temperature": 2.0, "tokens_per_step": 4, "n": 16, "commits": True}
    for seed in (0, 100, 200):
        whole = http.post(COMPLETIONS, json=wanted | {"seed": seed}).json()["choices"]
        streamed = sse(http.post(COMPLETIONS, json=wanted | {"seed": seed, "stream": True}).text)
        texts = [""] * 16
        for choice in (choice for event in streamed for choice in event["choices"]):  # type: ignore[attr-defined]
            texts[choice["index"]] += choice["text"]
        for choice in whole:
            extras = choice["vitrail"]
            assert choice["text"] == texts[choice["index"]] == server.model.tokenizer.decode(extras["token_ids"])
            is_ended = extras["token_ids"][-1] == server.model.tokenizer.eos_id
            assert choice["finish_reason"] == ("stop" if is_ended else "length")
            last = max(pos for commit in extras["commits"] for pos in commit["positions"])
            num_behind += last >= len(extras["token_ids"])
    assert num_behind, "no answer had words behind its end: the draws show nothing"


def test_a_conversation_shows_what_it_keeps(model: LoadedModel) -> None:
    """The same at the terminal: what was shown was more than the turn that the model read next."""
    ends = tuple(range(20, 60))
    sampling = Sampling(max_new_tokens=40, temperature=2.0, tokens_per_step=4, stop_ids=ends)
    num_behind = 0
    for seed in range(6):
        terminal, talk, shown, _ = at_terminal(model, sampling.model_copy(update={"seed": seed}))
        terminal.take("the river")
        assert shown() == talk.turns[-1]["text"] + "\n"
        assert talk.last is not None
        trace = talk.last.trace
        num_behind += max(pos for commit in trace.commits for pos in commit.positions) >= len(
            trace.prompt_ids + trace.token_ids
        )
    assert num_behind, "no answer had words behind its end: the draws show nothing"


# Requests that hurt others


@pytest.mark.parametrize(
    "steer", ["#1=1e308", "#1=-1e38", "rivers=-101", [{"concept": 1}, {"concept": 1, "off": True}]]
)
def test_steering_beyond_all_measure(http: httpx.Client, steer: Any) -> None:
    """Strengths written as text had no limit; the numbers overflowed, and every answer of the batch failed."""
    assert refusal(http, {"prompt": "a", "steer": steer})["param"] == "steer"


@pytest.mark.parametrize(
    ("body", "part"),
    [
        ({"prompt": "a", "metadata": dict.fromkeys(map(str, range(60_000)), 1)}, "60000 keys"),
        ({"prompt": [["x"]] * 100_000}, "prompt[0][0]"),
        ({"prompt": [[5]] * 150_000}, "4096"),
        ({"prompt": ["a" * 60_000] * 16}, "960000 characters"),
        ('{"prompt": "a", "seed": 1, "seed": 2}', '"seed" twice'),
    ],
)
def test_bodies_that_took_seconds_to_refuse(http: httpx.Client, body: Any, part: str) -> None:
    """Every fault of a long list was written down, and every prompt read: all streams stood still meanwhile."""
    if isinstance(body, dict):
        body = json.dumps(body, separators=(",", ":"))
    assert part in refusal(http, body)["message"]


class Slow(LoadedModel):
    """A model whose concepts take long to measure, as those of a large model do."""

    def __init__(self, model: LoadedModel) -> None:
        super().__init__(**{part.name: getattr(model, part.name) for part in fields(model)})
        self.__dict__["begun"], self.__dict__["goes_on"] = [], threading.Event()

    def plan(self, steer: Any) -> SteerPlan | None:
        self.__dict__["begun"].append(list(steer))
        assert self.__dict__["goes_on"].wait(20)
        return None


def test_concepts_of_clients_that_left_are_not_measured(model: LoadedModel) -> None:
    """Measuring for clients that were gone kept a steered request waiting for 45 s."""
    slow = Slow(model)
    engine = Engine(slow)
    job = Job((1, 9), Sampling(max_new_tokens=1), tuple(Steer(number, head="discovered") for number in range(5)))

    async def crowd() -> None:
        asked = [asyncio.create_task(engine.submit(job)) for _ in range(4)]
        while not slow.__dict__["begun"]:
            await asyncio.sleep(0.01)
        for task in asked:
            task.cancel()
        await asyncio.gather(*asked, return_exceptions=True)
        slow.__dict__["goes_on"].set()
        await engine.submit(Job((1, 9), Sampling(max_new_tokens=1), (Steer(7),)))

    asyncio.run(crowd())
    engine.close()
    assert slow.__dict__["begun"] == [[Steer(0, head="discovered")], [Steer(7)], [Steer(7)]]


# The end of the engine


def test_explanations_end_when_the_engine_does(model: LoadedModel) -> None:
    """Those that waited were cancelled without a word, and their streams stayed open until they were cut off."""
    engine, goes_on = Engine(model), threading.Event()
    engine.start()

    async def ask() -> list[bool | BaseException]:
        works: list[Callable[[], bool]] = [lambda: goes_on.wait(20), lambda: True, lambda: True]
        asked = [asyncio.create_task(engine.run(work)) for work in works]
        await asyncio.sleep(0.05)
        await asyncio.to_thread(engine.close)
        return await asyncio.wait_for(asyncio.gather(*asked, return_exceptions=True), 5)

    try:
        assert all(isinstance(end, Stopping) for end in asyncio.run(ask()))
        with pytest.raises(Stopping):
            asyncio.run(engine.run(lambda: True))
    finally:
        goes_on.set()


def test_a_reader_that_leaves_at_the_very_end(model: LoadedModel) -> None:
    """It emptied the answer under the engine's hands, whose thread ended by an IndexError: the server hung."""
    engine = Engine(model)
    engine.start()

    async def leave() -> None:
        ticket = await engine.submit(Job((1, 9), Sampling(max_new_tokens=2)))
        *_, end = [event async for event in ticket]
        ticket.cancel()
        ticket.finish("")
        again = await ticket._events.get()
        assert isinstance(end, Finished)
        assert isinstance(again, Finished)
        assert again.trace.token_ids == end.trace.token_ids

    asyncio.run(leave())
    engine.close()


# Files of the server


def test_a_model_directory_that_disappears(world: Path, model: LoadedModel, tmp_path: Path) -> None:
    """The manifest was read when the first answer ended, in the engine's thread, which did not survive a fault."""
    shutil.copytree(world / "model", tmp_path / "model")
    app = create_app(load(tmp_path / "model", device="cpu"))
    bare = load(tmp_path / "model", device="cpu")
    shutil.rmtree(tmp_path / "model")
    engine: Engine = app.state.service.engine
    engine.start()

    async def write() -> str:
        events = [event async for event in await engine.submit(Job((1, 9), Sampling(max_new_tokens=2), (Steer(1),)))]
        assert isinstance(events[-1], Finished)
        return events[-1].trace.model_id

    assert asyncio.run(write()) == model.model_id
    engine.close()
    with pytest.raises(ArtifactError, match="no such directory"):
        create_app(bare)


def test_damage_of_the_server_is_no_fault_of_the_client() -> None:
    """A corpus that is gone was answered with 400, and with the paths of the server."""
    assert as_api_error(ArtifactError("/secret: damaged"), 1) is None
    assert as_api_error(RunFailed("/secret: disk is full"), 1) is None
    assert as_api_error(ConfigError("no such value"), 1) is not None


# Addresses


def test_head_is_get_without_a_body(http: httpx.Client) -> None:
    for path in ("/health", "/", "/v1/models"):
        asked = http.head(path)
        assert (asked.status_code, asked.content) == (200, b"")
    assert http.head(COMPLETIONS).status_code == 405


@pytest.mark.parametrize("host", ["127.0.0.1", "127.0.0.2", "localhost"])
def test_a_loopback_server_answers_to_its_own_name(host: str) -> None:
    """At 127.0.0.2 it refused the very address that it had printed."""
    with listen(host, 0) as listener:
        assert {host, "localhost", "[::1]"} <= set(own_names(host, listener))


def test_a_public_server_answers_to_all_names() -> None:
    with listen("0.0.0.0", 0) as listener:
        assert own_names("0.0.0.0", listener) == ()


def test_prompts_are_counted(http: httpx.Client) -> None:
    """The count stood there and stayed at zero."""

    def count() -> float:
        (line,) = (
            line for line in http.get("/metrics").text.splitlines() if line.startswith("vitrail_prompt_tokens_t")
        )
        return float(line.split()[1])

    before = count()
    used = http.post(COMPLETIONS, json={"prompt": "the river", "max_tokens": 1}).json()["usage"]["prompt_tokens"]
    assert count() == before + used


# The commands


def test_a_report_that_is_not_there(world: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The page offered a report that answered 404."""
    with pytest.raises(SystemExit, match="2"):
        main(["serve", str(world / "model"), "--report", "nowhere.html"])
    assert "nowhere.html" in capsys.readouterr().err


Shown = Callable[[], str]


def at_terminal(model: LoadedModel, sampling: Sampling) -> tuple[Terminal, Conversation, Shown, Shown]:
    out, notes = io.StringIO(), io.StringIO()
    talk = Conversation(model, sampling)
    terminal = Terminal(talk, None, Console(file=out), Console(file=notes, width=200))
    return terminal, talk, out.getvalue, notes.getvalue


def test_saving_spares_files_of_others(model: LoadedModel, tmp_path: Path) -> None:
    terminal, _, _, notes = at_terminal(model, Sampling(max_new_tokens=4))
    other, own = tmp_path / "thesis.txt", tmp_path / "talk.json"
    other.write_text("years of work")
    terminal.take(f"/save {other}")
    assert "exists already" in notes()
    assert other.read_text() == "years of work"
    terminal.take(f"/save {own}")
    terminal.take("the river")
    terminal.take(f"/save\t{own}")
    assert len(json.loads(own.read_text())["turns"]) == 2


@pytest.mark.parametrize(
    ("name", "part"),
    [("~nobody-of-that-name/talk.json", "no name"), ("a\0b", "no name"), ("x" * 5000, "cannot be written")],
)
def test_saving_under_no_name(model: LoadedModel, name: str, part: str) -> None:
    """They ended the conversation with a traceback."""
    terminal, _, _, notes = at_terminal(model, Sampling(max_new_tokens=4))
    terminal.take(f"/save {name}")
    assert part in notes()


def test_answers_as_long_as_the_context(model: LoadedModel) -> None:
    """Every line was answered with `room for -44; say less`."""
    with pytest.raises(ConfigError, match="max-new-tokens"):
        Conversation(model, Sampling(max_new_tokens=LENGTH))
