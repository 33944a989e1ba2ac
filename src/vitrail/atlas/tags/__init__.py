"""Tags: free-form phrases on chunks, found in the text or asked of a language model (§4.2.1)."""

from vitrail.atlas.tags.choosing import select_tags
from vitrail.atlas.tags.normalise import normalise, singular
from vitrail.atlas.tags.phrases import Occurrence, Tagger, TagTable, phrases, same_word, words

__all__ = [
    "Occurrence",
    "TagTable",
    "Tagger",
    "normalise",
    "phrases",
    "same_word",
    "select_tags",
    "singular",
    "words",
]
