"""Corpus: documents, importers, splits, chunking (design §4, §8)."""

from vitrail.corpus.chunking import DEFAULT_MAX_CHARS, DEFAULT_MAX_TOKENS, chunk_text, estimate_tokens, iter_chunks
from vitrail.corpus.document import HELDOUT_SHARE, TRAIN_SHARE, Document, Split, document_id, split_of
from vitrail.corpus.importing import CorpusSettings, import_corpus
from vitrail.corpus.readers import jsonl_lines
from vitrail.corpus.store import Corpus

__all__ = [
    "DEFAULT_MAX_CHARS",
    "DEFAULT_MAX_TOKENS",
    "HELDOUT_SHARE",
    "TRAIN_SHARE",
    "Corpus",
    "CorpusSettings",
    "Document",
    "Split",
    "chunk_text",
    "document_id",
    "estimate_tokens",
    "import_corpus",
    "iter_chunks",
    "jsonl_lines",
    "split_of",
]
