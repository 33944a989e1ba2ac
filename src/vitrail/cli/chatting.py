"""A conversation at the terminal: turns, commands that begin with `/`, answers shown while they are denoised.

The model reads the turns as the server's chat gives them to it: by its chat template, or without one below one
another with blank lines between. On a terminal the answer's open block is shown with its gaps; to a pipe goes finished
text only.
"""

import os
import signal
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.live import Live
from rich.text import Text

from vitrail.api import Generation, LoadedModel
from vitrail.artifacts import write_json
from vitrail.errors import ConfigError, PromptTooLong, VitrailError, nearest
from vitrail.explain import Index
from vitrail.generate import Beginning, Commit, Sampling, stop_ids
from vitrail.settings import MAX_SEED
from vitrail.steer import Steer, format_steers, parse_steers

GAP = "░"
NUM_FOUND = 10

HELP = """\
/steer NAME=+1.0; OTHER=off   turn concepts up, down or off; /steer shows them, /steer none ends it
/concepts WORDS               find concepts
/why                          explain the last answer
/save FILE                    write the conversation as JSON
/new                          begin again
/quit                         leave, as Ctrl-D does
Ctrl-C stops an answer."""


@dataclass
class Conversation:
    """What was said, and how the model answers.

    Attributes:
        model: the model.
        sampling: of the answers; each takes the seed after the last one's.
        steers: concepts turned up or down.
        turns: texts, those of the user and the model in turn.
        last: the last whole answer.
    """

    model: LoadedModel
    sampling: Sampling
    steers: list[Steer] = field(default_factory=list)
    turns: list[dict[str, Any]] = field(default_factory=list)
    last: Generation | None = None
    _num_read: int = 0

    def __post_init__(self) -> None:
        if self._room < 2:
            raise ConfigError(
                f"--max-new-tokens {self.sampling.max_new_tokens} leaves no room for a prompt in a context of "
                f"{self.model.network.config.max_length} tokens; lower it"
            )

    @property
    def _room(self) -> int:
        """Tokens that what was said may have."""
        return self.model.network.config.max_length - self.sampling.max_new_tokens

    def steer(self, text: str) -> None:
        """Change the steering; nothing changes where it cannot be carried out.

        Args:
            text: such as `NAME=+1.0; OTHER=off`.
        """
        steers = parse_steers(text)
        self.model.plan(steers)
        self.steers = steers

    def restart(self) -> None:
        """Forget what was said."""
        self.turns, self.last, self._num_read = [], None, 0

    def prompt(self) -> tuple[list[int], int]:
        """The ids to continue, and how many turns fell out of the context since the last one.

        Returns:
            the last turns that fit beside an answer, and the number of those newly left out.

        Raises:
            PromptTooLong: the last turn alone does not fit.
        """
        first = self._num_read
        while True:
            messages = [{"role": turn["role"], "content": turn["text"]} for turn in self.turns[first:]]
            ids = self.model.tokenizer.chat_ids(messages)
            num_tokens = len(ids)
            if num_tokens <= self._room:
                break
            if first == len(self.turns) - 1:
                raise PromptTooLong(f"that is {num_tokens} tokens, and the context has room for {self._room}; say less")
            first += 1
        dropped, self._num_read = first - self._num_read, first
        return ids, dropped

    def answer(self, prompt: list[int], on_commit: Callable[[Commit], None]) -> Generation:
        """Write the next answer.

        Args:
            prompt: of `prompt`.
            on_commit: called with each step.

        Returns:
            the answer.
        """
        generation = self.model.continue_prompt(prompt, self.sampling, self.steers, on_commit)
        self.last = generation
        return generation

    def next_seed(self) -> None:
        """Let the next answer be another draw."""
        self.sampling = self.sampling.model_copy(update={"seed": (self.sampling.seed + 1) % (MAX_SEED + 1)})

    def record(self) -> dict[str, Any]:
        """The conversation as plain values."""
        return {
            "model_id": self.model.model_id,
            "steer": format_steers(self.steers),
            "sampling": self.sampling.model_dump(mode="json"),
            "turns": self.turns,
        }


