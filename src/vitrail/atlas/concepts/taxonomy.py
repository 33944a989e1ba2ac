"""The taxonomy: a tree of subjects in which every concept has its place (§4.2.2).

Classes and letters follow the Library of Congress Classification (S: the paper's tree is derived from it); captions,
scope words and class X, for what is not a subject (tone, groups of people, conduct of assistants), are our own (C).
The tree is a readable file, `data/taxonomy.yaml`. A path is the labels from a main class down, such as
("Q Science", "QA Mathematics and computing", "QA76 Computing").
"""

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from importlib.resources import files
from pathlib import Path
from typing import Any

import yaml

from vitrail.atlas.library import Card
from vitrail.errors import ConfigError, nearest

OTHER_CLASS = "X"
"""Main class of what is no subject."""
UNPLACED = "no place"


@dataclass(frozen=True)
class Place:
    """A class of the tree.

    Attributes:
        code: letters and number, such as "QA76".
        caption: what it is called.
        scope: words for what belongs there.
        path: labels from the main class to this one.
        is_leaf: whether it has no parts.
    """

    code: str
    caption: str
    scope: str
    path: tuple[str, ...]
    is_leaf: bool

    @property
    def depth(self) -> int:
        """1 for a main class."""
        return len(self.path)


@dataclass(frozen=True)
class Branch:
    """A class of the tree with what lies in it.

    Attributes:
        label: code and caption.
        cards: concepts in the class and its parts, most frequent first.
        parts: classes below that hold a concept.
    """

    label: str
    cards: tuple[Card, ...]
    parts: "tuple[Branch, ...]"

    @property
    def num_labels(self) -> int:
        """Labels of its concepts, over the chunks that the atlas was built from."""
        return sum(card.num_chunks for card in self.cards)


class Taxonomy:
    """The classes, in the order of the file."""

    def __init__(self, places: Sequence[Place]):
        """Hold classes.

        Args:
            places: each after the class that it is part of.

        Raises:
            ConfigError: two classes have one code.
        """
        self.places = tuple(places)
        count = Counter(place.code for place in places)
        if twice := [code for code, n in count.items() if n > 1]:
            raise ConfigError(f"taxonomy: code '{twice[0]}' stands at two classes; give each its own")

    @classmethod
    def load(cls, path: Path | None = None) -> "Taxonomy":
        """Read a tree.

        Args:
            path: a YAML file like the one that comes with the package; None reads that one.

        Returns:
            the tree.

        Raises:
            ConfigError: not readable, or not of that form.
        """
        source = path or files("vitrail.atlas.concepts") / "data" / "taxonomy.yaml"
        try:
            return cls(list(_places(yaml.safe_load(source.read_text(encoding="utf-8")), ())))
        except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
            problem = " ".join(str(error).split())
            raise ConfigError(f"{source}: not a readable tree of classes ({problem})") from error

    def find(self, code: str) -> Place:
        """One class.

        Args:
            code: such as "QA76", whatever its case.

        Returns:
            the class.

        Raises:
            ConfigError: no such code; the nearest ones are named.
        """
        place = self._by_code.get(code.upper())
        if place is None:
            hint = nearest(code, self._by_code) or f"; main classes: {', '.join(p.code for p in self.main)}"
            raise ConfigError(f"taxonomy: no class has the code '{code}'{hint}")
        return place

    @cached_property
    def main(self) -> tuple[Place, ...]:
        """The main classes."""
        return tuple(place for place in self.places if place.depth == 1)

    @cached_property
    def _by_code(self) -> Mapping[str, Place]:
        return {place.code.upper(): place for place in self.places}


def branch_of(cards: Sequence[Card], path: Sequence[str] = ()) -> Branch:
    """Concepts by class, below one class or all.

    Args:
        cards: of known concepts; only their paths are read, so that any tree can be shown.
        path: labels of the class; empty for the whole tree.

    Returns:
        the class with its parts, in the order of their codes; concepts without a path stand under "no place".
    """
    depth = len(path)
    inside = [card for card in cards if _path(card)[:depth] == tuple(path)]
    labels = {_path(card)[depth] for card in inside if len(_path(card)) > depth}
    return Branch(
        label=path[-1] if path else "all",
        cards=tuple(sorted(inside, key=lambda card: (-card.num_chunks, card.concept_id))),
        parts=tuple(branch_of(inside, (*path, label)) for label in sorted(labels, key=_order)),
    )


def path_of_code(cards: Sequence[Card], code: str) -> tuple[str, ...]:
    """The path of a class that some cards lie in.

    Args:
        cards: with paths.
        code: of the class, such as "QA", whatever its case.

    Returns:
        labels from the main class down.

    Raises:
        ConfigError: no card lies there; the nearest codes are named.
    """
    paths = {label.partition(" ")[0].upper(): card.path[: i + 1] for card in cards for i, label in enumerate(card.path)}
    if code.upper() not in paths:
        hint = nearest(code, paths) or "; `vitrail atlas tree` without --branch shows those there are"
        raise ConfigError(f"taxonomy: no concept lies in a class '{code}'{hint}")
    return paths[code.upper()]


def _order(label: str) -> tuple[bool, str, float, str]:
    """Codes as on a shelf: letters, then the number by its size."""
    match = re.match(r"([A-Z]+)(\d*(?:\.\d+)?) ", label)
    return (False, match[1], float(match[2] or -1), label) if match else (True, "", 0.0, label)


def _path(card: Card) -> tuple[str, ...]:
    return card.path or (UNPLACED,)


def _places(parts: Any, above: tuple[str, ...]) -> Iterator[Place]:
    where = f"taxonomy, below '{above[-1]}'" if above else "taxonomy"
    if not isinstance(parts, dict):
        raise ConfigError(f"{where}: expected `CODE Caption: scope words` for each class, got {parts!r}")
    for label, value in parts.items():
        code, blank, caption = str(label).partition(" ")
        inner = value if isinstance(value, dict) else {"about": value}
        if not blank or not isinstance(inner.get("about"), str) or inner.keys() - {"about", "parts"}:
            raise ConfigError(
                f"{where}: class '{label}' needs a code, a caption and scope words (or `about` and `parts`)"
            )
        path = (*above, str(label))
        yield Place(code, caption, inner["about"], path, is_leaf="parts" not in inner)
        if "parts" in inner:
            yield from _places(inner["parts"], path)
