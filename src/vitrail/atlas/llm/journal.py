"""The journal of answers: an append-only file that outlives a killed run and spares every later build its requests.

One line of JSON an answer: its key (a hash of everything that was asked), the text, why it ended, the tokens. A line
is written in one piece, so a kill can tear only the last one, which is passed over; so is any line that is damaged.
A file of something else is refused and left as it is.
Several processes may append to one journal. Memory holds the keys and the places of the lines, not the texts.
"""

import hashlib
import json
import os
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from vitrail.artifacts import write_faults_are_clear
from vitrail.errors import ConfigError

ANSWERS_NAME = "answers.jsonl"
"""What a journal is called where a stage keeps it."""

_BEGINNING = re.compile(rb'\{"key": "[0-9a-f]{32}", "text": ')
"""Of every line that is written here; a journal torn in its first one is known by it."""


@dataclass(frozen=True)
class Reply:
    """What a server answered.

    Attributes:
        text: the message; empty if there is none.
        finish: why it ended: "stop", "length", "content_filter" …
        refusal: what the model said instead of an answer; empty if it did not refuse.
        tokens_in: tokens read; 0 if the server does not count.
        tokens_out: tokens written; 0 if the server does not count.
    """

    text: str
    finish: str
    refusal: str
    tokens_in: int
    tokens_out: int


def key_of(request: Mapping[str, Any]) -> str:
    """The key of a request: equal for equal requests only.

    Args:
        request: model, parameters and messages, as plain values.

    Returns:
        32 hexadecimal digits.
    """
    text = json.dumps(request, sort_keys=True, ensure_ascii=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:32]


class Journal:
    """Answers on disk, by key."""

    def __init__(self, path: Path):
        """Open a journal, or begin one.

        Args:
            path: the file; its folder is made.

        Raises:
            ConfigError: the place cannot be written to, or holds something else.
            RunFailed: the disk is full.
        """
        self.path = path
        self._places: dict[bytes, tuple[int, int]] = {}
        self.num_damaged = 0
        """Lines that could not be read: torn by a kill, or damaged."""
        if path.exists() and not path.is_file():
            raise ConfigError(f"{path}: is no file; name a file that can be written")
        with write_faults_are_clear(path):
            try:
                path.parent.mkdir(parents=True, exist_ok=True)
                self._file = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o644)
            except (FileExistsError, NotADirectoryError, IsADirectoryError, PermissionError) as error:
                raise ConfigError(f"{path}: {error.strerror}; name a file that can be written") from error
            self._read_places()

    def get(self, key: str) -> Reply | None:
        """A stored answer.

        Args:
            key: of the request.

        Returns:
            the answer, or None if there is none.
        """
        place = self._places.get(bytes.fromhex(key))
        if place is None:
            return None
        return _entry(os.pread(self._file, place[1], place[0]))[1]

    def put(self, key: str, reply: Reply) -> None:
        """Append an answer; it is safe from a kill when this returns.

        Args:
            key: of the request.
            reply: its answer.

        Raises:
            RunFailed: the disk is full.
        """
        line = json.dumps({"key": key, **asdict(reply)}, ensure_ascii=True).encode() + b"\n"
        with write_faults_are_clear(self.path):
            written = os.write(self._file, line)
            if written < len(line):  # the disk filled up in the midst of the line: the rest would say so
                os.write(self._file, line[written:])
        # With O_APPEND this is where the line ends, whatever another process has written meanwhile.
        start = os.lseek(self._file, 0, os.SEEK_CUR) - len(line)
        self._places.setdefault(bytes.fromhex(key), (start, len(line)))

    def close(self) -> None:
        """Flush to the disk and close."""
        os.fsync(self._file)
        os.close(self._file)

    def __enter__(self) -> "Journal":
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def _read_places(self) -> None:
        start, line = 0, b""
        with self.path.open("rb") as stored:
            is_ours = _BEGINNING.match(stored.peek()) is not None
            for line in stored:
                try:
                    key, _ = _entry(line)
                    self._places.setdefault(key, (start, len(line)))
                except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
                    self.num_damaged += 1
                start += len(line)
        if start and not self._places and not is_ours:
            os.close(self._file)
            raise ConfigError(
                f"{self.path}: holds no answers of a language model; name a new file, or a journal of them"
            )
        if line and not line.endswith(b"\n"):  # what comes next must not be joined to the torn line
            os.write(self._file, b"\n")


def _entry(line: bytes) -> tuple[bytes, Reply]:
    record = json.loads(line)
    return bytes.fromhex(record.pop("key")), Reply(**record)
