"""What asking a language model costs on our side: the client, the journal, a rebuild that asks nothing.

    python benchmarks/asking.py [--questions 2000]

A server of this machine answers at once with nine tags, in a process of its own, so that what is left is our cost.
Processor time of one process; bytes on the disk.
"""

import argparse
import json
import multiprocessing
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from multiprocessing.connection import Connection
from pathlib import Path

from vitrail.atlas.llm import Asker, Endpoint, Journal, LanguageModel, Prompt
from vitrail.atlas.tags.endpoint import EndpointTagger

ANSWER = json.dumps({"tags": [f"{word} of the passage" for word in ("topic", "place", "name", "tone", "kind")]})


class Answerer(BaseHTTPRequestHandler):
    """Gives every request the same completion."""

    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        """Answer."""
        self.rfile.read(int(self.headers["Content-Length"]))
        message = {"role": "assistant", "content": ANSWER}
        body = json.dumps(
            {
                "id": "1",
                "object": "chat.completion",
                "created": 0,
                "model": "m",
                "choices": [{"index": 0, "message": message, "finish_reason": "stop"}],
                "usage": {"prompt_tokens": 400, "completion_tokens": 40, "total_tokens": 440},
            }
        ).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Say nothing."""


def serve(pipe: Connection) -> None:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Answerer)
    pipe.send(server.server_address[1])
    server.serve_forever()


@contextmanager
def server() -> Iterator[str]:
    """The address of a server in a process of its own."""
    ours, theirs = multiprocessing.Pipe()
    process = multiprocessing.get_context("spawn").Process(target=serve, args=(theirs,), daemon=True)
    process.start()
    try:
        yield f"http://127.0.0.1:{ours.recv()}/v1"
    finally:
        process.kill()
        process.join()


def tag(url: str, path: Path, texts: list[str]) -> float:
    """Processor seconds of tagging all texts."""
    with Journal(path) as journal:
        asker = Asker(LanguageModel(model="m"), Endpoint(url=url, max_concurrency=32), journal, lambda _: None)
        started = time.process_time()
        EndpointTagger(asker, Prompt.builtin("tags")).tag(texts)
        return time.process_time() - started


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description="What asking a language model costs on our side.")
    parser.add_argument("--questions", type=int, default=2_000, help="chunks that are asked about")
    count = parser.parse_args().questions
    texts = [f"passage {number} " + "word " * 200 for number in range(count)]
    with tempfile.TemporaryDirectory() as folder, server() as url:
        path = Path(folder) / "answers.jsonl"
        asked = tag(url, path, texts)
        again = tag(url, path, texts)
        print(f"client: {1e3 * asked / count:.2f} ms a question, {count / asked:.0f} questions a core-second")
        print(f"rebuild from the journal: {1e3 * again / count:.2f} ms a question")
        print(f"journal: {path.stat().st_size / count:.0f} bytes an answer of {len(ANSWER)} bytes")


if __name__ == "__main__":
    main()
