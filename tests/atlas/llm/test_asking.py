"""Questions over real HTTP to a server that does all that servers do."""

import json
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

from tests.atlas.llm.chat_server import Act, ChatServer, serving
from vitrail.atlas.llm import Asker, Endpoint, Journal, LanguageModel, Messages, Verdict, asking
from vitrail.errors import ConfigError, RunFailed


class Echo(BaseModel):
    said: str


def echo(question: str, number: int) -> Act:
    return Act(json.dumps({"said": question}))


@pytest.fixture
def server() -> Iterator[ChatServer]:
    with serving(echo) as running:
        yield running


def questions(count: int) -> list[Messages]:
    return [({"role": "system", "content": "Echo."}, {"role": "user", "content": f"number {i}"}) for i in range(count)]


def num_kept(folder: Path) -> int:
    return len((folder / "answers.jsonl").read_bytes().splitlines())


class Room:
    """An asker with a journal of its own, and what it said."""

    def __init__(self, folder: Path, url: str, model: dict[str, Any] | None = None, **endpoint: Any):
        self.said: list[str] = []
        self.journal = Journal(folder / "answers.jsonl")
        settings = Endpoint.parse({"url": url, "max_retries": 0, "timeout_s": 5, "max_fault_share": 1} | endpoint)
        self.asker = Asker(
            LanguageModel.parse({"model": "m"} | (model or {})), settings, self.journal, self.said.append
        )

    def ask(self, count: int) -> list[str | None]:
        answers = self.asker.ask(questions(count), Echo, "numbers")
        return [answer.said if answer else None for answer in answers]


def test_answers_come_in_the_order_of_the_questions(server: ChatServer, tmp_path: Path) -> None:
    server.script = lambda question, number: Act(json.dumps({"said": question}), delay_s=0.02 * (number % 3))
    room = Room(tmp_path, server.url, max_concurrency=7)
    assert room.ask(23) == [f"number {i}" for i in range(23)]
    assert room.asker.tally.counts() == {"answered": 23}
    assert 1 < server.most_at_once <= 7


def test_equal_questions_are_put_once(server: ChatServer, tmp_path: Path) -> None:
    room = Room(tmp_path, server.url)
    answers = room.asker.ask(questions(3) * 5, Echo, "numbers")
    assert [answer and answer.said for answer in answers] == [f"number {i}" for i in range(3)] * 5
    assert len(server.requests) == 3


def test_request_carries_what_decides_the_answer(server: ChatServer, tmp_path: Path) -> None:
    Room(tmp_path, server.url, {"temperature": 0.5, "seed": 11, "max_tokens": 77, "extra": {"top_k": 3}}).ask(1)
    (sent,) = server.requests
    assert {name: sent[name] for name in ("model", "temperature", "seed", "max_tokens", "top_k")} == {
        "model": "m",
        "temperature": 0.5,
        "seed": 11,
        "max_tokens": 77,
        "top_k": 3,
    }
    schema = sent["response_format"]["json_schema"]
    assert schema["strict"] is True
    assert schema["schema"] == {
        "type": "object",
        "properties": {"said": {"type": "string"}},
        "required": ["said"],
        "additionalProperties": False,
    }


def test_what_is_none_is_not_sent(server: ChatServer, tmp_path: Path) -> None:
    Room(tmp_path, server.url, {"temperature": None, "seed": None, "structured": "none"}).ask(1)
    (sent,) = server.requests
    assert sorted(sent) == ["max_tokens", "messages", "model"]


def test_json_object_is_asked_for(server: ChatServer, tmp_path: Path) -> None:
    Room(tmp_path, server.url, {"structured": "json_object"}).ask(1)
    assert server.requests[0]["response_format"] == {"type": "json_object"}


def test_key_comes_from_the_variable_that_is_named(server: ChatServer, tmp_path: Path) -> None:
    endpoint = Endpoint(url=server.url, api_key_env="TEST_KEY").with_key({"TEST_KEY": "secret-1"})
    with Journal(tmp_path / "a.jsonl") as journal:
        Asker(LanguageModel(model="m"), endpoint, journal).ask(questions(1), Echo, "numbers")
    assert server.keys == ["Bearer secret-1"]
    assert "secret-1" not in (tmp_path / "a.jsonl").read_text() + repr(endpoint) + str(endpoint.model_dump())
    with pytest.raises(ConfigError, match="TEST_KEY is not set"):
        Endpoint(url=server.url, api_key_env="TEST_KEY").with_key({})


def test_second_run_asks_nothing(server: ChatServer, tmp_path: Path) -> None:
    first = Room(tmp_path, server.url).ask(9)
    again = Room(tmp_path, "http://127.0.0.1:9/v1")
    assert again.ask(9) == first
    assert (again.asker.tally.requests, again.asker.tally.stored) == (0, 9)
    assert len(server.requests) == 9


