"""Tags of a sample of chunks: which there are, where they stand, which the tagger gave (§4.2.1).

Letters: R chunks, n tags.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from scipy.sparse import csr_array

from vitrail.atlas.concepts.geometry import count_matrix
from vitrail.atlas.tags.phrases import Tagger, TagTable, select_tags

LARGE_SAMPLE = 2_000
MIN_CHUNKS_LARGE, MIN_CHUNKS_SMALL = 4, 3


@dataclass(frozen=True)
class Tagging:
    """The tags of R chunks.

    Attributes:
        table: the n tags in alphabetical order.
        occurrences: [R n] how often each tag stands in each chunk's text.
        given: [R n] the tags that the tagger gave each chunk; for the embedded tagger the occurrences themselves.
    """

    table: TagTable
    occurrences: csr_array
    given: csr_array


def tag_chunks(texts: Sequence[str], max_tags: int) -> Tagging:
    """Tags found in the texts themselves, without a language model.

    Args:
        texts: R chunks.
        max_tags: tags kept at most.

    Returns:
        the tagging.
    """
    min_chunks = MIN_CHUNKS_LARGE if len(texts) >= LARGE_SAMPLE else MIN_CHUNKS_SMALL
    table = select_tags(texts, min_chunks, max_tags)
    tagger = Tagger(table.tags)
    found = count_matrix([[o.tag for o in tagger.tag(text)] for text in texts], len(table.tags))
    return Tagging(table, found, found)
