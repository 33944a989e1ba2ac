"""Applying decisions to the concepts that were found: a pure function from drafts to drafts.

A *draft* is a concept before it is fitted: its member tags, its name, its kind. An anchor means the draft that holds
most of its tags; the name counts as half of them. Where less than half the tags agree (or the name, if a decision
lists no tags), the concept is gone.

Letters: n tags, E width.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from jaxtyping import Float32
from numpy.typing import NDArray
from scipy.cluster.hierarchy import cut_tree, linkage

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
    title,
)
from vitrail.atlas.concepts.own import OwnConcept
from vitrail.atlas.library import Kind
from vitrail.errors import ConceptNotFound, ConfigError, nearest

TagVectors = Callable[[Sequence[str]], Float32[np.ndarray, "n E"]]
"""Unit vectors of member tags, in the order asked for."""

MIN_AGREEMENT = 0.5


@dataclass(frozen=True)
class Draft:
    """A found concept before it is fitted.

    Attributes:
        members: its tags.
        name: what it is called so far.
        description: one line, or None where none was written by a person.
        kind: which head it belongs to.
        is_automatic: whether the name was given by a program.
    """

    members: tuple[str, ...]
    name: str
    description: str | None = None
    kind: Kind = "content"
    is_automatic: bool = True

    @cached_property
    def folded_name(self) -> str:
        """The name as names are compared."""
        return folded(self.name)

    @cached_property
    def folded_members(self) -> frozenset[str]:
        """The tags as tags are compared; kept, since every entry looks at every draft."""
        return frozenset(map(folded, self.members))


@dataclass(frozen=True)
class Decided:
    """What there is after the decisions.

    Attributes:
        drafts: found concepts: changed ones where they stood, parts of a split beside each other.
        own: concepts given by people: those passed in, without forbidden ones, then the added ones.
        gone: one line on each entry that was passed over because its concept is gone.
    """

    drafts: tuple[Draft, ...]
    own: tuple[OwnConcept, ...]
    gone: tuple[str, ...] = ()


def apply(
    decisions: Decisions, drafts: Sequence[Draft], vectors: TagVectors, own: Sequence[OwnConcept] = ()
) -> Decided:
    """Concepts after the decisions.

    Args:
        decisions: applied in their order.
        drafts: the concepts that were found, with unique names.
        vectors: of member tags; asked only where a concept is split.
        own: concepts given by people (the starter set): they can be renamed and forbidden, by name.

    Returns:
        the concepts; a function of the arguments alone.

    Raises:
        ConceptNotFound: entries whose concepts are gone, unless `when_gone` passes them over.
        ConfigError: an entry whose concept is not clear, whose tags are not the concept's, or whose new name is taken.
            Either message names the entry and how to mend it.
    """
    state = Decided(tuple(drafts), tuple(own))
    gone: dict[int, str] = {}
    for number, decision in enumerate(decisions.decisions, 1):
        try:
            state = step(state, decision, title(number, decision), vectors)
        except ConceptNotFound as error:
            gone[number] = str(error)
    if gone and decisions.when_gone == "stop":
        raise ConceptNotFound(_all_gone(gone))
    return replace(state, gone=tuple(gone.values()))


def _all_gone(gone: Mapping[int, str]) -> str:
    first, *others = gone
    more = f" (gone too: the concepts of decisions {', '.join(map(str, others))})" if others else ""
    return f"{gone[first]}, or write `when_gone: skip` into the file{more}"


def step(state: Decided, decision: Decision, this: str, vectors: TagVectors) -> Decided:
    """Concepts after one decision.

    Args:
        state: the concepts before it.
        decision: the entry.
        this: what to call it in messages.
        vectors: of member tags; asked only where a concept is split.

    Returns:
        the concepts.

    Raises:
        ConceptNotFound: its concept is gone.
        ConfigError: it cannot be carried out.
    """
    match decision:
        case Add():
            after = replace(state, own=(*state.own, decision.concept))
            _require_free(after, [decision.concept.name], this)
            return after
        case Rename() | Forbid() if (given := _own(state, decision.concept)) is not None:
            return _change_own(state, given, decision, this)
        case Rename():
            chosen = find_draft(decision.concept, state, this)
            return _put(state, [chosen], [_renamed(state.drafts[chosen], decision)], this)
        case Forbid():
            found = _search(decision.concept, state.drafts, this)
            return state if found is None else _put(state, [found], [], this)
        case Merge():
            merged = [find_draft(anchor, state, this) for anchor in decision.concepts]
            _require_different(merged, decision, state, this)
            return _put(state, merged, [_merged([state.drafts[i] for i in merged], decision)], this)
        case Split():
            chosen = find_draft(decision.concept, state, this)
            return _put(state, [chosen], _parts(state.drafts[chosen], decision, vectors, this), this)


def find_draft(anchor: Anchor, state: Decided, this: str) -> int:
    """Which draft an anchor means.

    Args:
        anchor: name and tags.
        state: the concepts.
        this: what to call the entry in messages.

    Returns:
        its place among the drafts.

    Raises:
        ConceptNotFound: no draft.
        ConfigError: two that fit as well, or a concept that people wrote.
    """
    if (given := _own(state, anchor)) is not None:
        raise ConfigError(
            f"{this}: '{state.own[given].name}' is not a concept of found tags but one that people wrote; "
            "it can be renamed and forbidden only"
        )
    found = _search(anchor, state.drafts, this)
    if found is None:
        names = [*(draft.name for draft in state.drafts), *(concept.name for concept in state.own)]
        tags = " and none holds half of its tags" if anchor.tags else ""
        raise ConceptNotFound(
            f"{this}: no concept is called '{anchor.name}'{tags}{nearest(anchor.name, names)}; "
            "correct the entry's name and tags, or remove the entry"
        )
    return found


def _search(anchor: Anchor, drafts: Sequence[Draft], this: str) -> int | None:
    """The draft with most votes for an anchor, None if it is gone."""
    name, wanted = folded(anchor.name), {folded(tag) for tag in anchor.tags}
    votes = []
    for i, draft in enumerate(drafts):
        agreement = len(wanted & draft.folded_members) / len(wanted) if wanted else 0.0
        is_named = draft.folded_name == name
        if agreement >= MIN_AGREEMENT or (is_named and (agreement > 0 or not wanted)):
            votes.append((agreement + 0.5 * is_named, i))
    most = max(votes, default=(0.0, 0))[0]
    best = [i for vote, i in votes if vote == most]
    if len(best) > 1:
        first, second = (drafts[i].name for i in best[:2])
        raise ConfigError(f"{this}: fits '{first}' as well as '{second}'; list more tags of the concept that is meant")
    return best[0] if best else None


def _own(state: Decided, anchor: Anchor) -> int | None:
    if anchor.tags:
        return None
    names = [folded(concept.name) for concept in state.own]
    return names.index(folded(anchor.name)) if folded(anchor.name) in names else None


def _change_own(state: Decided, place: int, decision: Rename | Forbid, this: str) -> Decided:
    concept = state.own[place]
    if isinstance(decision, Forbid):
        return replace(state, own=state.own[:place] + state.own[place + 1 :])
    changed = concept.model_copy(
        update={
            "name": decision.name or concept.name,
            "description": concept.description if decision.description is None else decision.description,
            "kind": decision.kind or concept.kind,
        }
    )
    after = replace(state, own=(*state.own[:place], changed, *state.own[place + 1 :]))
    _require_free(after, [changed.name], this)
    return after


def _renamed(draft: Draft, decision: Rename) -> Draft:
    return replace(
        draft,
        name=decision.name or draft.name,
        description=draft.description if decision.description is None else decision.description,
        kind=decision.kind or draft.kind,
        is_automatic=draft.is_automatic and decision.name is None,
    )


def _merged(drafts: Sequence[Draft], decision: Merge) -> Draft:
    members = tuple(dict.fromkeys(tag for draft in drafts for tag in draft.members))
    return Draft(members, decision.name, decision.description, drafts[0].kind, is_automatic=False)


def _require_different(places: Sequence[int], decision: Merge, state: Decided, this: str) -> None:
    for anchor, place in zip(decision.concepts, places, strict=True):
        if places.count(place) > 1:
            raise ConfigError(
                f"{this}: '{anchor.name}' and another of its concepts are one already, '{state.drafts[place].name}'; "
                "rename that one instead"
            )


def _parts(draft: Draft, decision: Split, vectors: TagVectors, this: str) -> list[Draft]:
    needed = decision.into or len(decision.parts)
    if len(draft.members) < needed:
        raise ConfigError(f"{this}: {len(draft.members)} tags do not make {needed} parts; ask for fewer")
    if decision.into:
        tags = tuple(sorted(draft.members))
        places = vectors(tags)
        groups = _groups(places, decision.into)
        heads = [_central(tags, places, group) for group in groups]
        return [
            replace(
                draft,
                members=tuple(tags[i] for i in group),
                name=f"{draft.name}: {head}",
                description=None,
                is_automatic=True,
            )
            for group, head in zip(groups, heads, strict=True)
        ]
    return [
        Draft(members, part.name, None, draft.kind, is_automatic=False)
        for part, members in zip(decision.parts, _listed(draft, decision, vectors, this), strict=True)
    ]


def _groups(vectors: Float32[np.ndarray, "n E"], count: int) -> list[NDArray[np.int64]]:
    """Ward's clusters of tags, the largest first. Rounded, so that no merge hangs on the last bits."""
    tree = linkage(np.round(vectors.astype(np.float64), 6), "ward")
    labels = cut_tree(tree, count).ravel()
    groups = [np.flatnonzero(labels == label) for label in np.unique(labels)]
    return sorted(groups, key=lambda group: (-len(group), int(group[0])))


