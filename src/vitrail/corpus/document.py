"""Documents: one text with where it comes from, and the split it belongs to for good.

A document's id depends on nothing but its source and its text, so it is the same whatever else was
imported beside it and in whatever order. Splits follow from the id: no list has to be kept.
"""

import hashlib
from dataclasses import dataclass, field
from typing import Literal

Split = Literal["train", "heldout", "judge"]

TRAIN_SHARE = 0.84
HELDOUT_SHARE = 0.08
"""What is left (0.08) trains the judge: documents that neither model nor labels see."""

_ID_DIGITS = 20


@dataclass(frozen=True)
class Document:
    """One text of the corpus.

    Attributes:
        id: 20 hexadecimal digits, a hash of source and text.
        text: Unicode text without carriage returns.
        source: where it comes from, such as `python-stdlib/json` or a file name.
        domain: topic label, such as `networkx/algorithms` or a folder name.
        license: licence of the text, empty where unknown.
        title: for display, empty where unknown.
        metadata: further fields of the record, as text.
    """

    id: str
    text: str
    source: str
    domain: str
    license: str = ""
    title: str = ""
    metadata: dict[str, str] = field(default_factory=dict)


def document_id(text: str, source: str) -> str:
    """Id of a document.

    Args:
        text: its text.
        source: its source.

    Returns:
        20 hexadecimal digits; at 10^9 documents a clash has a chance of about 4e-7.
    """
    return hashlib.sha256(f"{source}\0{text}".encode()).hexdigest()[:_ID_DIGITS]


def split_of(document_id: str) -> Split:
    """The split of a document, a pure function of its id.

    Args:
        document_id: the id.

    Returns:
        `train` (84 %), `heldout` (8 %) or `judge` (8 %, for the judge of steered text alone).
    """
    place = int.from_bytes(hashlib.sha256(b"split:" + document_id.encode()).digest()[:8]) / 2**64
    if place < TRAIN_SHARE:
        return "train"
    return "heldout" if place < TRAIN_SHARE + HELDOUT_SHARE else "judge"
