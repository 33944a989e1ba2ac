"""How a conversation becomes a prompt: ids of control tokens, and text between them.

What was said is text, whatever it holds: a template gives parts, and only its own words become control tokens.

- `PlainTemplate`: no roles; the texts below one another with a blank line between.
- `HeaderTemplate`: the released instruct model (spec of the released checkpoints, §13), with control tokens by id.
- `JinjaTemplate`: the `chat_template` of a Hugging Face tokenizer, in a sandbox. It is rendered twice: as it is, and
  with a marker in place of each content. The second says which words are the template's own; the first must
  be the second with the contents put back, whole or without the white space at their ends (`| trim`). A template that
  changes contents in another way is refused, since its output would not tell what was typed from what controls.
"""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from itertools import count
from typing import Any, NoReturn, Protocol, runtime_checkable

from jinja2 import Template as CompiledTemplate
from jinja2 import TemplateError
from jinja2.sandbox import ImmutableSandboxedEnvironment

from vitrail.errors import ConfigError
from vitrail.text.controls import ControlIds, Part

Message = Mapping[str, str]
"""`role` and `content`."""

_ROLE = re.compile(r"[\w-]{1,64}")


@runtime_checkable
class Template(Protocol):
    """A way to write a conversation."""

    def parts(self, messages: Sequence[Message], add_generation_prompt: bool) -> list[Part]:
        """The conversation as control tokens and text.

        Args:
            messages: checked ones.
            add_generation_prompt: end where the answer begins.

        Returns:
            ids of control tokens, and texts.
        """
        ...


def check_messages(messages: Sequence[Message]) -> None:
    """Refuse what is no conversation.

    Args:
        messages: the conversation.

    Raises:
        ConfigError: none, or one without a role in letters and a text.
    """
    if not messages:
        raise ConfigError("the conversation has no messages; give at least one")
    for number, message in enumerate(messages):
        if set(message) != {"role", "content"} or not all(isinstance(value, str) for value in message.values()):
            raise ConfigError(f"message {number}: expected 'role' and 'content', both texts, got {sorted(message)}")
        if not _ROLE.fullmatch(message["role"]):
            raise ConfigError(f"message {number}: role {message['role']!r} is no word; write 'user' or 'assistant'")


def plain_template(texts: Sequence[str]) -> str:
    """The prompt of a conversation with a model that has no roles.

    Args:
        texts: of its messages.

    Returns:
        them below one another, a blank line after each; the answer continues there.
    """
    return "".join(f"{text}\n\n" for text in texts)


def turns_of(template: Template, messages: Sequence[Message]) -> list[tuple[list[Part], bool]]:
    """A conversation up to its last answer, cut where the assistant begins and ends.

    Args:
        template: writes it.
        messages: checked ones.

    Returns:
        stretches of parts in order, and whether each is an answer, which ends with the last control token that the
        template writes behind it. Stretches and answers alternate; an answer is last.

    Raises:
        ConfigError: the template writes a beginning otherwise once more follows.
    """
    turns: list[tuple[list[Part], bool]] = []
    begun: list[Part] = []
    behind: list[Part] = []  # the end mark of the answer before
    for number in (number for number, message in enumerate(messages) if message["role"] == "assistant"):
        prompt, whole = template.parts(messages[:number], True), template.parts(messages[: number + 1], False)
        asked, answer = _continuation(prompt, begun), _continuation(whole, prompt)
        if asked is None or answer is None:
            raise ConfigError(
                f"message {number}: the chat template writes what stands before it otherwise once it follows, so it "
                "cannot be learnt as an answer; keep the conversation up to its first answer"
            )
        end = max((place for place, part in enumerate(answer, 1) if isinstance(part, int)), default=len(answer))
        turns += [([*behind, *asked], False), (answer[:end], True)]
        begun, behind = whole, answer[end:]
    return turns


class PlainTemplate:
    """For models without roles; the answer continues the text, so there is nothing to add for it."""

    def parts(self, messages: Sequence[Message], add_generation_prompt: bool) -> list[Part]:
        """The texts, below one another.

        Args:
            messages: the conversation.
            add_generation_prompt: changes nothing.

        Returns:
            one text.
        """
        del add_generation_prompt
        return [plain_template([message["content"] for message in messages])]


class HeaderTemplate:
    """For the released instruct model: a header with the role, the content as it is, two end marks."""

    def __init__(self, controls: ControlIds) -> None:
        """Remember the control tokens.

        Args:
            controls: with both header ids and the end of a message.
        """
        self._controls = controls

    @classmethod
    def fits(cls, controls: ControlIds) -> bool:
        """Whether a model has the control tokens for it.

        Args:
            controls: of the model.

        Returns:
            true where all three are there.
        """
        return None not in (controls.start_header, controls.end_header, controls.eot)

    def parts(self, messages: Sequence[Message], add_generation_prompt: bool) -> list[Part]:
        """Header, content and end marks of each message.

        Args:
            messages: the conversation.
            add_generation_prompt: end with the header of the answer.

        Returns:
            ids and texts.
        """
        ends = [self._controls.eoc, self._controls.eot]
        parts = [[*self._header(message["role"]), message["content"], *ends] for message in messages]
        parts += [self._header("assistant")] if add_generation_prompt else []
        return [part for written in parts for part in written if part is not None]

    def _header(self, role: str) -> list[Part | None]:
        return [self._controls.start_header, role, self._controls.end_header, "\n\n"]


