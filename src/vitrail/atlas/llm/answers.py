"""What an answer is worth: a JSON object that fits its model, or a fault with a name.

The verdict is a function of the stored reply and the model alone, so an answer from the journal is judged as it was
when it came.
"""

import json
from enum import StrEnum
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from vitrail.atlas.llm.journal import Reply

A = TypeVar("A", bound=BaseModel)

_KEPT = ("type", "properties", "required", "items", "enum", "$ref", "$defs")
"""What every server's schema engine takes; lengths and ranges are checked here."""


class Verdict(StrEnum):
    """How a question ended."""

    answered = "answered"
    empty = "empty"
    """No text, or an answer that says nothing."""
    malformed = "malformed"
    """Not the JSON that was asked for."""
    truncated = "truncated"
    """Ended by the limit of tokens before it was whole."""
    refused = "refused"
    """The model would not answer, or a filter stopped it."""
    rejected = "rejected"
    """The server did not take the request (a 4xx that repeats): too long, or not understood."""
    failed = "failed"
    """No reply after all repeats: no connection, a timeout, a broken or a full server."""


def verdict_of(reply: Reply, answer: type[A]) -> tuple[Verdict, A | None]:
    """What a reply is worth.

    Args:
        reply: of a server.
        answer: the model it must fit; one of which every field is empty says nothing.

    Returns:
        the verdict, and the answer if it is one.
    """
    if reply.refusal or reply.finish == "content_filter":
        return Verdict.refused, None
    text = _without_thinking(reply.text)
    fault = Verdict.truncated if reply.finish == "length" else Verdict.malformed
    if not text:
        return (fault if reply.finish == "length" else Verdict.empty), None
    found = text[text.find("{") : text.rfind("}") + 1]
    try:
        value = json.loads(found, strict=False)
        json.dumps(value, ensure_ascii=False).encode()  # half of a pair of surrogates is no text
        parsed = answer.model_validate(value)
    except (ValueError, ValidationError, RecursionError):
        return fault, None
    return (Verdict.empty, None) if _says_nothing(parsed) else (Verdict.answered, parsed)


def schema_of(answer: type[BaseModel]) -> dict[str, Any]:
    """The JSON schema that is sent: closed objects, all fields required, nothing a server may not know.

    Args:
        answer: the model of an answer.

    Returns:
        the schema.
    """
    return _plain_schema(answer.model_json_schema())


def _without_thinking(text: str) -> str:
    """What stands after the last thought; the prompt may have opened it, and the limit may have cut it off."""
    return text.rpartition("</think>")[2].partition("<think>")[0].strip()


def _plain_schema(schema: dict[str, Any]) -> dict[str, Any]:
    plain = {key: value for key, value in schema.items() if key in _KEPT}
    for group in ("properties", "$defs"):
        if group in plain:
            plain[group] = {name: _plain_schema(inner) for name, inner in plain[group].items()}
    if "items" in plain:
        plain["items"] = _plain_schema(plain["items"])
    if "properties" in plain:
        plain |= {"required": list(plain["properties"]), "additionalProperties": False}
    return plain


def _says_nothing(answer: BaseModel) -> bool:
    values = [value for _, value in answer]
    return all(value is None or (isinstance(value, str | list | tuple) and not value) for value in values)
