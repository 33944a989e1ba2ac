"""Concepts that a person gives: a name, what it means, and, as far as there are, phrases and examples."""

from typing import Annotated

from pydantic import AfterValidator

from vitrail.atlas.library import Kind
from vitrail.settings import Settings


def _on_one_line(text: str) -> str:
    if not text.strip() or len(text.splitlines()) > 1:
        raise ValueError("must be words on one line")
    return text


OneLine = Annotated[str, AfterValidator(_on_one_line)]
"""A name or a tag: not blank, without line breaks."""


class OwnConcept(Settings):
    """A concept that was not found in the corpus but is to be in the atlas."""

    name: OneLine
    """Unique in the library."""
    kind: Kind = "content"
    """Which head it belongs to."""
    description: str = ""
    """One line on what it means."""
    phrases: tuple[str, ...] = ()
    """Phrases that mark it where they stand in a text."""
    examples: tuple[str, ...] = ()
    """Texts that carry it."""
    counterexamples: tuple[str, ...] = ()
    """Texts that do not, though one could think so."""
