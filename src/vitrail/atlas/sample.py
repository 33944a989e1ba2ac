"""What an atlas is built from: chunks of the training documents (§4.2.1)."""

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import islice

import numpy as np
from numpy.typing import NDArray

from vitrail.atlas.settings import AtlasSettings
from vitrail.corpus import HELDOUT_SHARE, TRAIN_SHARE, Document, Split, iter_chunks, split_of

MIN_CONCEPTS = 4


@dataclass(frozen=True)
class Chunks:
    """What an atlas is built from: R chunk texts with the number of their document and domain."""

    texts: list[str]
    documents: NDArray[np.int64]
    domains: NDArray[np.int64]
    domain_names: list[str]


def gather_chunks(documents: Iterable[Document], settings: AtlasSettings, split: Split = "train") -> Chunks:
    """The chunks of the documents of a split, in the order of ids, up to the wanted number (§4.2.1).

    Ids are hashes, so the first documents are a fair sample of all, every domain by its share. Nothing after them
    is read, so that time and memory do not grow with the corpus.

    Args:
        documents: ordered by id, as a corpus gives them.
        settings: chunk sizes and how many.
        split: which documents; from the other splits as large a share of `max_chunks` as they have of the documents.

    Returns:
        the chunks; fewer than are wanted where the corpus is small, none at worst.
    """
    max_chunks = settings.max_chunks if split == "train" else int(settings.max_chunks * HELDOUT_SHARE / TRAIN_SHARE)
    texts: list[str] = []
    owner: list[int] = []
    domain: list[str] = []
    for number, document in enumerate(documents):
        if split_of(document.id) != split:
            continue
        room = max_chunks - len(texts)
        kept = list(islice(iter_chunks(document.text, settings.chunk_tokens, settings.chunk_chars), room))
        texts += [document.text[start:stop] for start, stop in kept]
        owner += [number] * len(kept)
        domain += [document.domain] * len(kept)
        if len(kept) == room:
            break
    names = sorted(set(domain))
    place = {name: i for i, name in enumerate(names)}
    _, owner_ids = np.unique(np.array(owner, np.int64), return_inverse=True)
    return Chunks(texts, owner_ids, np.array([place[name] for name in domain], np.int64), names)


def too_small(num_chunks: int, num_concepts: int, settings: AtlasSettings) -> str:
    """What to say where there are too few concepts.

    Args:
        num_chunks: training chunks of the corpus.
        num_concepts: concepts they give.
        settings: who gave the tags.

    Returns:
        one line.
    """
    if settings.tagger == "endpoint":
        return (
            f"the tags that the language model gave to {num_chunks} training chunks make {num_concepts} concepts, at "
            f"least {MIN_CONCEPTS} are needed; look at its answers in the journal: model or prompt may be at fault, or "
            "the corpus too small"
        )
    return (
        f"the corpus is too small for an atlas: {num_chunks} training chunks give {num_concepts} "
        f"concepts, at least {MIN_CONCEPTS} are needed; add text (hundreds of paragraphs of prose, in several "
        "documents)"
    )
