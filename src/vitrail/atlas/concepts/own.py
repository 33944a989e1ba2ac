"""Concepts that a person gives: a name, what it means, and, as far as there are, phrases and examples."""

from pydantic import Field

from vitrail.atlas.library import Kind
from vitrail.settings import Settings


class OwnConcept(Settings):
    """A concept that was not found in the corpus but is to be in the atlas."""

    name: str = Field(min_length=1)
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
