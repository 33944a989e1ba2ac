"""Tags of a sample of chunks: which there are, where they stand, which the tagger gave (§4.2.1).

Letters: R chunks, n tags.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from scipy.sparse import csr_array

from vitrail.atlas.concepts.geometry import count_matrix
from vitrail.atlas.tags.choosing import choose_tags
from vitrail.atlas.tags.phrases import Tagger, TagTable
from vitrail.atlas.tags.writing import tag_table

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
    tags = choose_tags(texts, min_chunks_of(len(texts)), max_tags)
    tagger = Tagger(tags)
    found = [tagger.tag(text) for text in texts]
    counts = count_matrix([[occurrence.tag for occurrence in row] for row in found], len(tags))
    return Tagging(tag_table(texts, tags, found), counts, counts)


def min_chunks_of(num_texts: int) -> int:
    """How many chunks a tag must stand for.

    Args:
        num_texts: R.

    Returns:
        fewer in a small sample.
    """
    return MIN_CHUNKS_LARGE if num_texts >= LARGE_SAMPLE else MIN_CHUNKS_SMALL
