"""The server's own addresses and its manners: explanations, concepts, sources, limits, faults, headers, shutdown."""

import dataclasses
import json
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.serve.conftest import TOPICS, Server, free_port
from vitrail.atlas import AnnotatedCorpus
from vitrail.explain import Document, Index

PROMPT = "the river and the delta"


@pytest.fixture(scope="module")
def http(server: Server) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=server.url, timeout=60) as client:
        yield client


def complete(http: httpx.Client, **fields: Any) -> dict[str, Any]:
    answer = http.post("/v1/completions", json={"prompt": PROMPT, "max_tokens": 8, "seed": 3} | fields)
    assert answer.status_code == 200, answer.text
    return dict(answer.json())


def refusal(answer: httpx.Response, status: int = 400) -> dict[str, Any]:
    """The error of an answer; its message is one line without the program's inside."""
    assert answer.status_code == status, answer.text
    error = answer.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert "\n" not in error["message"]
    assert "Traceback" not in answer.text
    return dict(error)


# Explanations


def test_explanation_by_id(http: httpx.Client, server: Server) -> None:
    answer = complete(http)
    found = http.post("/v1/explain", json={"completion": answer["id"], "num_steps": 4, "top_concepts": 3})
    document = Document.model_validate_json(found.text)
    assert document.text == answer["choices"][0]["text"]
    assert document.model_id == server.model.model_id
    assert document.certificate.passed
    assert len(document.concepts.chunks[0].ranked) == 3
    assert document.sources.chunks[0].hits


def test_explanation_of_a_repeated_request_is_the_same(http: httpx.Client) -> None:
    answer = complete(http, seed=9, n=2)
    by_id = http.post("/v1/explain", json={"completion": answer["id"], "index": 1, "num_steps": 2})
    asked = {"prompt": PROMPT, "max_tokens": 8, "seed": 10, "num_steps": 2}
    repeated = http.post("/v1/explain", json=asked)
    first, second = (Document.model_validate_json(found.text) for found in (by_id, repeated))
    assert [token.id for token in first.tokens] == [token.id for token in second.tokens]
    # The first was written beside another answer, so the last digits of its logits may differ.
    for chunk, other in zip(first.inputs.chunks, second.inputs.chunks, strict=True):
        assert chunk.scores == pytest.approx(other.scores, abs=1e-3)


def test_explanation_of_a_stream(http: httpx.Client) -> None:
    asked = {"prompt": PROMPT, "max_tokens": 5, "seed": 1, "stream": True, "explain": {"num_steps": 2}}
    events = http.post("/v1/completions", json=asked).text
    last = json.loads(events.split("data: ")[-2])
    explained = last["choices"][0]["vitrail"]["explanation"]
    again = http.post("/v1/explain", json={"completion": last["id"], "num_steps": 2})
    assert again.json() == explained


def test_explanation_of_what_is_not_kept(http: httpx.Client) -> None:
    error = refusal(http.post("/v1/explain", json={"completion": "cmpl-none"}), 404)
    assert error["code"] == "completion_gone"
    answer = complete(http)
    assert refusal(http.post("/v1/explain", json={"completion": answer["id"], "index": 1}), 404)["param"] == "index"


@pytest.mark.parametrize(
    ("asked", "param"),
    [
        ({"completion": "cmpl-x", "num_steps": 65}, "num_steps"),
        ({"completion": "cmpl-x", "top_inputs": 51}, "top_inputs"),
        ({"prompt": PROMPT, "n": 2}, "n"),
        ({"prompt": [PROMPT, PROMPT]}, "n"),
        ({"prompt": PROMPT, "stream": True}, "stream"),
        ({"completion": 3}, "completion"),
        ({"complation": "cmpl-x"}, "complation"),
    ],
)
def test_explanations_that_are_refused(http: httpx.Client, asked: dict[str, Any], param: str) -> None:
    assert refusal(http.post("/v1/explain", json=asked))["param"] == param


