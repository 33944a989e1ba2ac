"""Packed: token shards with aligned labels, and the loader (design §8)."""

from vitrail.packed.batch import PackedBatch
from vitrail.packed.filling import Run, fill_sequences
from vitrail.packed.loader import Loader
from vitrail.packed.pack import PackSettings, pack_corpus
from vitrail.packed.reader import PackedCorpus, PackedSplit

__all__ = [
    "Loader",
    "PackSettings",
    "PackedBatch",
    "PackedCorpus",
    "PackedSplit",
    "Run",
    "fill_sequences",
    "pack_corpus",
]