@pytest.mark.parametrize(
    "change", [{"model": "other"}, {"temperature": 1.0}, {"seed": 1}, {"max_tokens": 9}, {"structured": "none"}]
)
def test_another_model_is_asked_anew(server: ChatServer, tmp_path: Path, change: dict[str, Any]) -> None:
    Room(tmp_path, server.url).ask(2)
    Room(tmp_path, server.url, change).ask(2)
    assert len(server.requests) == 4


def test_full_server_is_waited_for(server: ChatServer, tmp_path: Path) -> None:
    """A 429 with `Retry-After` holds the request back for so long, then it succeeds."""
    server.script = lambda q, n: Act(status=429, headers={"Retry-After": "0.6"}) if n == 0 else echo(q, n)
    room = Room(tmp_path, server.url, max_retries=1)
    assert room.ask(1) == ["number 0"]
    assert server.times[1] - server.times[0] >= 0.6
    assert room.asker.tally.counts() == {"answered": 1}


def test_broken_server_is_asked_again(server: ChatServer, tmp_path: Path) -> None:
    server.script = lambda q, n: [Act(status=503), Act(hangs_up=True)][n] if n < 2 else echo(q, n)
    assert Room(tmp_path, server.url, max_retries=2).ask(1) == ["number 0"]
    assert len(server.requests) == 3


@pytest.mark.parametrize(
    ("act", "verdict"),
    [
        (Act(""), Verdict.empty),
        (Act("   \n"), Verdict.empty),
        (Act('{"said": ""}'), Verdict.empty),
        (Act("I am a teapot"), Verdict.malformed),
        (Act('{"said": 7}'), Verdict.malformed),
        (Act('{"other": "x"}'), Verdict.malformed),
        (Act('["x"]'), Verdict.malformed),
        (Act('{"said": "\\ud83d"}'), Verdict.malformed),
        (Act('{"said": ' + "9" * 5000 + "}"), Verdict.malformed),
        (Act('{"said": "x'), Verdict.malformed),
        (Act("[" * 100_000 + "{}"), Verdict.malformed),
        (Act('{"said": "cut off', finish="length"), Verdict.truncated),
        (Act("", finish="length"), Verdict.truncated),
        (Act('{"said": "x"}', finish="content_filter"), Verdict.refused),
        (Act("", refusal="I cannot."), Verdict.refused),
        (Act("too long", status=400), Verdict.rejected),
        (Act("no such format", status=422), Verdict.rejected),
        (Act(status=500), Verdict.failed),
        (Act(body=b"not json at all"), Verdict.failed),
        (Act(body=b'{"choices": []}'), Verdict.failed),
        (Act(body=b'{"choices": [{"message": null}]}'), Verdict.empty),
        (Act(body=b"{}"), Verdict.failed),
        (Act(body=b"[1]"), Verdict.failed),
        (Act(hangs_up=True), Verdict.failed),
        (Act(delay_s=5), Verdict.failed),
    ],
    ids=str,
)
def test_every_fault_is_counted_by_kind(server: ChatServer, tmp_path: Path, act: Act, verdict: Verdict) -> None:
    """One question of four meets the fault; the others are answered."""
    server.script = lambda q, n: act if q == "number 2" else echo(q, n)
    room = Room(tmp_path, server.url, timeout_s=2.5)
    assert room.ask(4) == ["number 0", "number 1", None, "number 3"]
    assert room.asker.tally.counts() == {"answered": 3, verdict.value: 1}
    assert f"1 {verdict.value}" in room.said[-1]


@pytest.mark.parametrize(
    "text",
    [
        '```json\n{"said": "x"}\n```',
        'Sure! {"said": "x"} Done.',
        '<think>{"said": 1}</think>{"said": "x"}',
        'They want {"said": …}, so {x}.</think>{"said": "x"}',
        '<think>one</think>two</think>{"said": "x"}<think>is it {right}?',
        '{"said": "x", "more": 1}',
    ],
)
def test_wrapped_answers_are_unwrapped(server: ChatServer, tmp_path: Path, text: str) -> None:
    server.script = lambda q, n: Act(text)
    assert Room(tmp_path, server.url).ask(1) == ["x"]


def test_misfit_is_asked_again_with_another_seed(server: ChatServer, tmp_path: Path) -> None:
    server.script = lambda q, n: Act("nonsense") if n == 0 else echo(q, n)
    room = Room(tmp_path, server.url, {"attempts": 3})
    assert room.ask(1) == ["number 0"]
    assert [sent["seed"] for sent in server.requests] == [0, 1]
    assert room.asker.tally.counts() == {"answered": 1}
    again = Room(tmp_path, server.url, {"attempts": 3})
    assert again.ask(1) == ["number 0"]
    assert len(server.requests) == 2, "both attempts stand in the journal"


