"""What people decide about the concepts of an atlas: a small YAML file that every rebuild applies again.

A *decision* renames, merges, splits, forbids or adds a concept. It points at a concept by an *anchor*, its name and a
few of its tags: a rebuild on changed text may find the same concept under another name, and the tags still tell
which it is. Decisions are applied in order, each to what the ones before it left, so that a concept that one entry
renames is called by its new name in the next. Two entries that both use up one name contradict each other and are
refused when the file is read.
"""

import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, field_validator, model_validator

from vitrail.atlas.concepts.own import OneLine, OwnConcept, Text
from vitrail.atlas.library import Kind
from vitrail.errors import ConfigError, nearest
from vitrail.settings import Settings, read_yaml


class Anchor(Settings):
    """Which concept is meant; a bare name may stand for it in a file."""

    name: OneLine
    """Its name when the decision was taken."""
    tags: tuple[OneLine, ...] = ()
    """A few of its member tags: half of them find it again under another name."""

    @model_validator(mode="before")
    @classmethod
    def _from_name(cls, value: Any) -> Any:
        return {"name": value} if isinstance(value, str) else value


class Part(Settings):
    """One part of a split concept."""

    name: OneLine
    """Name of the new concept."""
    tags: tuple[OneLine, ...] = Field(min_length=1)
    """Member tags that go to it."""


class Rename(Settings):
    """Another name, description or kind for a concept."""

    action: Literal["rename"] = "rename"
    concept: Anchor
    """Which one."""
    name: OneLine | None = None
    """Its new name; none keeps the old one."""
    description: Text | None = None
    """Its new description; none keeps the old one, or writes anew one that was made of the name and tags."""
    kind: Kind | None = None
    """Its new kind; none keeps the old one."""

    @model_validator(mode="after")
    def _says_something(self) -> "Rename":
        if self.name in (None, self.concept.name) and self.description is None and self.kind is None:
            raise ValueError("changes nothing; give a new name, a description or a kind")
        return self


class Merge(Settings):
    """One concept in place of several."""

    action: Literal["merge"] = "merge"
    concepts: tuple[Anchor, ...] = Field(min_length=2)
    """Which ones."""
    name: OneLine
    """Name of what they become."""
    description: Text | None = None
    """Its description; none has it written anew."""


class Split(Settings):
    """Several concepts in place of one."""

    action: Literal["split"] = "split"
    concept: Anchor
    """Which one."""
    into: int | None = Field(default=None, ge=2)
    """Number of parts, found by the closeness of the tags."""
    parts: tuple[Part, ...] = ()
    """Parts by listed tags; a member tag that is in no list goes to the closest part."""

    @field_validator("parts")
    @classmethod
    def _tags_stand_once(cls, parts: tuple[Part, ...]) -> tuple[Part, ...]:
        tags = [folded(tag) for part in parts for tag in part.tags]
        if twice := sorted({tag for tag in tags if tags.count(tag) > 1}):
            raise ValueError(f"tag '{twice[0]}' stands in two parts; keep one")
        return parts

    @model_validator(mode="after")
    def _says_how(self) -> "Split":
        if (self.into is None) == (len(self.parts) < 2) or (self.into is not None and self.parts):
            raise ValueError("needs either 'into' (a number) or at least two 'parts' (each a name and tags)")
        return self


class Forbid(Settings):
    """A concept that is not to be in the atlas; where it is not found, nothing is left to do."""

    action: Literal["forbid"] = "forbid"
    concept: Anchor
    """Which one."""


class Add(Settings):
    """A concept of one's own."""

    action: Literal["add"] = "add"
    concept: OwnConcept
    """What it is."""


Decision = Annotated[Rename | Merge | Split | Forbid | Add, Field(discriminator="action")]
_FORMS: dict[str, type[Settings]] = {
    "rename": Rename,
    "merge": Merge,
    "split": Split,
    "forbid": Forbid,
    "add": Add,
}


class Decisions(Settings):
    """All decisions about an atlas, in the order in which they are applied."""

    decisions: tuple[Decision, ...] = ()
    """The entries."""
    when_gone: Literal["stop", "skip"] = "stop"
    """What a build does about entries whose concepts are gone: stop and name them, or pass them over and name them."""

    @model_validator(mode="after")
    def _agree(self) -> "Decisions":
        _refuse_conflicts(self.decisions)
        return self