def test_an_answer_of_end_marks_only_is_explained(server: Server) -> None:
    """It has no chunk; the search for its sources fell over an array without rows."""
    model = server.model
    trace = model.generate(PROMPT, max_new_tokens=1).trace
    eos = model.tokenizer.eos_id
    ended = dataclasses.replace(
        trace, token_ids=(eos,), commits=(dataclasses.replace(trace.commits[0], tokens=(eos,)),)
    )
    why = model.answer(ended).explain(Index.open(server.index))
    assert why.chunks == []
    assert len(why.tokens) == 1


# Concepts and sources


def test_concepts_are_listed_known_first(http: httpx.Client) -> None:
    listed = http.get("/v1/concepts", params={"limit": 200}).json()
    assert listed["total"] == len(listed["data"]) == len(TOPICS) + 23
    assert [card["name"] for card in listed["data"][: len(TOPICS)]] == list(TOPICS)
    assert {card["head"] for card in listed["data"][len(TOPICS) :]} == {"discovered"}
    page = http.get("/v1/concepts", params={"limit": 3, "offset": 9}).json()
    assert page["data"] == listed["data"][9:12]
    discovered = http.get("/v1/concepts", params={"head": "discovered"}).json()
    assert discovered["total"] == 23


def test_concepts_are_found_by_words(http: httpx.Client) -> None:
    found = http.get("/v1/concepts", params={"query": "scale"}).json()
    assert {card["name"] for card in found["data"]} == {"music", "maps"}
    assert http.get("/v1/concepts", params={"query": "rivers"}).json()["data"][0]["name"] == "rivers"
    assert http.get("/v1/concepts", params={"query": "zzz"}).json() == {"object": "list", "total": 0, "data": []}


def test_a_concept_is_opened(http: httpx.Client, server: Server) -> None:
    import torch

    detail = http.get("/v1/concepts/known/2").json()
    assert detail["card"]["name"] == "trade"
    network, tokenizer = server.model.network, server.model.tokenizer
    rows = network.known_head.embedding(slice(0, len(TOPICS))).detach()
    scores = network.transformer.lm_head.weight.detach() @ (rows[2] - rows.mean(0))
    scores[list(tokenizer.special_ids)] = -torch.inf
    assert [token["id"] for token in detail["top_tokens"]] == scores.topk(12).indices.tolist()
    assert detail["top_tokens"][0]["score"] == pytest.approx(float(scores.max()), abs=1e-4)
    assert detail["scale"]["scale"] == pytest.approx(server.model.calibration.known[2].scale)


def test_neighbours_are_the_closest_of_both_heads(http: httpx.Client, server: Server) -> None:
    import torch

    network = server.model.network
    known = network.known_head.embedding(slice(0, len(TOPICS))).detach()
    found = network.unknown_head.embedding(slice(0, 23)).detach()
    rows = torch.cat([known - known.mean(0), found - found.mean(0)])
    rows = rows / rows.norm(dim=1, keepdim=True)
    cosines = rows @ rows[2]
    cosines[2] = -2
    best = cosines.topk(8).indices.tolist()
    expected = [("known", row) if row < len(TOPICS) else ("discovered", row - len(TOPICS)) for row in best]
    neighbours = http.get("/v1/concepts/known/2").json()["neighbours"]
    assert [(near["head"], near["concept_id"]) for near in neighbours] == expected
    assert neighbours[0]["cosine"] == pytest.approx(float(cosines[best[0]]), abs=1e-5)


def test_examples_are_the_best_training_passages(http: httpx.Client, world: Path) -> None:
    scored = sorted(
        (
            (-label.score, chunk.row, chunk)
            for chunk in AnnotatedCorpus.open(world / "annotated").chunks()
            for label in chunk.labels
            if chunk.split == "train" and label.concept_id == 4
        ),
        key=lambda entry: entry[:2],
    )
    examples = http.get("/v1/concepts/known/4").json()["examples"]
    assert [passage["chunk_id"] for passage in examples] == [chunk.chunk_id for *_, chunk in scored[:5]]
    for passage in examples:
        assert all(passage["text"][start:stop] for start, stop in passage["spans"])
        assert passage["license"] == "CC0-1.0"
    assert http.get("/v1/concepts/discovered/4").json()["examples"] == []


