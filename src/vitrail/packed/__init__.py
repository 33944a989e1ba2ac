"""Packed: token shards with aligned labels, and the loader (design §8)."""

from vitrail.packed.batch import PackedBatch
from vitrail.packed.conversations import is_conversations
from vitrail.packed.filling import Run, fill_sequences
from vitrail.packed.loader import Loader
from vitrail.packed.pack import pack_conversations, pack_corpus
from vitrail.packed.reader import PackedCorpus, PackedSplit
from vitrail.packed.settings import DataSettings, MixtureStage, PackSettings

__all__ = [
    "DataSettings",
    "Loader",
    "MixtureStage",
    "PackSettings",
    "PackedBatch",
    "PackedCorpus",
    "PackedSplit",
    "Run",
    "fill_sequences",
    "is_conversations",
    "pack_conversations",
    "pack_corpus",
]