class JinjaTemplate:
    """For a tokenizer that brings its own template."""

    def __init__(self, source: str, variables: Mapping[str, str], split: Callable[[str], list[Part]]) -> None:
        """Keep the template; it is read when it is first used, so that a broken one stops nothing else.

        Args:
            source: Jinja text.
            variables: names of control tokens that it may use, such as `bos_token`.
            split: finds control tokens in the template's own words.
        """
        self.source, self._variables, self._split = source, variables, split

    def parts(self, messages: Sequence[Message], add_generation_prompt: bool) -> list[Part]:
        """The conversation as the template writes it.

        Args:
            messages: the conversation.
            add_generation_prompt: end where the answer begins.

        Returns:
            ids and texts.

        Raises:
            ConfigError: the template is broken, refuses the conversation, or changes what was said.
        """
        written = self._render(messages, add_generation_prompt)
        marks = self._marks(messages)
        marked = self._render(
            [{**message, "content": mark} for message, mark in zip(messages, marks, strict=True)], add_generation_prompt
        )
        pieces = _split_at(marked, {mark: number for number, mark in enumerate(marks) if mark})
        filled = _filled(written, pieces, [message["content"] for message in messages])
        if filled is None:
            raise ConfigError(
                "chat template: it changes what the messages say, so control strings typed in them could not be told "
                "from its own; reword them, or give the prompt as token ids"
            )
        return [part for own, text in filled for part in (self._split(text) if own else [text])]

    @cached_property
    def _compiled(self) -> CompiledTemplate:
        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
        )
        environment.filters["tojson"] = _to_json
        environment.globals["raise_exception"] = _refuse
        return environment.from_string(self.source)

    def _render(self, messages: Sequence[Message], add_generation_prompt: bool) -> str:
        variables = {**self._variables, "messages": [dict(message) for message in messages]}
        try:
            return self._compiled.render(**variables, add_generation_prompt=add_generation_prompt)
        except ConfigError:
            raise
        except (TemplateError, ArithmeticError, LookupError, TypeError, ValueError, AttributeError) as error:
            problem = " ".join(str(error).split())
            raise ConfigError(f"chat template: it does not take this conversation ({problem})") from error

    def _marks(self, messages: Sequence[Message]) -> list[str]:
        """Texts that the template has not, in place of contents; an empty content stays, as templates ask for it."""
        own = "".join((self.source, *self._variables.values()))
        key = next(key for n in count() if (key := f"\ue000{n}:") not in own)
        return [f"{key}{number}\ue001" if message["content"] else "" for number, message in enumerate(messages)]


def _to_json(value: Any, indent: int | None = None) -> str:
    """As templates expect it: without the escapes of HTML."""
    return json.dumps(value, ensure_ascii=False, indent=indent)


def _refuse(reason: str) -> NoReturn:
    raise ConfigError(f"chat template: {' '.join(str(reason).split())}")


def _split_at(text: str, marks: Mapping[str, int]) -> list[Part]:
    """The template's own words, and the numbers of the messages between them."""
    if not marks:
        return [text]
    pieces = re.split("(" + "|".join(map(re.escape, marks)) + ")", text)
    return [marks.get(piece, piece) for piece in pieces]


def _filled(written: str, pieces: Sequence[Part], contents: Sequence[str]) -> list[tuple[bool, str]] | None:
    """What was written, in pieces that say whether they are the template's own; None where they do not fit.

    A content may stand whole or without white space at its ends. `reached` holds the ways to read the text so far,
    by where they end.
    """
    reached: dict[int, tuple[tuple[bool, str], ...]] = {0: ()}
    for piece in pieces:
        options = (piece,) if isinstance(piece, str) else _ends_cut(contents[piece])
        reached = {
            start + len(option): (*parts, (isinstance(piece, str), option))
            for start, parts in reversed(reached.items())
            for option in reversed(options)
            if written.startswith(option, start)
        }
    return list(reached[len(written)]) if len(written) in reached else None


def _ends_cut(text: str) -> tuple[str, ...]:
    return text, text.rstrip(), text.lstrip(), text.strip()


def _continuation(whole: Sequence[Part], begun: Sequence[Part]) -> list[Part] | None:
    """The parts that a conversation adds to its beginning; None where the one does not begin with the other."""
    whole, begun = _merged(whole), _merged(begun)
    if not begun:
        return whole
    *before, last = begun
    rest = whole[len(before) :]
    if whole[: len(before)] != before or not rest:
        return None
    if isinstance(last, str) and isinstance(rest[0], str) and rest[0].startswith(last):
        return _merged([rest[0][len(last) :], *rest[1:]])
    return rest[1:] if rest[0] == last else None


def _merged(parts: Sequence[Part]) -> list[Part]:
    """Neighbouring texts as one, without empty ones."""
    merged: list[Part] = []
    for part in parts:
        if isinstance(part, str) and merged and isinstance(merged[-1], str):
            merged[-1] += part
        elif part != "":
            merged.append(part)
    return merged
