"""The library behind a tokenizer, set up so that nothing a user types is control.

What flows in is the content of a `tokenizer.json`; out come ready `tokenizers` objects and the facts about them
that the library does not tell.
"""

import json
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from tokenizers import Encoding
from tokenizers import Tokenizer as Backend

from vitrail.errors import ArtifactError, ConfigError

__all__ = [
    "Backend",
    "Encoding",
    "continuing",
    "damage_faults",
    "encoding",
    "marked",
    "opened",
    "parsed",
    "start_of_prompt",
    "text_faults",
]


def parsed(file: str) -> dict[str, Any]:
    """The content of a `tokenizer.json`.

    Args:
        file: its text.

    Returns:
        its plain values.

    Raises:
        ArtifactError: not JSON, or without a model.
    """
    with damage_faults():
        content: dict[str, Any] = json.loads(file)
        content["model"]["vocab"]
    return content


def opened(content: Mapping[str, Any], special_ids: Collection[int]) -> Backend:
    """A tokenizer that reads names of control tokens as text.

    Args:
        content: of `tokenizer.json`.
        special_ids: control tokens, whether or not the file flags them.

    Returns:
        the tokenizer, without limits of length.

    Raises:
        ArtifactError: the library does not take the file.
    """
    entries = content.get("added_tokens") or []
    with damage_faults():
        flagged = [{**entry, "special": entry["special"] or entry["id"] in special_ids} for entry in entries]
        changed = {**content, "added_tokens": flagged, "truncation": None, "padding": None}
        backend = Backend.from_str(json.dumps(changed))
    backend.encode_special_tokens = True
    return backend


def continuing(content: Mapping[str, Any], special_ids: Collection[int]) -> Backend | None:
    """The tokenizer for text that does not begin a prompt, where that makes a difference.

    Args:
        content: of `tokenizer.json`.
        special_ids: control tokens.

    Returns:
        one that puts no space before the text; None where the usual one puts one everywhere or nowhere.
    """
    changed = _without_first_space(content.get("pre_tokenizer"))
    if changed == content.get("pre_tokenizer"):
        return None
    backend = opened({**content, "pre_tokenizer": changed}, special_ids)
    backend.post_processor = None
    return backend


def marked(content: Mapping[str, Any], chat_template: str, unknown: str | None) -> frozenset[int]:
    """Ids that a vocabulary or its chat template uses as control tokens.

    Args:
        content: of `tokenizer.json`.
        chat_template: Jinja text, or empty.
        unknown: the piece for what the vocabulary lacks; text may become that.

    Returns:
        added tokens that are flagged as special or written in the template.
    """
    return frozenset(
        int(entry["id"])
        for entry in content.get("added_tokens") or []
        if entry["content"] != unknown
        and (entry["special"] or (entry["content"].strip() and entry["content"] in chat_template))
    )


def start_of_prompt(backend: Backend) -> tuple[int, ...]:
    """What a tokenizer puts before every text.

    Args:
        backend: with its post-processor.

    Returns:
        ids.
    """
    plain, whole = (backend.encode("a", add_special_tokens=added).ids for added in (False, True))
    place = next((n for n in range(len(whole)) if whole[n : n + len(plain)] == plain), 0)
    return tuple(whole[:place])


@contextmanager
def damage_faults() -> Iterator[None]:
    """Say clearly that a `tokenizer.json` is damaged."""
    try:
        yield
    except Exception as error:  # the library raises bare Exception for every fault of the file
        problem = " ".join(f"{type(error).__name__}: {error}".split())
        raise ArtifactError(f"damaged ({problem}); build the tokenizer again, or fetch the file again") from error


@contextmanager
def text_faults() -> Iterator[None]:
    """Say clearly what is wrong with a text that UTF-8 cannot carry."""
    try:
        yield
    except TypeError as error:  # the library's word for it
        raise ConfigError("the text is not valid Unicode (bytes that are not UTF-8?); retype it") from error


def encoding(backend: Backend, text: str) -> Encoding:
    """A text as tokens.

    Args:
        backend: of the tokenizer.
        text: any text.

    Returns:
        ids and offsets.

    Raises:
        ConfigError: not Unicode text.
    """
    with text_faults():
        return backend.encode(text, add_special_tokens=False)


def _without_first_space(part: Any) -> Any:
    if not isinstance(part, Mapping):
        return part
    if part.get("type") == "Sequence":
        return {**part, "pretokenizers": [_without_first_space(inner) for inner in part["pretokenizers"]]}
    return {**part, "prepend_scheme": "never"} if part.get("prepend_scheme") == "first" else part
