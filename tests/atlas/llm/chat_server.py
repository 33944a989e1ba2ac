"""A scriptable chat server: OpenAI-compatible, on a real port, with every fault a server can have."""

import json
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@dataclass(frozen=True)
class Act:
    """What the server does with a request.

    Attributes:
        text: of the message.
        status: of the response; other than 200 sends an error.
        headers: sent along.
        body: instead of a completion.
        delay_s: before anything is sent.
        finish: why the answer ended.
        refusal: of the message.
        is_counted: whether usage is told.
        hangs_up: closes the connection without a response.
    """

    text: str = ""
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes | None = None
    delay_s: float = 0.0
    finish: str = "stop"
    refusal: str | None = None
    is_counted: bool = True
    hangs_up: bool = False


Script = Callable[[str, int], Act]
"""Question and number of the request (from 0) to what is done with it."""


@dataclass
class ChatServer:
    """A running server.

    Attributes:
        script: decides each response; may be replaced while it runs.
        requests: bodies in the order they came.
        times: when each came.
        most_at_once: requests that were in work together.
    """

    script: Script
    requests: list[dict[str, Any]] = field(default_factory=list)
    times: list[float] = field(default_factory=list)
    keys: list[str] = field(default_factory=list)
    most_at_once: int = 0
    port: int = 0
    _at_once: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/v1"

    def begin(self, body: dict[str, Any], key: str) -> int:
        with self._lock:
            self.requests.append(body)
            self.times.append(time.monotonic())
            self.keys.append(key)
            self._at_once += 1
            self.most_at_once = max(self.most_at_once, self._at_once)
            return len(self.requests) - 1

    def end(self) -> None:
        with self._lock:
            self._at_once -= 1


@contextmanager
def serving(script: Script) -> Iterator[ChatServer]:
    """A server on a free port, until the block ends."""
    state = ChatServer(script)
    http = _Http(("127.0.0.1", 0), _handler(state))
    state.port = http.server_address[1]
    thread = threading.Thread(target=http.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield state
    finally:
        http.shutdown()
        http.server_close()
        thread.join()


class _Http(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128  # connections that wait; with the usual 5 a burst is turned away


def _handler(state: ChatServer) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        wbufsize = 1 << 16  # one packet an answer: two would wait for each other

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            number = state.begin(body, self.headers.get("Authorization", ""))
            try:
                act = state.script(body["messages"][-1]["content"], number)
                time.sleep(act.delay_s)
            finally:
                state.end()
            if act.hangs_up:
                self.close_connection = True
                return
            self._send(act, _error(act) if act.status != 200 else act.body or _completion(act, body))

        def _send(self, act: Act, data: bytes) -> None:
            self.send_response(act.status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(data)))
            for name, value in act.headers.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(data)

        def handle(self) -> None:
            try:
                super().handle()
            except (ConnectionError, TimeoutError):
                self.close_connection = True  # the client did not wait

        def log_message(self, *args: Any) -> None:
            pass

    return Handler


def _error(act: Act) -> bytes:
    return json.dumps({"error": {"message": act.text or f"status {act.status}", "type": "test"}}).encode()


def _completion(act: Act, body: Mapping[str, Any]) -> bytes:
    chars = sum(len(message["content"]) for message in body["messages"])
    usage = {"prompt_tokens": chars // 4, "completion_tokens": max(len(act.text) // 4, 1), "total_tokens": 0}
    message = {"role": "assistant", "content": act.text, "refusal": act.refusal}
    answer = {
        "id": "x",
        "object": "chat.completion",
        "created": 0,
        "model": body["model"],
        "choices": [{"index": 0, "message": message, "finish_reason": act.finish}],
    }
    return json.dumps(answer | ({"usage": usage} if act.is_counted else {})).encode()
