"""Decisions of people about found concepts, carried out: changed ones are fitted anew, the others stay as they were.

Letters: R chunks, n tags, C concepts.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from jaxtyping import Float32
from numpy.typing import NDArray

from vitrail.atlas.annotator.detector import Detector
from vitrail.atlas.annotator.fit import Evidence
from vitrail.atlas.concepts.applying import Draft, apply
from vitrail.atlas.concepts.cards import is_described
from vitrail.atlas.concepts.decisions import Decisions
from vitrail.atlas.concepts.describing import Sayings, say_from_tags
from vitrail.atlas.concepts.geometry import unit
from vitrail.atlas.concepts.own import OwnConcept
from vitrail.atlas.concepts.selection import calibrate
from vitrail.atlas.concepts.space import Encoded
from vitrail.atlas.sample import Chunks
from vitrail.atlas.settings import AtlasSettings
from vitrail.atlas.tags.tagging import Tagging
from vitrail.errors import ConfigError


@dataclass(frozen=True)
class Concepts:
    """The concepts that an annotator is to be fitted to.

    Attributes:
        evidence: for the found ones.
        said: names, descriptions and kinds of the found ones.
        own: those that people gave.
    """

    evidence: Evidence
    said: Sayings
    own: list[OwnConcept]


def decide(
    concepts: Concepts,
    decisions: Decisions,
    encoded: Encoded,
    tagging: Tagging,
    chunks: Chunks,
    settings: AtlasSettings,
    say: Callable[[str], None],
) -> Concepts:
    """Carry out decisions.

    Args:
        concepts: as they were found, with the starter set.
        decisions: what people decided.
        encoded: tags and chunks as vectors.
        tagging: of the chunks.
        chunks: the sample.
        settings: limits of the thresholds.
        say: takes a line about decisions that were passed over.

    Returns:
        the concepts; the found ones in their old order, parts of a split beside each other.

    Raises:
        ConfigError: a decision about a concept that is gone, or that leaves one without tags.
    """
    if not decisions.decisions:
        return concepts
    tags = tagging.table.tags
    number = {tag: i for i, tag in enumerate(tags)}
    before = _drafts(concepts, tags)
    after = apply(
        decisions, before, lambda wanted: encoded.space.vectors[[number[tag] for tag in wanted]], concepts.own
    )
    for line in after.gone:
        say(line)
    place = {frozenset(draft.members): i for i, draft in enumerate(before)}
    changed = [draft for draft in after.drafts if frozenset(draft.members) not in place]
    fresh = _fitted(
        [np.sort([number[tag] for tag in draft.members]) for draft in changed], changed, encoded, tagging, settings
    )
    place |= {frozenset(draft.members): len(before) + i for i, draft in enumerate(changed)}
    order = [place[frozenset(draft.members)] for draft in after.drafts]
    old = concepts.evidence
    labelled = [*old.labelled, *fresh.labelled]
    evidence = Evidence(
        old.detector.beside(fresh.detector).only(order),
        np.concatenate([old.thresholds, fresh.thresholds])[order],
        [labelled[i] for i in order],
        [draft.kind for draft in after.drafts],
    )
    names = [draft.name for draft in after.drafts]
    written = say_from_tags(evidence.detector, evidence.labelled, encoded.space, tagging, chunks, names)
    return Concepts(evidence, _said(after.drafts, written), list(after.own))


def _said(drafts: Sequence[Draft], written: Sayings) -> Sayings:
    """What is said of drafts: the description that they brought, else the one written now."""
    descriptions = [draft.description or text for draft, text in zip(drafts, written.descriptions, strict=True)]
    kinds, is_automatic = [draft.kind for draft in drafts], [draft.is_automatic for draft in drafts]
    return Sayings(written.names, descriptions, kinds, is_automatic)


def _drafts(concepts: Concepts, tags: Sequence[str]) -> list[Draft]:
    """Found concepts; descriptions made of name and tags are left out, since they change with these."""
    drafts = []
    for i, (name, text, kind, is_automatic) in enumerate(concepts.said.rows()):
        members = tuple(tags[tag] for tag in concepts.evidence.detector.member_ids(i))
        drafts.append(Draft(members, name, None if is_described(name, text) else text, kind, is_automatic))
    return drafts


def _fitted(
    members: list[NDArray[np.int64]],
    drafts: Sequence[Draft],
    encoded: Encoded,
    tagging: Tagging,
    settings: AtlasSettings,
) -> Evidence:
    """Evidence for concepts that a decision changed."""
    if not members:
        return Evidence.none(len(tagging.table.tags), encoded.space.vectors.shape[1])
    space = encoded.space
    centroids = unit(np.stack([space.mean(ids) for ids in members]))
    detector = Detector.fit(space.vectors, centroids, members, tagging.given, encoded.rows)
    for i, draft in enumerate(drafts):
        if not len(detector.member_ids(i)):
            raise ConfigError(
                f"decisions: the tags of '{draft.name}' ({', '.join(draft.members[:3])}) do not stand for one thing in "
                "this text; give it other tags, or remove the entry"
            )
    by_concept = detector.scores(encoded.weighted, encoded.rows).tocsc()
    thresholds, labelled = [], []
    for start, stop in pairwise(by_concept.indptr):
        scores: Float32[np.ndarray, " r"] = by_concept.data[start:stop]
        thresholds.append(calibrate(scores, by_concept.shape[0], settings))
        labelled.append(np.sort(by_concept.indices[start:stop][scores >= thresholds[-1]]).astype(np.int64))
    kinds = [draft.kind for draft in drafts]
    return Evidence(detector, np.array(thresholds, np.float32), labelled, kinds)
