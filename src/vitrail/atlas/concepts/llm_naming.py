"""Names of found concepts by a language model: what it is shown, and what becomes of its answers (§4.2.2)."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from vitrail.atlas.concepts.cards import WordTable
from vitrail.atlas.concepts.describing import Sayings
from vitrail.atlas.concepts.finding import Found
from vitrail.atlas.concepts.llm_cards import NUM_EXAMPLES, ToName, name_by_llm
from vitrail.atlas.concepts.space import Encoded
from vitrail.atlas.llm import Asker, Prompt
from vitrail.atlas.sample import Chunks
from vitrail.atlas.tags.tagging import Tagging


def say_by_llm(
    said: Sayings,
    found: Found,
    encoded: Encoded,
    tagging: Tagging,
    chunks: Chunks,
    asker: Asker,
    prompt: Prompt,
    others: Sequence[str],
) -> Sayings:
    """What a language model says of found concepts; where it gives no answer, what was said before stays.

    Args:
        said: embedded names and descriptions.
        found: the concepts.
        encoded: tags and chunks as vectors.
        tagging: of the chunks.
        chunks: the sample.
        asker: of the language model.
        prompt: asks for a name.
        others: names of concepts that are not found ones.

    Returns:
        names, descriptions and kinds.

    Raises:
        RunFailed: the server is gone or too many answers are of no use.
    """
    words = WordTable(chunks.texts, min_chunks=4)
    shown = [
        ToName(
            name,
            description,
            kind,
            tuple(tagging.table.tags[tag] for tag in _central_first(found, encoded, c)),
            words.characteristic(found.selection.labelled[c])[0],
            tuple(chunks.texts[row] for row in _best(found, encoded, c)),
        )
        for c, (name, description, kind) in enumerate(zip(said.names, said.descriptions, said.kinds, strict=True))
    ]
    named = name_by_llm(shown, asker, prompt, others)
    return Sayings(
        [one.name for one in named],
        [one.description for one in named],
        [one.kind for one in named],
        [True] * len(named),
    )


def _central_first(found: Found, encoded: Encoded, concept: int) -> Sequence[int]:
    members = found.detector.member_ids(concept)
    closeness = np.round(encoded.space.vectors[members] @ found.detector.centroids[concept], 4)
    order: NDArray[np.int64] = members[np.argsort(-closeness, kind="stable")]
    return [int(tag) for tag in order]


def _best(found: Found, encoded: Encoded, concept: int) -> Sequence[int]:
    rows = found.selection.labelled[concept]
    closeness = np.round(encoded.rows[rows] @ found.detector.centroids[concept], 4)
    return [int(row) for row in rows[np.argsort(-closeness, kind="stable")][:NUM_EXAMPLES]]
