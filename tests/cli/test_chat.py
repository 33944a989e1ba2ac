"""`vitrail chat`: through a pipe and on a real terminal."""

import codecs
import json
import os
import pty
import re
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.serve.conftest import world as world  # the small model with its index

# A shell without job control lets background jobs, such as a whole test run, ignore Ctrl-C; users' shells do not.
MAIN = (
    "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)\nfrom vitrail.cli.main import main; main()"
)
COMMAND = [sys.executable, "-c", MAIN, "chat"]
ENVIRONMENT = os.environ | {"OMP_NUM_THREADS": "1", "TERM": "xterm", "COLUMNS": "100"}
START_S = 120.0


def chat(world: Path, said: str, *flags: str) -> subprocess.CompletedProcess[str]:
    command = [*COMMAND, str(world / "model"), "--max-new-tokens", "20", *flags]
    return subprocess.run(
        command, input=said, capture_output=True, text=True, timeout=300, check=False, env=ENVIRONMENT
    )


FIRST = "the river and the delta"


@dataclass(frozen=True)
class Talk:
    """A conversation through a pipe, and what it saved."""

    done: subprocess.CompletedProcess[str]
    record: dict[str, Any]


@pytest.fixture(scope="module")
def talk(world: Path, tmp_path_factory: pytest.TempPathFactory) -> Talk:
    saved = tmp_path_factory.mktemp("talk") / "talk.json"
    lines = [
        FIRST,
        "/why",
        "/steer",
        "/steer glass=+1.0; rivers=off",
        "/concepts judge",
        "a pane of glass",
        f"/save {saved}",
        "/new",
        "/why",
    ]
    flags = ("--index", str(world / "index"), "--seed", "4", "--steer", "trade=+0.5")
    done = chat(world, "\n".join(lines) + "\n", *flags)
    assert done.returncode == 0, done.stderr
    return Talk(done, json.loads(saved.read_text("utf-8")))


def test_a_piped_conversation_has_no_colour_and_answers_commands(talk: Talk) -> None:
    out, notes = talk.done.stdout, talk.done.stderr
    assert "\x1b" not in out + notes
    for part in ("Inputs", "Concepts", "similarity is not influence", "Certificate passed", "courts"):
        assert part in out
    assert "steering: trade=+0.5\n" in out
    assert "steering: glass=+1.0; rivers=off\n" in out
    assert "no whole answer to explain" in notes


def test_a_saved_conversation_holds_all_turns(talk: Talk) -> None:
    turns = talk.record["turns"]
    assert [turn["role"] for turn in turns] == ["user", "assistant"] * 2
    assert [turn["steer"] for turn in turns[1::2]] == ["trade=+0.5", "glass=+1.0; rivers=off"]
    assert [turn["seed"] for turn in turns[1::2]] == [4, 5]
    assert turns[1]["text"] in talk.done.stdout


def test_again_with_mistakes_and_many_turns(world: Path, talk: Talk) -> None:
    """The same seed gives the same answer; mistakes are one line each; old turns leave with a note."""
    mistakes = ["/steer revers=+1", "/staer", "/save", "word " * 300, "/help"]
    lines = [FIRST, *mistakes, *["the river and the delta and the ferry"] * 7]
    done = chat(world, "\n".join(lines), "--seed", "4", "--steer", "trade=+0.5")
    assert done.returncode == 0
    assert done.stdout.startswith(talk.record["turns"][1]["text"])
    for part in ("did you mean 'rivers'", "did you mean '/steer'", "name a file", "say less"):
        assert part in done.stderr
    assert "/concepts WORDS" in done.stdout
    assert re.search(r"the context is full: the oldest \d turns? fell out of it", done.stderr)
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("flags", "part"), [(["--steer", "revers=+1"], "rivers"), (["--temperature", "-1"], "temperature")]
)
def test_wrong_flags_are_one_line(world: Path, flags: list[str], part: str) -> None:
    done = chat(world, "", *flags)
    assert done.returncode == 2
    (line,) = done.stderr.strip().splitlines()
    assert part in line


# On a terminal


class Screen:
    """A program on a pseudo-terminal."""

    def __init__(self, file: int, process: "subprocess.Popen[bytes]") -> None:
        self.process, self.shown, self._file = process, "", file
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")  # a read may end inside a character

    def type(self, text: str) -> None:
        os.write(self._file, text.encode())

    def wait_for(self, part: str, seconds: float = 60.0) -> None:
        deadline = time.monotonic() + seconds
        while part not in self.shown:
            assert time.monotonic() < deadline, f"'{part}' is not in {self.shown[-800:]!r}"
            self.read()

    def interrupt_until(self, is_seen: Callable[[], bool], seconds: float = 60.0) -> None:
        """Press Ctrl-C, again every two seconds: Python loses one that comes just before readline waits."""
        deadline = time.monotonic() + seconds
        while not is_seen():
            assert time.monotonic() < deadline, f"Ctrl-C does nothing: {self.shown[-800:]!r}"
            self.process.send_signal(signal.SIGINT)
            again = time.monotonic() + 2
            while not is_seen() and time.monotonic() < again:
                self.read()

    def read(self) -> None:
        if select.select([self._file], [], [], 0.1)[0]:
            try:
                self.shown += self._decoder.decode(os.read(self._file, 65536))
            except OSError:  # the program has ended
                time.sleep(0.05)


@contextmanager
def terminal(world: Path, *flags: str) -> Iterator[Screen]:
    master, slave = pty.openpty()
    command = [*COMMAND, str(world / "model"), *flags]
    with subprocess.Popen(
        command, stdin=slave, stdout=slave, stderr=slave, env=ENVIRONMENT, start_new_session=True
    ) as process:
        os.close(slave)
        screen = Screen(master, process)
        try:
            screen.wait_for("/help", START_S)
            yield screen
        finally:
            process.kill()
            os.close(master)


def test_a_terminal_shows_the_open_block_and_ctrl_c_stops(world: Path) -> None:
    with terminal(world, "--max-new-tokens", "110", "--temperature", "0") as screen:
        screen.wait_for("›")
        screen.type("x\n")
        screen.wait_for("░")
        screen.interrupt_until(lambda: "stopped" in screen.shown)
        screen.type("/why\n")
        screen.wait_for("no whole answer")
        screen.interrupt_until(lambda: "once more" in screen.shown)
        screen.interrupt_until(lambda: screen.process.poll() is not None)
        assert screen.process.returncode == 0
