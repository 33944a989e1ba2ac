"""Conversations as packed documents: what the chat template writes, with the assistant's answers marked (§10, SFT).

A line of JSONL holds `messages` (each `role` and `content`), or `prompt` and `response`. The end of a document follows
each conversation, so that several can share a sequence. It ends the last answer of a model without a template.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from vitrail.corpus import Split, document_id, jsonl_lines, split_of
from vitrail.errors import ConfigError, CorpusError
from vitrail.packed.settings import PackSettings
from vitrail.packed.units import Answer, Dropped, PackedDocument, Unit
from vitrail.text import Message, Tokenizer

_ROLES = ("system", "user", "assistant")
CONVERSATION_SUFFIXES = (".jsonl", ".jsonl.gz", ".jsonl.zst")


@dataclass(frozen=True)
class Line:
    """A line of a file of conversations, as it was read."""

    number: int
    content: bytes


def is_conversations(path: Path) -> bool:
    """Whether a path names a file of conversations, and not a directory.

    Args:
        path: what is to be packed.

    Returns:
        true for `.jsonl`, `.jsonl.gz` and `.jsonl.zst`.
    """
    return path.name.lower().endswith(CONVERSATION_SUFFIXES) and not path.is_dir()


def windows(path: Path, size: int) -> Iterator[list[Line]]:
    """A file of conversations in windows.

    Args:
        path: the file.
        size: lines of a window; blank ones are left out.

    Yields:
        windows, in order.

    Raises:
        CorpusError: it cannot be read, or is torn.
    """
    lines = (Line(number, content) for number, content in enumerate(jsonl_lines(path), 1) if content.strip())
    while window := list(islice(lines, size)):
        yield window


class ConversationWindows:
    """Reads conversations and writes them with a chat template."""

    def __init__(self, path: Path, tokenizer: Tokenizer, settings: PackSettings) -> None:
        """Set up.

        Args:
            path: the file, for messages.
            tokenizer: that of the model that will be trained.
            settings: of the packing.
        """
        self._path, self._tokenizer, self._settings = path, tokenizer, settings

    def documents(self, window: Sequence[Line]) -> Iterator[PackedDocument]:
        """The conversations of a window, encoded.

        Args:
            window: lines.

        Yields:
            one document per conversation.

        Raises:
            ConfigError: a conversation does not fit a sequence, or the template refuses it.
            CorpusError: a line is no conversation.
        """
        for line in window:
            where = f"{self._path}, line {line.number}"
            record = _record(line.content, where)
            try:
                unit = self._unit(_messages(record, where))
            except ConfigError as error:
                raise ConfigError(f"{where}: {error}") from error
            split = _split(record)
            group = self._group(record, where)
            if len(unit.tokens) <= self._settings.length:
                yield PackedDocument(split, group, [unit])
                continue
            reason = f"{where}: a conversation of {len(unit.tokens)} tokens"
            if self._settings.long_chunks == "error":
                raise ConfigError(f"{reason}, a sequence holds {self._settings.length}; set length or long_chunks")
            yield PackedDocument(split, group, [], (Dropped(f"{self._path.name}:{line.number}", reason),))

    def _unit(self, messages: Sequence[Message]) -> Unit:
        turns = self._tokenizer.chat_turns(messages)
        said = [message["content"] for message in messages if message["role"] == "assistant"]
        if not self._tokenizer.has_chat_template:
            _require_roles(messages)  # a template refuses what it does not know
            turns[-1] = (self._tokenizer.encode(said[-1]), True)  # without the blank line that no one asks for
        ids: list[int] = []
        spans: list[tuple[int, int]] = []
        for turn, is_answer in turns:
            if is_answer:
                spans.append((len(ids), len(ids) + len(turn)))
            ids += turn
        if ids[-1] != self._tokenizer.eos_id:
            ids.append(self._tokenizer.eos_id)
        if not self._tokenizer.has_chat_template:
            spans[-1] = (spans[-1][0], len(ids))
        answers = [Answer(*span, len(text.encode())) for span, text in zip(spans, said, strict=True)]
        return Unit(np.array(ids, np.uint32), answers=tuple(answers))

    def _group(self, record: Mapping[str, Any], where: str) -> str:
        if self._settings.group_by == "none":
            return ""
        group = record.get(self._settings.group_by)
        if not isinstance(group, str):
            raise CorpusError(f"{where}: no '{self._settings.group_by}' to group by; add it, or leave group_by out")
        return group


def _record(content: bytes, where: str) -> dict[str, Any]:
    try:
        record = json.loads(content)
    except (ValueError, RecursionError) as error:
        problem = " ".join(str(error).split())
        raise CorpusError(f"{where}: not JSON in UTF-8 ({problem}); mend the line or remove it") from error
    if not isinstance(record, dict):
        raise CorpusError(f'{where}: not a JSON object; write {{"messages": [...]}}, or remove it')
    return record


def _messages(record: Mapping[str, Any], where: str) -> Sequence[Message]:
    """The conversation up to its last answer."""
    given = record.get("messages")
    if given is None and {"prompt", "response"} <= record.keys():
        given = [
            {"role": "user", "content": record["prompt"]},
            {"role": "assistant", "content": record["response"]},
        ]
    if not isinstance(given, list) or not all(isinstance(message, dict) for message in given):
        raise CorpusError(f"{where}: neither 'messages' (a list of objects) nor 'prompt' and 'response'; mend the line")
    messages = [{key: value for key, value in message.items() if value is not None} for message in given]
    for number, message in enumerate(messages):
        if message.keys() != {"role", "content"} or not all(isinstance(value, str) for value in message.values()):
            raise CorpusError(
                f"{where}: message {number} has {sorted(message)}, wanted 'role' and 'content', both texts; mend it"
            )
        if message["role"] == "assistant" and not message["content"].strip():
            raise CorpusError(f"{where}: message {number} is an empty answer; fill it or remove the line")
    answers = [number for number, message in enumerate(messages) if message["role"] == "assistant"]
    if not answers:
        raise CorpusError(f"{where}: no message of the assistant, so nothing to learn; add one or remove the line")
    return messages[: answers[-1] + 1]


def _require_roles(messages: Sequence[Message]) -> None:
    for number, message in enumerate(messages):
        if message["role"] not in _ROLES:
            raise ConfigError(
                f"message {number} has the role '{message['role']}', a model without a chat template knows "
                f"{', '.join(_ROLES)}; mend it or remove the line"
            )


def _split(record: Mapping[str, Any]) -> Split:
    """As of documents, by a hash of what is in the record; there is no judge of conversations to keep any for."""
    split = split_of(document_id(json.dumps(record, sort_keys=True), ""))
    return "heldout" if split == "heldout" else "train"
