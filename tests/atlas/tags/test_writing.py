"""How tags are used: names of things are told from manners and doings by their neighbours alone."""

from vitrail.atlas.tags import Tagger
from vitrail.atlas.tags.writing import tag_table

TEXTS = [
    "They crossed the bridge and fell into the river.",
    "Under the bridge he fell asleep; she fell too.",
    "It was entirely clear that the bridge was very beautiful.",
    "A beautiful view of the bridge. They would fell it entirely.",
    "It was so beautiful, and so entirely theirs, on this river.",
]
TAGS = ("beautiful", "bridge", "brücke", "entirely", "fell", "river")


def _shares(texts: list[str]) -> dict[str, float]:
    tagger = Tagger(TAGS)
    table = tag_table(texts, TAGS, [tagger.tag(text) for text in texts])
    return dict(zip(table.tags, table.noun_share, strict=True))


def test_things_stand_above_manners_and_doings() -> None:
    shares = _shares(TEXTS)
    assert min(shares["bridge"], shares["river"]) > 0.7
    assert max(shares["beautiful"], shares["entirely"], shares["fell"]) < 0.4


def test_a_word_of_another_language_is_neither() -> None:
    """No English neighbour speaks for or against it, so it is not filtered."""
    assert _shares(["Die Brücke fiel. Eine Brücke! Brücke"])["brücke"] == 0.5


def test_a_tag_that_stands_nowhere_is_written_as_it_is() -> None:
    table = tag_table([], TAGS, [])
    assert table.display == TAGS
    assert not any(table.is_name)
