"""A scriptable server of embeddings: `/v1/embeddings` on a real port, with the faults a server can have."""

import hashlib
import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

WIDTH = 24
Script = Callable[[int, list[str]], tuple[int, dict[str, Any]]]
"""Number of the request (from 0) and its texts to a status and a body."""


def vector(text: str) -> list[float]:
    """Counts of hashed words: texts with common words lie near each other."""
    out = [0.01] * WIDTH
    for word in text.lower().replace(".", " ").split():
        out[int(hashlib.sha256(word.encode()).hexdigest(), 16) % WIDTH] += 1.0
    return out


def good(_: int, texts: list[str]) -> tuple[int, dict[str, Any]]:
    """A right answer, last text first."""
    data = [{"object": "embedding", "index": i, "embedding": vector(text)} for i, text in enumerate(texts)]
    usage = {"prompt_tokens": 1, "total_tokens": 1}
    return 200, {"object": "list", "model": "m", "data": data[::-1], "usage": usage}


@contextmanager
def serving(script: Script) -> Iterator[tuple[str, list[list[str]]]]:
    """A running server: its address, and the texts of the requests that came."""
    requests: list[list[str]] = []
    lock = threading.Lock()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            with lock:
                number = len(requests)
                requests.append(body["input"])
            status, answer = script(number, body["input"])
            data = json.dumps(answer).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *args: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/v1", requests
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
