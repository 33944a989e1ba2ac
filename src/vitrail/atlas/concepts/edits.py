"""Taking decisions on a built atlas: checked against its concepts, then written at the end of the file.

The atlas may be older than the file, or may have been built with it. So the entries that are in the file are first
played through, by name, on the concepts of the atlas; those whose names are gone have been carried out. A new
entry is checked against what that leaves. The file is replaced whole, its comments and old entries untouched.
"""

import re
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from textwrap import indent
from typing import Any, Literal, get_args

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import yaml
from jaxtyping import Float32

from vitrail.artifacts import atomic_write_bytes, read_manifest, write_faults_are_clear
from vitrail.artifacts.stage import locked
from vitrail.atlas.annotator.storing import TAGS_NAME
from vitrail.atlas.concepts.applying import Decided, Draft, find_draft, step
from vitrail.atlas.concepts.decisions import (
    Add,
    Anchor,
    Decision,
    Decisions,
    Forbid,
    Merge,
    Rename,
    Split,
    folded,
    load_decisions,
    names_made,
    names_used,
    parse_decisions,
    title,
)
from vitrail.atlas.concepts.own import OwnConcept
from vitrail.atlas.library import ConceptLibrary, Kind
from vitrail.errors import ArtifactError, ConceptNotFound, ConfigError
from vitrail.settings import read_yaml

ANCHOR_TAGS = 6
HEADER = "# Decisions about the concepts of an atlas, applied in this order by `vitrail atlas build --decisions`.\n"
Status = Literal["pending", "done", "gone"]


@dataclass(frozen=True)
class Entry:
    """One decision, seen from an atlas.

    Attributes:
        number: its place in the file, from 1.
        decision: what it says.
        status: `pending`: the next build carries it out; `done`: the atlas shows what it asks for; `gone`: neither.
    """

    number: int
    decision: Decision
    status: Status


def concepts_of(atlas: Path) -> Decided:
    """The concepts of a built atlas, as decisions see them.

    Args:
        atlas: an atlas directory.

    Returns:
        found concepts with their tags, those first that stand in most chunks; and concepts given by people.

    Raises:
        ArtifactError: not an atlas, damaged, or one that no build makes again.
    """
    if read_manifest(atlas, "atlas").settings.get("given"):
        raise ArtifactError(
            f"{atlas}: its concepts come from a table of labels; change that table and import it again "
            "(vitrail atlas import)"
        )
    tags = _tags_by_concept(atlas)
    cards = [card for card in ConceptLibrary.load(atlas).cards if card.head == "known"]
    drafts = [
        Draft(tags[card.concept_id], card.name, card.description, _kind(card.kind), card.is_automatic)
        for card in cards
        if card.concept_id in tags
    ]
    own = [
        OwnConcept(name=card.name, kind=_kind(card.kind), description=card.description)
        for card in cards
        if card.concept_id not in tags
    ]
    return Decided(tuple(drafts), tuple(own))


def edit(path: Path, atlas: Path, values: dict[str, Any]) -> Decision:
    """Check one more decision against an atlas and write it at the end of a file.

    Args:
        path: the file of decisions; made if there is none.
        atlas: an atlas directory.
        values: the entry as it would stand in the file, concepts by name.

    Returns:
        the entry as written: names as in the atlas, with tags that find the concept again.

    Raises:
        ConceptNotFound: no concept of that name.
        ConfigError: an entry that does not fit the atlas or the other entries, or a file that cannot be added to.
        ArtifactError: not an atlas, or a place that cannot be written to.
        RunFailed: the disk is full, or another process is editing the file.
    """
    with write_faults_are_clear(path), locked(path.with_name(f".{path.name}.lock"), path):
        text = _read(path)
        old = load_decisions(path) if text else Decisions()
        (entry,) = parse_decisions({"decisions": [values]}, "this decision").decisions
        _together(old, entry, path)
        state = _played(old, concepts_of(atlas))
        this = title(len(old.decisions) + 1, entry)
        entry = _anchored(entry, state, this)
        step(state, entry, this, _apart)
        atomic_write_bytes(path, _appended(path, text, entry, _together(old, entry, path)).encode())
    return entry


def entries(path: Path, atlas: Path) -> list[Entry]:
    """The decisions of a file, and how they stand to an atlas.

    Args:
        path: the file.
        atlas: an atlas directory.

    Returns:
        the entries in their order.

    Raises:
        ConfigError: the file is missing or wrong.
        ArtifactError: not an atlas.
    """
    decisions = load_decisions(path)
    state = concepts_of(atlas)
    there, out = _names(state), []
    for number, decision in enumerate(decisions.decisions, 1):
        after = _try(state, decision, number)
        if after is None:
            status: Status = "done" if _is_done(decision, state) else "gone"
        else:
            status = "done" if after == state else "pending"
            state = after
        out.append(Entry(number, decision, status))
    return _chained(out, there)


def _chained(found: Sequence[Entry], there: set[str]) -> list[Entry]:
    """Entries whose concepts a later one took up are done too, as the first of two merges, one into the other."""
    taken_up: set[str] = set()
    out: list[Entry] = []
    for entry in reversed(found):
        made = {folded(name) for name in names_made(entry.decision)}
        if entry.status == "gone" and made and made <= there | taken_up:
            entry = replace(entry, status="done")
        if entry.status == "done":
            taken_up |= {folded(name) for name in names_used(entry.decision)}
        out.append(entry)
    return out[::-1]


