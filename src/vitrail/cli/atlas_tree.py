"""`vitrail atlas tree`: concepts by subject."""

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter, validators

from vitrail.atlas import ConceptLibrary
from vitrail.atlas.concepts.taxonomy import Branch, branch_of, path_of_code
from vitrail.cli.output import Count, Json, Whole, emit

Names = Annotated[Whole, Parameter(validator=validators.Number(gte=0))]


def tree(library: Path, *, branch: str | None = None, depth: Count = 2, names: Names = 3, json: Json = False) -> None:
    """Show the tree of subjects: how many concepts each class holds, and its most frequent ones.

    Example: `vitrail atlas tree runs/atlas --branch QA --depth 3`

    Args:
        library: an atlas or model directory.
        branch: code of the class to show, such as QA or QA76; without it the whole tree.
        depth: levels of the tree to show, below the branch if one is given.
        names: concepts to name beside each class whose parts are not shown.
        json: print one JSON object, with every concept's name.
    """
    cards = [card for card in ConceptLibrary.load(library).cards if card.head == "known"]
    top = branch_of(cards, path_of_code(cards, branch) if branch else ())
    emit(_plain(top, depth), json, "\n".join(_lines(top, depth, names, 0)))


def _lines(branch: Branch, depth: int, names: int, indent: int) -> Iterator[str]:
    is_last = depth == 0 or not branch.parts
    named = ", ".join(f"'{card.name}'" for card in branch.cards[:names]) if is_last else ""
    yield f"{len(branch.cards):6,}  {'  ' * indent}{branch.label}" + (f": {named}" if named else "")
    if not is_last:
        for part in branch.parts:
            yield from _lines(part, depth - 1, names, indent + 1)


def _plain(branch: Branch, depth: int) -> dict[str, Any]:
    parts = branch.parts if depth else ()
    return {
        "label": branch.label,
        "num_concepts": len(branch.cards),
        "num_labels": branch.num_labels,
        "concepts": [] if parts else [card.name for card in branch.cards],
        "parts": [_plain(part, depth - 1) for part in parts],
    }