def test_faults_are_served_again_from_the_journal(server: ChatServer, tmp_path: Path) -> None:
    """A model that answers garbage is not asked again by a rebuild: the same atlas comes out."""
    server.script = lambda q, n: Act("garbage")
    first, second = Room(tmp_path, server.url), Room(tmp_path, server.url)
    assert first.ask(5) == [None] * 5
    assert Room(tmp_path, server.url).ask(5) == [None] * 5
    assert len(server.requests) == 10, "two attempts each, once"
    assert second.asker.tally.counts() == {}


@pytest.mark.parametrize("status", [401, 403, 404])
def test_hopeless_server_stops_at_once(server: ChatServer, tmp_path: Path, status: int) -> None:
    server.script = lambda q, n: Act("no such model", status=status)
    with pytest.raises(ConfigError, match=f"the server answers {status} .*no such model.*check the address"):
        Room(tmp_path, server.url, max_retries=3, max_concurrency=2).ask(40)
    assert len(server.requests) <= 2


def test_no_server_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(RunFailed, match=r"no reply to 5 questions in a row .*run the same command again"):
        Room(tmp_path, "http://127.0.0.1:9/v1").ask(40)


def test_server_that_dies_half_way(server: ChatServer, tmp_path: Path) -> None:
    """What was answered is kept; when the server is back, the rest is asked, and nothing twice."""
    server.script = lambda q, n: Act(hangs_up=True) if n >= 17 else echo(q, n)
    with pytest.raises(RunFailed, match=r"(\d+) of 60 are answered and kept in .*answers.jsonl; run the same command"):
        Room(tmp_path, server.url, max_concurrency=3).ask(60)
    kept = num_kept(tmp_path)
    assert 17 - 3 <= kept <= 17, "at most what was in flight is lost"
    server.script = echo
    room = Room(tmp_path, server.url, api_key="second")
    assert room.ask(60) == [f"number {i}" for i in range(60)]
    # Told apart by their key: one in flight when the first run ended may be counted only now.
    assert server.keys.count("Bearer second") == 60 - kept


def test_killed_run_is_gone_on_with(server: ChatServer, tmp_path: Path) -> None:
    """kill -9 in the midst: the next run asks the rest, and ends as an undisturbed one."""
    server.script = lambda q, n: Act(echo(q, n).text, delay_s=0.02)
    code = (
        "import sys\nfrom pathlib import Path\nfrom tests.atlas.llm.test_asking import Room\n"
        "Room(Path(sys.argv[1]), sys.argv[2], max_concurrency=4).ask(300)\n"
    )
    process = subprocess.Popen([sys.executable, "-c", code, str(tmp_path), server.url])
    while len(server.requests) < 40:
        assert process.poll() is None
        time.sleep(0.01)
    process.kill()
    process.wait()
    kept, before = num_kept(tmp_path), len(server.requests)
    assert before - 4 <= kept <= before < 300
    room = Room(tmp_path, server.url, api_key="second")
    assert room.ask(300) == [f"number {i}" for i in range(300)]
    assert server.keys.count("Bearer second") == 300 - kept


def test_too_many_faults_stop_the_run_midway(server: ChatServer, tmp_path: Path) -> None:
    server.script = lambda q, n: Act("garbage")
    with pytest.raises(
        RunFailed, match=r'50 of 50 numbers got no usable answer: 50 malformed \(the first: "garbage"\)'
    ):
        Room(tmp_path, server.url, {"attempts": 1}, max_fault_share=0.1, max_concurrency=1).ask(500)
    assert len(server.requests) == 50


def test_what_a_model_said_cannot_write_on_the_terminal(server: ChatServer, tmp_path: Path) -> None:
    server.script = lambda q, n: Act("\x1b[2J\ud83d [/red]\n" + "x" * 9000)
    room = Room(tmp_path, server.url)
    room.ask(1)
    assert '(the first: "?[2J? [/red] xxx' in room.said[-1]
    assert len(room.said[-1]) < 400


def test_few_faults_do_not_stop_a_run(server: ChatServer, tmp_path: Path) -> None:
    server.script = lambda q, n: Act("garbage") if q.endswith("7") else echo(q, n)
    room = Room(tmp_path, server.url, {"attempts": 1}, max_fault_share=0.1)
    assert sum(answer is None for answer in room.ask(100)) == 10


def test_small_run_is_judged_at_its_end(server: ChatServer, tmp_path: Path) -> None:
    server.script = lambda q, n: Act("garbage") if q.endswith("1") else echo(q, n)
    with pytest.raises(RunFailed, match="1 of 4 numbers got no usable answer"):
        Room(tmp_path, server.url, max_fault_share=0.2).ask(4)


