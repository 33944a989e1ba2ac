"""`vitrail atlas edit`: decisions about concepts, kept in a file that every build applies again."""

import json as json_format
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from cyclopts import Parameter

from vitrail.artifacts import read_manifest
from vitrail.atlas import AtlasSettings
from vitrail.atlas.concepts.decisions import Decision, folded, load_decisions, title
from vitrail.atlas.concepts.edits import edit as take_decision
from vitrail.atlas.concepts.edits import entries
from vitrail.atlas.library import Kind
from vitrail.atlas.llm import TaggingModel
from vitrail.cli.output import Count, Json, emit
from vitrail.errors import ConfigError
from vitrail.settings import Settings

Action = Literal["list", "rename", "merge", "split", "add", "forbid"]
Repeated = Annotated[tuple[str, ...], Parameter(negative="", consume_multiple=False)]

_USAGE = {
    "list": "list",
    "rename": 'rename "OLD NAME" "NEW NAME"',
    "merge": 'merge "A" "B" … --name "NEW NAME"',
    "split": 'split "A" --into 2, or --part "NAME: tag, tag" --part "NAME: tag, tag"',
    "add": 'add "NAME" --description "…" --example "…"',
    "forbid": 'forbid "A"',
}


def edit(
    atlas: Path,
    action: Action,
    *names: str,
    decisions: Path,
    name: str | None = None,
    description: str | None = None,
    kind: Kind | None = None,
    into: Count | None = None,
    part: Repeated = (),
    phrase: Repeated = (),
    example: Repeated = (),
    counterexample: Repeated = (),
    json: Json = False,
) -> None:
    """Rename, merge, split, add or forbid concepts: checked against an atlas, written to a file, applied on rebuild.

    Example: `vitrail atlas edit runs/atlas rename "flow" "fluid dynamics" --decisions decisions.yaml`

    The other actions: `merge "A" "B" --name "C"`, `split "A" --into 3` or
    `split "A" --part "B: tag, tag" --part "C: tag, tag"`, `add "A" --description "…" --phrase "…" --example "…"`,
    `forbid "A"`, and `list`, which shows what is in the file and what an atlas built with it already has. Decisions are
    about the concepts that a build found: build again with the settings of this atlas.

    Args:
        atlas: the atlas directory that the concepts are looked up in.
        action: what to do: list, rename, merge, split, add or forbid.
        names: the concepts it is about, by name; for rename also the new name.
        decisions: the YAML file; made if there is none, else added to.
        name: name of what concepts are merged into.
        description: one line on what the concept means (rename, merge, add).
        kind: content, tone, demographic or alignment (rename, add).
        into: number of parts to split into, by closeness of the tags.
        part: one part to split off, as "NAME: tag, tag"; may be given several times.
        phrase: a phrase that marks an added concept; may be given several times.
        example: a text that carries an added concept; may be given several times.
        counterexample: a text that does not, though one could think so; may be given several times.
        json: print one JSON object.
    """
    if action == "list":
        if names:
            raise ConfigError(f"atlas edit: list takes other words; write {_USAGE[action]}")
        _list(decisions, atlas, json)
        return
    given = {
        "name": name,
        "description": description,
        "kind": kind,
        "into": into,
        "parts": [_part(text) for text in part],
        "phrases": phrase,
        "examples": example,
        "counterexamples": counterexample,
    }
    values = _values(action, names, {key: value for key, value in given.items() if value not in (None, (), [])})
    entry = take_decision(decisions, atlas, values)
    number = len(load_decisions(decisions).decisions)
    text = (
        f"{decisions}: {title(number, entry)} is written\n"
        f"carry it out: vitrail atlas build CORPUS{_settings_of(atlas)} --decisions {decisions} --out DIR"
    )
    emit({"decisions": str(decisions), "number": number, "decision": entry.model_dump(mode="json")}, json, text)


def _settings_of(atlas: Path) -> str:
    """Flags of the settings an atlas was built with, where they are not the defaults: others find other concepts."""
    flags = _changed(read_manifest(atlas, "atlas").settings, AtlasSettings())
    if isinstance(llm := flags.pop("llm", None), dict):
        changed = _changed(llm, TaggingModel(model=llm["model"]))
        if any(changed.pop(prompt, None) for prompt in ("tags", "concept")):
            flags["prompts"] = "FOLDER"
        flags |= {"llm.model": llm["model"], **{f"llm.{name}": value for name, value in changed.items()}}
    words = {name: value if isinstance(value, str) else json_format.dumps(value) for name, value in flags.items()}
    return "".join(
        f" --{name} {shlex.quote(value)}" for name, value in words.items() if name not in ("decisions", "given")
    )


def _changed(built: Mapping[str, Any], default: Settings) -> dict[str, Any]:
    usual = default.model_dump(mode="json")
    return {name: value for name, value in built.items() if name in usual and value != usual[name]}


def _values(action: Action, names: tuple[str, ...], given: dict[str, Any]) -> dict[str, Any]:
    """The entry as it would stand in the file."""
    match action, names:
        case "rename", (old, new) if "name" not in given:
            return {"action": action, "concept": old, "name": new, **given}
        case (("rename" | "split" | "forbid"), (concept,)):
            return {"action": action, "concept": concept, **given}
        case "merge", (_, _, *_):
            return {"action": action, "concepts": list(names), **given}
        case "add", (own,) if "name" not in given:
            return {"action": action, "concept": {"name": own, **given}}
    raise ConfigError(f"atlas edit: {action} takes other words; write {_USAGE[action]}")


def _part(text: str) -> dict[str, Any]:
    name, colon, tags = text.partition(":")
    if not colon or not folded(name) or not folded(tags):
        raise ConfigError(f"atlas edit: part '{text}' is not of the form \"NAME: tag, tag\"")
    return {"name": name.strip(), "tags": [tag.strip() for tag in tags.split(",") if tag.strip()]}


def _list(path: Path, atlas: Path, json: bool) -> None:
    found = entries(path, atlas)
    rows = [
        {"number": entry.number, "status": entry.status, **entry.decision.model_dump(mode="json")} for entry in found
    ]
    lines = [f"{entry.status:8}{_line(entry.number, entry.decision)}" for entry in found]
    emit({"decisions": rows}, json, "\n".join(lines) or f"{path}: no decisions yet")


def _line(number: int, decision: Decision) -> str:
    what = title(number, decision)
    match decision.action:
        case "rename" | "merge":
            return f"{what} → '{decision.name}'" if decision.name else what
        case "split":
            return f"{what} → " + (", ".join(f"'{p.name}'" for p in decision.parts) or f"{decision.into} parts")
        case _:
            return what