def _tags_by_concept(atlas: Path) -> dict[int, tuple[str, ...]]:
    try:
        tags = pq.read_table(atlas / TAGS_NAME, columns=["tag", "num_chunks", "concept_id"]).to_pylist()
    except (pa.ArrowException, OSError, KeyError) as error:
        problem = " ".join(str(error).split())
        raise ArtifactError(f"{atlas}: no table of its tags ({problem}); build the atlas again") from error
    found = defaultdict[int, list[str]](list)
    for row in sorted(tags, key=lambda row: (-row["num_chunks"], row["tag"])):
        if row["concept_id"] is not None:
            found[row["concept_id"]].append(row["tag"])
    return {concept_id: tuple(members) for concept_id, members in found.items()}


def _together(old: Decisions, entry: Decision, path: Path) -> Decisions:
    entries = [_plain(one) for one in (*old.decisions, entry)]
    return parse_decisions({"when_gone": old.when_gone, "decisions": entries}, str(path))


def _kind(word: str) -> Kind:
    return next((kind for kind in get_args(Kind) if kind == word), "content")


def _played(decisions: Decisions, state: Decided) -> Decided:
    for number, decision in enumerate(decisions.decisions, 1):
        state = _try(state, decision, number) or state
    return state


def _try(state: Decided, decision: Decision, number: int) -> Decided | None:
    """Concepts after an entry, None where a concept of its is not there by name, or its new name is."""
    there = _names(state)
    if any(folded(name) not in there for name in names_used(decision)):
        return None
    if isinstance(decision, Add) and folded(decision.concept.name) in there:
        return None
    this = title(number, decision)
    try:
        if isinstance(decision, Split) and decision.into:  # what its parts are called shows when they are built
            chosen = find_draft(decision.concept, state, this)
            return Decided((*state.drafts[:chosen], *state.drafts[chosen + 1 :]), state.own)
        return step(state, decision, this, _apart)
    except (ConceptNotFound, ConfigError):
        return None


def _is_done(decision: Decision, state: Decided) -> bool:
    there = _names(state)
    if isinstance(decision, Forbid):
        return True
    if isinstance(decision, Split) and decision.into:
        return any(name.startswith(folded(decision.concept.name) + ": ") for name in there)
    return all(folded(name) in there for name in names_made(decision))


def _names(state: Decided) -> set[str]:
    return {draft.folded_name for draft in state.drafts} | {folded(concept.name) for concept in state.own}


def _apart(tags: Sequence[str]) -> Float32[np.ndarray, "n n"]:
    """Tags that are all equally far from each other: enough to see whether an entry can be carried out."""
    return np.eye(len(tags), dtype=np.float32)


def _anchored(decision: Decision, state: Decided, this: str) -> Decision:
    """The entry with anchors as the atlas has them: its writing of the name, and tags that find it again."""
    match decision:
        case Add():
            return decision
        case Merge():
            anchors = tuple(_anchor(anchor, state, this) for anchor in decision.concepts)
            return decision.model_copy(update={"concepts": anchors})
        case Rename() | Split() | Forbid():
            return decision.model_copy(update={"concept": _anchor(decision.concept, state, this)})


def _anchor(given: Anchor, state: Decided, this: str) -> Anchor:
    own = {folded(concept.name): concept.name for concept in state.own}
    if folded(given.name) in own:
        return Anchor(name=own[folded(given.name)])
    draft = state.drafts[find_draft(given, state, this)]
    return Anchor(name=draft.name, tags=draft.members[:ANCHOR_TAGS])


def _plain(decision: Decision) -> dict[str, Any]:
    """An entry as it stands in a file: what is not set is left out."""
    values = decision.model_dump(mode="json", exclude_defaults=True)
    return {"action": decision.action, **values}


def _read(path: Path) -> str:
    if not path.exists():
        return ""
    read_yaml(path)  # says what is wrong with the file
    return path.read_bytes().decode("utf-8")  # with its own line ends


def _appended(path: Path, text: str, entry: Decision, expected: Decisions) -> str:
    """The file's text with one more entry; what was written by hand stays as it is."""
    text = re.sub(r"^decisions:[ \t]*\[\s*\]", "decisions:", text or HEADER, flags=re.MULTILINE).rstrip() + "\n"
    if not re.search(r"^decisions:", text, re.MULTILINE):
        text += "decisions:\n"
    item = re.search(r"^( *)- action:", text, re.MULTILINE)
    text += indent(_block(entry), item.group(1) if item else "")
    try:
        is_as_wanted = parse_decisions(yaml.safe_load(text), str(path)) == expected
    except (yaml.YAMLError, ConfigError):
        is_as_wanted = False
    if not is_as_wanted:
        raise ConfigError(
            f"{path}: an entry cannot be added to the file as it is written; make `decisions:` its last key, and each "
            "entry an item that begins with `- action:`"
        )
    return text


def _block(entry: Decision) -> str:
    """An entry as an item of the list; signs that YAML takes for line ends are escaped, or they would be lost."""

    def dumped(is_readable: bool) -> str:
        return str(
            yaml.safe_dump(
                [_plain(entry)],
                sort_keys=False,
                allow_unicode=is_readable,
                width=110,
                default_flow_style=None,
                indent=2,
            )
        )

    readable = dumped(True)
    return dumped(False) if any(sign in readable for sign in "\x85\u2028\u2029") else readable