class Terminal:
    """Reads lines, obeys commands, shows answers."""

    def __init__(self, conversation: Conversation, index: Index | None, out: Console, notes: Console) -> None:
        """Prepare.

        Args:
            conversation: what is held.
            index: training passages for `/why`; None leaves them out.
            out: where answers go.
            notes: where remarks go.
        """
        self._talk, self._index, self._out, self._notes = conversation, index, out, notes
        self._saved: set[Path] = set()
        self._commands: dict[str, Callable[[str], None]] = {
            "/steer": self._steer,
            "/concepts": self._concepts,
            "/why": self._why,
            "/save": self._save,
            "/new": self._new,
            "/help": lambda _: self._print(HELP),
        }

    def run(self) -> None:
        """Converse until the end of the input, `/quit`, or a second Ctrl-C."""
        is_asked_twice = False
        while True:
            try:
                line = self._read()
            except EOFError:
                return
            except KeyboardInterrupt:
                if is_asked_twice:
                    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a third must not kill what is ending well
                    return
                is_asked_twice = True
                self._note("Ctrl-C once more, or Ctrl-D, leaves")
                continue
            is_asked_twice = False
            if line == "/quit":
                return
            with suppress(KeyboardInterrupt):
                self.take(line)

    def take(self, line: str) -> None:
        """One line of input: a command, or something to answer.

        Args:
            line: the line.
        """
        try:
            if line.startswith("/"):
                self._obey(line)
            elif line:
                self._answer(line)
        except VitrailError as error:
            self._note(str(error))

    def _read(self) -> str:
        if not sys.stdin.isatty():
            line = sys.stdin.readline()
            if not line:
                raise EOFError
            return line.strip()
        return input("› ").strip()

    def _obey(self, line: str) -> None:
        name, *rest = line.split(maxsplit=1)
        command = self._commands.get(name)
        if command is None:
            self._note(f"no command '{name}'" + (nearest(name, [*self._commands, "/quit"], 1) or "; see /help"))
        else:
            command("".join(rest))

    def _answer(self, line: str) -> None:
        talk = self._talk
        talk.turns.append({"role": "user", "text": line})
        try:
            prompt, dropped = talk.prompt()
        except VitrailError:
            talk.turns.pop()
            raise
        if dropped:
            self._note(f"the context is full: the oldest {dropped} turn{'s' * (dropped > 1)} fell out of it")
        screen = _Screen(talk, len(prompt), self._out)
        turn = {"role": "assistant", "seed": talk.sampling.seed, "steer": format_steers(talk.steers)}
        talk.last = None
        try:
            with screen:
                text = talk.answer(prompt, screen.show).text
        except KeyboardInterrupt:
            text = screen.text
            turn["is_stopped"] = True
            self._note("stopped")
        talk.turns.append(turn | {"text": text})
        talk.next_seed()

    def _steer(self, rest: str) -> None:
        if rest:
            self._talk.steer("" if rest == "none" else rest)
        self._print(f"steering: {format_steers(self._talk.steers) or 'none'}")

    def _concepts(self, rest: str) -> None:
        cards = self._talk.model.library.search(rest, NUM_FOUND)
        lines = [f"{'' if card.head == 'known' else 'discovered:'}{card.name}  {card.description}" for card in cards]
        self._print("\n".join(lines) or f"no concept matches '{rest}'; name some words of what it is about")

    def _why(self, _rest: str) -> None:
        if self._talk.last is None:
            self._note("there is no whole answer to explain yet")
        else:
            self._talk.last.explain(self._index).render(self._out)

    def _save(self, rest: str) -> None:
        if not rest:
            self._note("name a file: /save talk.json")
            return
        try:
            path = Path(rest).expanduser()
            if path not in self._saved and os.path.lexists(path):
                self._note(f"{rest} exists already; name another file")
                return
            write_json(path, self._talk.record())
        except (RuntimeError, ValueError):  # nobody's home, a sign that no name may hold
            self._note(f"'{rest}' is no name of a file; try /save talk.json")
            return
        self._saved.add(path)
        self._note(f"saved {rest}")

    def _new(self, _rest: str) -> None:
        self._talk.restart()
        self._note("a new conversation")

    def _print(self, text: str) -> None:
        self._out.print(text, markup=False)

    def _note(self, text: str) -> None:
        self._notes.print(text, markup=False, style="dim", soft_wrap=True)


class _Screen:
    """An answer on its way: the open block with its gaps on a terminal, finished text to a pipe."""

    def __init__(self, talk: Conversation, num_prompt: int, out: Console) -> None:
        self.text = ""
        self._tokenizer = talk.model.tokenizer
        self._beginning = Beginning(self._tokenizer, num_prompt, (), stop_ids(talk.model.network.config, talk.sampling))
        self._filled: dict[int, str] = {}
        self._out = out
        self._live = Live(console=out, transient=True, refresh_per_second=20) if out.is_terminal else None

    def __enter__(self) -> "_Screen":
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        rest = self._beginning.close()
        self.text += rest
        if self._live is not None:
            self._live.stop()
            self._out.print(Text(self.text))
        else:
            self._write(rest + "\n")

    def show(self, commit: Commit) -> None:
        """Show one step."""
        gain = self._beginning.add(commit.positions, commit.tokens)
        self.text += gain.text
        self._filled |= {
            pos: self._tokenizer.decode([token]) for pos, token in zip(commit.positions, commit.tokens, strict=True)
        }
        if self._live is None:
            self._write(gain.text)
        else:
            open_text = "".join(self._filled.get(pos, GAP) for pos in range(self._beginning.end, commit.row_length))
            self._live.update(Text.assemble(self.text, (open_text, "dim")))

    def _write(self, text: str) -> None:
        self._out.file.write(text)
        self._out.file.flush()
