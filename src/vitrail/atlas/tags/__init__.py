"""Tags: free-form phrases on chunks, found in the text or asked of a language model (§4.2.1)."""

from vitrail.atlas.tags.phrases import Occurrence, Tagger, TagTable, phrases, same_word, select_tags, words

__all__ = ["Occurrence", "TagTable", "Tagger", "phrases", "same_word", "select_tags", "words"]
