"""Control tokens: what has a meaning of its own, and is never made from a user's text.

Their names differ between models, so a model's `config.json` says which ids they are. Our own tokenizers and the
released one use the names below.
"""

import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import astuple, dataclass
from typing import Any

PAD, BOS, EOS, EOC, MASK = "<|pad|>", "<|bos|>", "<|endoftext|>", "<|endofchunk|>", "<|mask|>"
SPECIALS = (PAD, BOS, EOS, EOC, MASK)

Part = int | str
"""A piece of a prompt: the id of a control token, or text."""


@dataclass(frozen=True)
class ControlIds:
    """Ids of the control tokens of a model.

    Attributes:
        pad: padding.
        bos: start of a document.
        eos: end of a document.
        eoc: end of a chunk.
        mask: a masked place.
        start_header: before the role of a message; None where the model has no roles.
        end_header: after it.
        eot: end of a message.
    """

    pad: int
    bos: int
    eos: int
    eoc: int
    mask: int
    start_header: int | None = None
    end_header: int | None = None
    eot: int | None = None

    @property
    def ids(self) -> frozenset[int]:
        """All that are there."""
        return frozenset(token_id for token_id in astuple(self) if token_id is not None)


def controls_by_name(vocabulary: Mapping[str, int]) -> ControlIds | None:
    """The control ids of a vocabulary that uses our names.

    Args:
        vocabulary: piece → id.

    Returns:
        the ids; None where a name is missing.
    """
    if any(name not in vocabulary for name in SPECIALS):
        return None
    return ControlIds(*(vocabulary[name] for name in SPECIALS))


def control_splitter(
    names: Mapping[str, int], added: Mapping[int, Any], wanted: Collection[int]
) -> Callable[[str], list[Part]]:
    """A function that finds control tokens by their names in a text.

    Args:
        names: name → id.
        added: id → the tokenizer's entry of the token, which says whether white space beside it belongs to it.
        wanted: ids to find.

    Returns:
        a function from text to its parts; no part is an empty text.
    """
    entries = {name: added.get(token_id) for name, token_id in names.items() if token_id in wanted}
    longest_first = sorted(entries, key=len, reverse=True)
    pattern = re.compile("|".join(_pattern(name, entries[name]) for name in longest_first) or r"(?!)")

    def split(text: str) -> list[Part]:
        parts: list[Part] = []
        end = 0
        for found in pattern.finditer(text):
            parts += [text[end : found.start()], names[found[found.lastindex or 0]]]
            end = found.end()
        return [part for part in (*parts, text[end:]) if part != ""]

    return split


def _pattern(name: str, entry: Any) -> str:
    before = r"\s*" if entry is not None and entry.lstrip else ""
    after = r"\s*" if entry is not None and entry.rstrip else ""
    return f"{before}({re.escape(name)}){after}"