@pytest.mark.parametrize("path", ["known/11", "discovered/99999999999999999999", "known/-1", "known/x", "knwn/1"])
def test_concepts_that_do_not_exist(http: httpx.Client, path: str) -> None:
    assert refusal(http.get(f"/v1/concepts/{path}"), 404)["type"] == "not_found_error"


@pytest.mark.parametrize(
    ("params", "param"),
    [
        ({"limit": "201"}, "limit"),
        ({"limit": "0"}, "limit"),
        ({"limit": "x"}, "limit"),
        ({"offset": "-1"}, "offset"),
        ({"head": "knwn"}, "head"),
        ({"query": "a" * 257}, "query"),
        ({"quary": "a"}, "quary"),
    ],
)
def test_searches_that_are_refused(http: httpx.Client, params: dict[str, str], param: str) -> None:
    assert refusal(http.get("/v1/concepts", params=params))["param"] == param


def test_sources_of_a_text(http: httpx.Client, server: Server) -> None:
    answer = http.post("/v1/sources", json={"text": "the judge and the jury", "limit": 3}).json()
    assert answer["note"] == "similarity is not influence"
    hits = server.model.similar("the judge and the jury", Index.open(server.index), 3)
    assert [hit["chunk_id"] for hit in answer["hits"]] == [hit.chunk.chunk_id for hit in hits]
    assert answer["hits"][0]["similarity"] == pytest.approx(hits[0].similarity, abs=1e-4)
    assert answer["hits"][0]["overlap"]["num_tokens"] >= 0


@pytest.mark.parametrize(
    "asked", [{"text": ""}, {"text": "x" * 65_537}, {"text": "word " * 500}, {"text": "x", "limit": 51}, {}]
)
def test_sources_that_are_refused(http: httpx.Client, asked: dict[str, Any]) -> None:
    error = refusal(http.post("/v1/sources", json=asked))
    assert error["param"] == ("limit" if "limit" in asked else "text")


# Limits and malformed requests


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"n": 17}, "n"),
        ({"n": 0}, "n"),
        ({"prompt": ["x"] * 17}, "prompt"),
        ({"prompt": ["x"] * 8, "n": 16}, "n"),
        ({"prompt": "x" * 65_537}, "prompt"),
        ({"prompt": []}, "prompt"),
        ({"prompt": [[]]}, "prompt[0]"),
        ({"prompt": ["x", 1]}, "prompt[1]"),
        ({"prompt": [0]}, "prompt"),
        ({"prompt": [384]}, "prompt"),
        ({"prompt": [1, -1]}, "prompt[1]"),
        ({"prompt": [1.5]}, "prompt"),
        ({"prompt": None}, "prompt"),
        ({"prompt": True}, "prompt"),
        ({"stop": ["x"] * 17}, "stop"),
        ({"stop": ["x"] * 10_000}, "stop"),
        ({"stop": "x" * 257}, "stop"),
        ({"stop": ""}, "stop"),
        ({"stop": 5}, "stop"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": "8"}, "max_tokens"),
        ({"max_tokens": 10**30}, "max_tokens"),
        ({"max_tokens": True}, "max_tokens"),
        ({"temperature": -1}, "temperature"),
        ({"temperature": 2.5}, "temperature"),
        ({"top_p": 0}, "top_p"),
        ({"seed": -1}, "seed"),
        ({"seed": 2**32}, "seed"),
        ({"seed": 1.5}, "seed"),
        ({"logprobs": 6}, "logprobs"),
        ({"stream": "yes"}, "stream"),
        ({"stream_options": {"include_usage": True}}, "stream_options"),
        ({"steer": "rivers"}, "steer"),
        ({"steer": "; ".join(f"#{number % 11}=+1" for number in range(2000))}, "steer"),
        ({"steer": [{"concept": number % 11} for number in range(17)]}, "steer"),
        ({"steer": [{"concept": "rivers", "strength": 1e9}]}, "steer[0].strength"),
        ({"steer": [{"concept": "rivers", "strength": 1, "off": True}]}, "steer[0]"),
        ({"steer": [{"concept": 1, "head": "both"}]}, "steer[0].head"),
        ({"steer": [3]}, "steer[0]"),
        ({"explain": {"num_steps": 65}}, "num_steps"),
        ({"explain": "yes"}, "explain"),
        ({"repetition_penalty": 0}, "repetition_penalty"),
        ({"tokens_per_step": 0}, "tokens_per_step"),
    ],
    ids=lambda value: json.dumps(value)[:40] if isinstance(value, dict) else "",
)
def test_values_that_are_refused(http: httpx.Client, fields: dict[str, Any], param: str) -> None:
    error = refusal(http.post("/v1/completions", json={"prompt": PROMPT} | fields))
    assert error["param"] == param
    assert error["type"] == "invalid_request_error"
    assert len(error["message"]) < 300


