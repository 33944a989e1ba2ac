"""Concepts that a person gives: a name, what it means, and, as far as there are, phrases and examples."""

import unicodedata
from typing import Annotated

from pydantic import AfterValidator

from vitrail.atlas.library import Kind
from vitrail.settings import Settings


def _on_one_line(text: str) -> str:
    is_plain = all(unicodedata.category(sign) not in ("Cc", "Zl", "Zp") for sign in text)
    if not text.strip() or not is_plain:
        raise ValueError("must be words on one line, without control characters")
    return text


def _is_text(text: str) -> str:
    if any(unicodedata.category(sign) == "Cs" for sign in text):  # YAML reads them from \\ud83d and the like
        raise ValueError("holds half of a pair of surrogates; write the sign itself instead of its escape")
    return text


def _says_something(text: str) -> str:
    if not text.strip():
        raise ValueError("must not be blank")
    return text


def plain_line(text: str) -> str:
    """A name or description as somebody else wrote it, on one line.

    Args:
        text: any text.

    Returns:
        the text without signs that a terminal would obey, one blank between words.
    """
    return " ".join("".join(sign if sign.isprintable() else " " for sign in text).split())


OneLine = Annotated[str, AfterValidator(_is_text), AfterValidator(_on_one_line)]
"""A name or a tag: not blank, without line breaks and other control characters."""
Text = Annotated[str, AfterValidator(_is_text)]
"""A description; may be empty."""
Filled = Annotated[Text, AfterValidator(_says_something)]
"""A phrase or an example."""


class OwnConcept(Settings):
    """A concept that was not found in the corpus but is to be in the atlas."""

    name: OneLine
    """Unique in the library."""
    kind: Kind = "content"
    """Which head it belongs to."""
    description: Text = ""
    """One line on what it means."""
    phrases: tuple[Filled, ...] = ()
    """Phrases that mark it where they stand in a text."""
    examples: tuple[Filled, ...] = ()
    """Texts that carry it."""
    counterexamples: tuple[Filled, ...] = ()
    """Texts that do not, though one could think so."""