def test_estimate_is_said_before_the_run_and_is_about_right(server: ChatServer, tmp_path: Path) -> None:
    server.script = lambda q, n: Act(echo(q, n).text, delay_s=0.05)
    room = Room(tmp_path, server.url, max_concurrency=8, price_in=1.0, price_out=2.0)
    room.ask(208)
    (coming, *_, final) = room.said
    assert "200 requests to come (8 answers are stored)" in coming
    assert "measured on 8 requests" in coming
    spent = room.asker.tally
    told = re.search(r"([\d,]+) tokens in, ([\d,]+) out, cost ([\d.]+), about (\d+) s", coming)
    assert told is not None
    tokens_in, tokens_out, _, wall_s = (float(figure.replace(",", "")) for figure in told.groups())
    assert abs(tokens_in / (spent.tokens_in * 200 / 208) - 1) < 0.1
    assert abs(tokens_out / (spent.tokens_out * 200 / 208) - 1) < 0.1
    assert 1 <= wall_s <= 2 * spent.wall_s + 1, "200 requests of 0.05 s, 8 at once, take 1.25 s at least"
    assert "208 requests" in final


def test_estimate_counts_questions_that_are_put_again(server: ChatServer, tmp_path: Path) -> None:
    """Every first answer is a misfit: twice the requests and the cost, which used to pass the limit by so much."""
    server.script = lambda q, n: echo(q, n) if server.requests[n]["seed"] else Act("nonsense")
    prices: dict[str, Any] = {"price_in": 1e6, "price_out": 1e6, "max_concurrency": 8}
    room = Room(tmp_path / "all", server.url, **prices)
    room.ask(58)
    assert "100 requests to come (8 answers are stored)" in room.said[0]
    spent = room.asker.tally.tokens_in + room.asker.tally.tokens_out
    with pytest.raises(RunFailed, match="the estimated cost of the numbers is"):
        Room(tmp_path / "some", server.url, **prices, max_cost=0.7 * spent).ask(58)


def test_time_left_counts_questions_that_are_put_again(
    server: ChatServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two requests of 0.25 s each: after the first of eight questions 3.5 s are left, and not 1.75."""
    monkeypatch.setattr(asking, "PROGRESS_S", 0.0)
    server.script = lambda q, n: Act("nonsense" if n % 2 == 0 else echo(q, n).text, delay_s=0.25)
    room = Room(tmp_path, server.url, max_concurrency=1)
    room.ask(8)
    told = re.fullmatch(r"numbers: 1 of 8, about (\d+) s left", room.said[0])
    assert told is not None
    assert int(told[1]) >= 3


def test_damaged_lines_of_the_journal_are_told_of(server: ChatServer, tmp_path: Path) -> None:
    Room(tmp_path, server.url).ask(2)
    with (tmp_path / "answers.jsonl").open("a") as stored:
        stored.write("5\n")
    assert "answers.jsonl: damaged lines passed over: 1;" in Room(tmp_path, server.url).said[0]


def test_too_dear_a_run_stops_before_it(server: ChatServer, tmp_path: Path) -> None:
    room = Room(tmp_path, server.url, max_concurrency=2, price_in=1e6, price_out=1e6, max_cost=3.0)
    with pytest.raises(RunFailed, match=r"the estimated cost of the numbers is [\d,.]+, the limit 3.00"):
        room.ask(500)
    assert len(server.requests) == 8, "only the probe was asked"


def test_requests_a_minute_are_kept(server: ChatServer, tmp_path: Path) -> None:
    """Ten a second: nine take 0.8 s. The first may be late itself, so some of that is forgiven."""
    Room(tmp_path, server.url, requests_per_minute=600).ask(9)
    assert max(server.times) - min(server.times) >= 0.6


def test_tokens_a_minute_are_kept(server: ChatServer, tmp_path: Path) -> None:
    """A request reads 3 or 4 tokens and writes 5: at 12,000 a minute 22 a second, once the first told what is usual."""
    Room(tmp_path, server.url, tokens_per_minute=12_000, max_concurrency=1).ask(11)
    assert server.times[-1] - server.times[1] >= 9 * 8 * 60 / 12_000 - 0.02


def test_uncounted_tokens_are_guessed_and_said(server: ChatServer, tmp_path: Path) -> None:
    server.script = lambda q, n: Act(echo(q, n).text, is_counted=False)
    room = Room(tmp_path, server.url, max_concurrency=8)
    room.ask(20)
    assert "tokens (guessed from characters)" in room.said[0]


def test_address_must_be_one() -> None:
    with pytest.raises(ConfigError, match="names and passwords do not belong in an address"):
        Endpoint.parse({"url": "http://user:pw@localhost:8000/v1"}, "endpoint")
    with pytest.raises(ConfigError, match="must begin with http"):
        Endpoint.parse({"url": "localhost:8000"})
