"""What an atlas is built from: chunks of the training documents (§4.2.1)."""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from vitrail.atlas.settings import AtlasSettings
from vitrail.corpus import Document, chunk_text, split_of
from vitrail.errors import CorpusError

MIN_CHUNKS = 50
MIN_CONCEPTS = 4


@dataclass(frozen=True)
class Chunks:
    """What an atlas is built from: R chunk texts with the number of their document and domain."""

    texts: list[str]
    documents: NDArray[np.int64]
    domains: NDArray[np.int64]
    domain_names: list[str]


def gather_chunks(documents: Iterable[Document], settings: AtlasSettings) -> Chunks:
    """The chunks of the training documents, by document id, up to the wanted number.

    Ids are hashes, so the first documents are a fair sample of all.

    Args:
        documents: in any order; they are sorted by id.
        settings: chunk sizes and how many.

    Returns:
        the chunks.

    Raises:
        CorpusError: fewer than fifty chunks.
    """
    texts: list[str] = []
    owner: list[int] = []
    domain: list[str] = []
    for number, document in enumerate(sorted(documents, key=lambda document: document.id)):
        if split_of(document.id) != "train":
            continue
        spans = chunk_text(document.text, settings.chunk_tokens, settings.chunk_chars)
        if len(texts) + len(spans) > settings.max_chunks:
            break
        texts += [document.text[start:stop] for start, stop in spans]
        owner += [number] * len(spans)
        domain += [document.domain] * len(spans)
    if len(texts) < MIN_CHUNKS:
        raise CorpusError(too_small(len(texts), 0))
    names = sorted(set(domain))
    place = {name: i for i, name in enumerate(names)}
    _, owner_ids = np.unique(np.array(owner, np.int64), return_inverse=True)
    return Chunks(texts, owner_ids, np.array([place[name] for name in domain], np.int64), names)


def too_small(num_chunks: int, num_concepts: int) -> str:
    """What to say of a corpus that gives too few concepts.

    Args:
        num_chunks: training chunks it has.
        num_concepts: concepts they give.

    Returns:
        one line.
    """
    return (
        f"the corpus is too small for an atlas: {num_chunks} training chunks give {num_concepts} "
        f"concepts, at least {MIN_CONCEPTS} are needed; add text (hundreds of paragraphs of English prose in "
        "several documents)"
    )