def load_decisions(path: Path) -> Decisions:
    """Read a file of decisions.

    Args:
        path: YAML with a list of entries, `decisions`, and perhaps `when_gone` (see docs/atlas-edit.md).

    Returns:
        the decisions.

    Raises:
        ConfigError: not readable, a wrong entry (named by number), or entries that contradict each other.
    """
    return parse_decisions(read_yaml(path), str(path))


def parse_decisions(values: dict[str, Any], where: str) -> Decisions:
    """Decisions from plain values.

    Args:
        values: what the YAML file holds.
        where: what to call it in messages.

    Returns:
        the decisions.

    Raises:
        ConfigError: a wrong entry, or entries that contradict each other.
    """
    entries = values.get("decisions", ()) or ()
    if isinstance(entries, list | tuple):
        entries = [_parse_entry(entry, f"{where}: decision {i}") for i, entry in enumerate(entries, 1)]
    return Decisions.parse({**values, "decisions": entries}, where)


def title(number: int, decision: Decision) -> str:
    """What an entry is called in messages.

    Args:
        number: its place in the file, from 1.
        decision: the entry.

    Returns:
        text such as `decision 3 (rename 'flow')`.
    """
    names = " + ".join(f"'{name}'" for name in names_used(decision)) or f"'{names_made(decision)[0]}'"
    return f"decision {number} ({decision.action} {names})"


def names_used(decision: Decision) -> list[str]:
    """Names of the concepts that an entry points at.

    Args:
        decision: the entry.

    Returns:
        names as written; none for an added concept.
    """
    if isinstance(decision, Add):
        return []
    anchors = decision.concepts if isinstance(decision, Merge) else (decision.concept,)
    return [anchor.name for anchor in anchors]


def names_made(decision: Decision) -> list[str]:
    """Names that there are after an entry because of it.

    Args:
        decision: the entry.

    Returns:
        names as written; none for a forbidden concept and for parts that are only counted.
    """
    match decision:
        case Rename():
            return [decision.name or decision.concept.name]
        case Merge():
            return [decision.name]
        case Split():
            return [part.name for part in decision.parts]
        case Add():
            return [decision.concept.name]
        case Forbid():
            return []


def folded(text: str) -> str:
    """A name or tag without differences of case, width and white space.

    Args:
        text: as written.

    Returns:
        the form in which names and tags are compared.
    """
    return " ".join(unicodedata.normalize("NFKC", text).casefold().split())


def _parse_entry(entry: Any, where: str) -> Settings:
    if not isinstance(entry, dict) or "action" not in entry:
        raise ConfigError(f"{where}: no action; write one of {', '.join(_FORMS)}, as in `action: rename`")
    form = _FORMS.get(str(entry["action"]))
    if form is None:
        hint = nearest(str(entry["action"]), _FORMS) or f"; known: {', '.join(_FORMS)}"
        raise ConfigError(f"{where}: unknown action '{entry['action']}'{hint}")
    return form.parse(entry, f"{where} ({entry['action']})")


def _refuse_conflicts(decisions: Iterable[Decision]) -> None:
    """Follow the names through the entries: one that is used up or taken cannot be used or given again."""
    used_up: dict[str, str] = {}
    given: set[str] = set()
    added: set[str] = set()
    for number, decision in enumerate(decisions, 1):
        this = title(number, decision)
        used = [folded(name) for name in names_used(decision)]
        for name in _repeated(used):
            raise ValueError(f"{this} names '{name}' twice; name each concept once")
        for name in used:
            if name in used_up:
                raise ValueError(f"{used_up[name]} and {this} contradict each other; keep one of them")
            if name in added:
                raise ValueError(f"{this}: '{name}' is added in this file; change that entry instead")
        given -= set(used)
        used_up.update(dict.fromkeys(used, this))
        for name in map(folded, names_made(decision)):
            if name in given:
                raise ValueError(f"{this} gives the name '{name}' a second time; choose another name")
            used_up.pop(name, None)
            given.add(name)
            if isinstance(decision, Add):
                added.add(name)


def _repeated(names: Sequence[str]) -> Iterator[str]:
    return (name for i, name in enumerate(names) if name in names[:i])