@pytest.mark.parametrize(
    ("body", "part"),
    [
        (b"", "no body"),
        (b"{", "not JSON"),
        (b"[]", "object"),
        (b"null", "object, not null"),
        (b'"text"', "object"),
        (b'{"prompt": "\xff"}', "UTF-8"),
        ('{"prompt": "x"}'.encode("utf-16"), "UTF-8"),
        (b'{"prompt": "x", "temperature": NaN}', "NaN"),
        (b'{"prompt": "x", "temperature": Infinity}', "Infinity"),
        (b'{"prompt": "x", "temperature": 1e999}', "too large"),
        (b'{"prompt": "x", "seed": ' + b"9" * 5000 + b"}", "digits"),
        (b'{"prompt": "\\ud800"}', "surrogate"),
        (b'{"\\ud800": 1}', "surrogate"),
        (b"[" * 100_000, "nested"),
        (b'{"prompt": "x", "metadata": ' + b'{"a":' * 50_000, "nested"),
    ],
    ids=range(15),
)
def test_bodies_that_are_not_json(http: httpx.Client, body: bytes, part: str) -> None:
    answer = http.post("/v1/completions", content=body, headers={"Content-Type": "application/json"})
    assert part in refusal(answer)["message"]


@pytest.mark.parametrize("kind", ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data", ""])
def test_content_types_that_are_not_json(http: httpx.Client, kind: str) -> None:
    headers = {"Content-Type": kind} if kind else {}
    answer = http.post("/v1/completions", content=b'{"prompt": "x"}', headers=headers)
    assert "Content-Type" in refusal(answer)["message"]


def test_content_type_may_name_its_charset(http: httpx.Client) -> None:
    headers = {"Content-Type": "Application/JSON; charset=utf-8"}
    body = b'{"prompt": "x", "max_tokens": 1}'
    assert http.post("/v1/completions", content=body, headers=headers).status_code == 200


@pytest.mark.parametrize("size", [2**21, 10 * 2**20])
def test_large_bodies_are_refused_unread(http: httpx.Client, size: int) -> None:
    body = json.dumps({"prompt": "x" * size}).encode()
    headers = {"Content-Type": "application/json"}
    assert refusal(http.post("/v1/completions", content=body, headers=headers), 413)["code"] == "body_too_large"


def test_a_body_without_length_is_cut_off(server: Server) -> None:
    """Sent in pieces without end: the answer comes after the limit, not after the body."""
    with socket.create_connection(("127.0.0.1", server.port), timeout=20) as connection:
        head = "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        connection.sendall((head + "Transfer-Encoding: chunked\r\n\r\n").encode())
        piece = b"10000\r\n" + b" " * 0x10000 + b"\r\n"
        sent = 0
        try:
            for _ in range(200):
                connection.sendall(piece)
                sent += 0x10000
        except OSError:
            pass
        assert sent < 200 * 0x10000
        assert http_status(connection) == 413


def http_status(connection: socket.socket) -> int:
    with connection.makefile("rb") as answer:
        return int(answer.readline().split()[1])


# Addresses, methods, headers


def test_unknown_addresses_and_methods(http: httpx.Client) -> None:
    refusal(http.get("/v1/nothing"), 404)
    refusal(http.get("/static/nothing.js"), 404)
    refusal(http.get("/static/../settings.py"), 404)
    refusal(http.get("/static/%2e%2e/settings.py"), 404)
    refusal(http.get("/docs"), 404)
    answer = http.get("/v1/completions")
    assert "POST" in refusal(answer, 405)["message"]
    assert answer.headers["Allow"] == "POST"


@pytest.mark.parametrize("path", ["/", "/health", "/metrics", "/v1/models", "/openapi.json", "/nothing"])
def test_security_headers(http: httpx.Client, path: str) -> None:
    headers = http.get(path, headers={"Origin": "http://evil.example"}).headers
    assert headers["X-Content-Type-Options"] == "nosniff"
    assert headers["Referrer-Policy"] == "no-referrer"
    assert headers["Content-Security-Policy"].startswith("default-src 'none'; script-src 'self'; style-src 'self'")
    assert headers["X-Request-Id"]
    assert not [name for name in headers if name.startswith("access-control")]


@pytest.mark.parametrize("host", ["localhost", "localhost:1", "127.0.0.1", "[::1]:8000", "LOCALHOST"])
def test_hosts_of_this_machine(http: httpx.Client, host: str) -> None:
    assert http.get("/health", headers={"Host": host}).status_code == 200


@pytest.mark.parametrize("host", ["evil.example", "evil.example:8000", "127.0.0.1.evil.example", "::1"])
def test_other_hosts_are_refused(http: httpx.Client, host: str) -> None:
    """A page of another site that points its name at this machine must not reach the server (DNS rebinding)."""
    assert refusal(http.get("/health", headers={"Host": host}))["code"] == "wrong_host"


def test_page_and_counts(http: httpx.Client) -> None:
    page = http.get("/")
    assert page.headers["Content-Type"].startswith("text/html")
    assert http.get("/health").json() == {"status": "ok"}
    before = _count(http, 'vitrail_requests_total{path="/v1/completions",status="200"}')
    complete(http)
    assert _count(http, 'vitrail_requests_total{path="/v1/completions",status="200"}') == before + 1
    assert _count(http, "vitrail_written_tokens") > 0
    refusal(http.get("/report.html"), 404)


def _count(http: httpx.Client, name: str) -> float:
    lines = [line for line in http.get("/metrics").text.splitlines() if line.startswith(name + " ")]
    return float(lines[0].split()[-1]) if lines else 0.0


# Leaving, overload, shutdown


def wait_until_idle(http: httpx.Client, seconds: float = 5.0) -> None:
    deadline = time.monotonic() + seconds
    while _count(http, "vitrail_active_answers") + _count(http, "vitrail_waiting_answers"):
        assert time.monotonic() < deadline, "work goes on though nobody reads it"
        time.sleep(0.05)


@pytest.mark.parametrize("stream", [True, False])
def test_a_client_that_leaves_stops_its_work(http: httpx.Client, server: Server, stream: bool) -> None:
    asked = {"prompt": ["x"] * 4, "n": 16, "max_tokens": 120, "stream": stream, "seed": 1}
    before = _count(http, "vitrail_written_tokens")
    with socket.create_connection(("127.0.0.1", server.port)) as connection:
        body = json.dumps(asked)
        head = "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        connection.sendall(f"{head}Content-Length: {len(body)}\r\n\r\n{body}".encode())
        while not _count(http, "vitrail_active_answers"):
            time.sleep(0.01)
    wait_until_idle(http)
    assert _count(http, "vitrail_written_tokens") - before < 64 * 119


def test_an_overloaded_server_says_when_to_come_back(world: Path, server: Server) -> None:
    """In the process of the test, with room for one answer: the checker of annotations sees every handler too."""
    import asyncio

    from vitrail.serve import ServeSettings, create_app

    app = create_app(server.model, settings=ServeSettings(max_batch=1, max_waiting=1))

    async def ask() -> list[httpx.Response]:
        transport = httpx.ASGITransport(app=app)
        async with (
            app.router.lifespan_context(app),
            httpx.AsyncClient(transport=transport, base_url="http://localhost") as client,
        ):
            asked = {"prompt": PROMPT, "max_tokens": 100}
            return await asyncio.gather(*(client.post("/v1/completions", json=asked) for _ in range(6)))

    answers = asyncio.run(ask())
    busy = [answer for answer in answers if answer.status_code == 429]
    assert busy
    assert any(answer.status_code == 200 for answer in answers)
    assert refusal(busy[0], 429)["type"] == "overloaded_error"
    assert int(busy[0].headers["Retry-After"]) >= 1


def test_a_mistake_of_the_server_is_logged_under_the_id_that_is_told(
    server: Server, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A fault that no request can cause: the memory of answers breaks."""
    import asyncio

    from vitrail.serve import create_app

    app = create_app(server.model)
    monkeypatch.setattr(app.state.service.answers, "find", lambda *_: 1 // 0)

    async def ask() -> httpx.Response:
        transport = httpx.ASGITransport(app=app)
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
            return await client.post("/v1/explain", json={"completion": "cmpl-x"})

    error = refusal(asyncio.run(ask()), 500)
    assert error["type"] == "server_error"
    assert "ZeroDivision" not in error["message"]
    assert error["message"].split()[-1] in caplog.text
    assert "ZeroDivisionError" in caplog.text


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGINT], ids=lambda how: how.name)
def test_shutdown_ends_open_streams(server: Server, how: signal.Signals) -> None:
    """Within five seconds, and the stream says why it ends."""
    own = Server(server.directory, server.model, free_port())
    own.start()
    asked = {"prompt": ["x"] * 4, "n": 16, "max_tokens": 120, "stream": True, "commits": True}
    with httpx.stream("POST", f"{own.url}/v1/completions", json=asked, timeout=20) as answer:
        lines = answer.iter_lines()
        next(lines)
        started = time.monotonic()
        own.process.send_signal(how)  # type: ignore[union-attr]
        rest = [line for line in lines if line.startswith("data: ")]
    assert own.process is not None
    assert own.process.wait(10) == 0
    assert time.monotonic() - started < 5
    assert json.loads(rest[-1].removeprefix("data: "))["error"]["code"] == "stopping"


# The command


def vitrail(*words: str, timeout: float = 60) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", "from vitrail.cli.main import main; main()", *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=timeout, check=False)


def test_a_port_in_use_is_one_line(server: Server) -> None:
    done = vitrail("serve", str(server.directory / "model"), "--port", str(server.port))
    (line,) = done.stderr.strip().splitlines()
    assert done.returncode == 2
    assert str(server.port) in line
    assert "in use" in line
    assert "--port" in line


def test_an_index_of_another_model_is_one_line(server: Server, tmp_path: Path) -> None:
    from vitrail.artifacts import Stage

    other = tmp_path / "other"
    model = server.directory / "model"
    with Stage(other, "model", {"other": True}, {}).write() as writing:
        for path in model.rglob("*"):
            target = writing.dir / path.relative_to(model)
            if path.is_dir():
                target.mkdir()
            elif path.name not in ("manifest.json", "provenance.json"):
                target.write_bytes(path.read_bytes())
    done = vitrail("serve", str(other), "--index", str(server.index), "--port", "0")
    (line,) = done.stderr.strip().splitlines()
    assert done.returncode == 2
    assert "index was built for model" in line


def test_a_free_port_is_told_as_json(server: Server) -> None:
    command = [sys.executable, "-c", "from vitrail.cli.main import main; main()", "serve"]
    command += [str(server.directory / "model"), "--port", "0", "--json", "--host", "0.0.0.0", "--name", "tiny"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as running:
        assert running.stdout is not None
        told = ""
        while not told.rstrip().endswith("}"):
            line = running.stdout.readline()
            assert line, running.stderr and running.stderr.read()
            told += line
        port = json.loads(told)["url"].rpartition(":")[2]
        answer = httpx.get(f"http://127.0.0.1:{port}/v1/models/tiny", headers={"Host": "any.example"}, timeout=20)
        running.terminate()
        _, said = running.communicate(timeout=10)
    assert answer.status_code == 200
    assert "no authentication" in said
    assert f"http://0.0.0.0:{port}" in said