def _central(tags: Sequence[str], vectors: Float32[np.ndarray, "n E"], group: NDArray[np.int64]) -> str:
    closeness = np.round(vectors[group] @ vectors[group].sum(0), 4)
    return tags[int(group[np.argmax(closeness)])]


def _listed(draft: Draft, decision: Split, vectors: TagVectors, this: str) -> list[tuple[str, ...]]:
    """Members of each part: the listed tags, and of the others those that are closest to them."""
    home = {folded(tag): p for p, part in enumerate(decision.parts) for tag in part.tags}
    members = [folded(tag) for tag in draft.members]
    if strange := sorted(set(home) - set(members)):
        # A tag that the changed text no longer has is no fault, as long as the part keeps some.
        for p, part in enumerate(decision.parts):
            if not {folded(tag) for tag in part.tags} & set(members):
                raise ConfigError(
                    f"{this}: none of the tags of part '{part.name}' is a tag of the concept "
                    f"('{strange[0]}'{nearest(strange[0], members)}); correct the tags of part {p + 1}"
                )
    places = [home.get(tag) for tag in members]
    if None in places:
        places = _nearest_parts(vectors(draft.members), places, len(decision.parts))
    return [
        tuple(tag for tag, place in zip(draft.members, places, strict=True) if place == p)
        for p in range(len(decision.parts))
    ]


