"""Prompts: text files that a user can copy, edit and pass back; their text enters the settings, hence the id.

A prompt has an instruction and a question, parted by a line `---`. Words in braces are filled in: `{text}`. Braces
around anything else, as in an example of JSON, are left as they are.
"""

import re
from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path

from pydantic import Field

from vitrail.errors import ConfigError
from vitrail.settings import Settings

PLACEHOLDERS = {
    "tags": ("text",),
    "concept": ("tags", "words", "examples"),
    "relevance": ("name", "description", "text"),
}
"""What each prompt must have room for."""

_SEPARATOR = "\n---\n"
_BRACES = re.compile(r"\{(\w+)\}")


class Prompt(Settings):
    """Instruction and question of a request."""

    instruction: str = Field(min_length=1)
    """The system message."""
    question: str = Field(min_length=1)
    """The user message, with words in braces to be filled in."""

    @classmethod
    def builtin(cls, name: str) -> "Prompt":
        """A prompt of the package.

        Args:
            name: "tags", "concept" or "relevance".

        Returns:
            the prompt.
        """
        return parse_prompt(name, builtin_text(name), f"{name}.md")

    def filled(self, **values: str) -> tuple[dict[str, str], dict[str, str]]:
        """The two messages of a request.

        Args:
            values: what stands for each word in braces.

        Returns:
            system and user message.
        """
        # One pass: a word in braces inside what is filled in stays as it is.
        question = _BRACES.sub(lambda match: values.get(match[1], match[0]), self.question)
        return ({"role": "system", "content": self.instruction}, {"role": "user", "content": question})


def builtin_text(name: str) -> str:
    """The text of a prompt file of the package.

    Args:
        name: "tags", "concept" or "relevance".

    Returns:
        the text.
    """
    return (files("vitrail.atlas.llm") / "prompts" / f"{name}.md").read_text(encoding="utf-8")


def load_prompts(folder: Path, wanted: Sequence[str]) -> dict[str, Prompt]:
    """The prompts in a folder, each in a file such as `tags.md`.

    Args:
        folder: copies that a user has edited.
        wanted: the prompts that are to be used.

    Returns:
        name → prompt, of those wanted that are there; the package's stand for the others.

    Raises:
        ConfigError: none of them is there, or one is no UTF-8 text, or lacks a part that it must have.
    """
    found = {name: folder / f"{name}.md" for name in wanted if (folder / f"{name}.md").is_file()}
    if not found:
        raise ConfigError(f"{folder}: no prompts there; wanted {' or '.join(f'{name}.md' for name in wanted)}")
    return {name: parse_prompt(name, _read(path), str(path)) for name, path in found.items()}


def parse_prompt(name: str, text: str, where: str) -> Prompt:
    """A prompt from the text of its file.

    Args:
        name: which prompt it is.
        text: instruction, a line `---`, question.
        where: what to call the file in messages.

    Returns:
        the prompt.

    Raises:
        ConfigError: a part or a word in braces is missing.
    """
    instruction, separator, question = text.replace("\r\n", "\n").partition(_SEPARATOR)
    if not separator or not instruction.strip() or not question.strip():
        raise ConfigError(f"{where}: a prompt is an instruction, a line '---' and a question; one of them is missing")
    if missing := [word for word in PLACEHOLDERS[name] if f"{{{word}}}" not in question]:
        raise ConfigError(f"{where}: the question has no {{{missing[0]}}}; write it where that is to stand")
    return Prompt(instruction=instruction.strip(), question=question.strip())


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: cannot be read as UTF-8 text ({error}); mend the file") from error