def _nearest_parts(
    vectors: Float32[np.ndarray, "n E"], places: Sequence[int | None], num_parts: int
) -> list[int | None]:
    """For every tag the part it is listed in, or else the part whose listed tags are closest on average."""
    means = np.stack([vectors[[place == p for place in places]].mean(0) for p in range(num_parts)])
    closest = np.argmax(np.round(vectors @ means.T, 4), axis=1)
    return [int(closest[i]) if place is None else place for i, place in enumerate(places)]


def _put(state: Decided, old: Sequence[int], new: Sequence[Draft], this: str) -> Decided:
    """New drafts where the first of some old ones stood."""
    at = min(old)
    before = [draft for i, draft in enumerate(state.drafts[:at]) if i not in old]
    behind = [draft for i, draft in enumerate(state.drafts[at:], at) if i not in old]
    after = replace(state, drafts=(*before, *new, *behind))
    _require_free(after, [draft.name for draft in new], this)
    return after


def _require_free(state: Decided, names: Sequence[str], this: str) -> None:
    everyone = [draft.folded_name for draft in state.drafts] + [folded(concept.name) for concept in state.own]
    for name in names:
        if everyone.count(folded(name)) > 1:
            raise ConfigError(
                f"{this}: another concept is called '{name}' already; choose another name, or merge the two"
            )
