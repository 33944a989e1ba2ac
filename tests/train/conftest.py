"""A tiny model and tiny batches, with sizes that are different primes where divisibility allows."""

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
import torch

from tests.train.themes import make_packed
from vitrail.model import ConceptLM, ModelConfig, init_model
from vitrail.packed import PackedBatch, PackedCorpus
from vitrail.text import Tokenizer

BLOCK, LENGTH, NUM_CONCEPTS, VOCAB = 4, 14, 7, 41
PAD, BOS, EOS, EOC, MASK = range(5)


@pytest.fixture(scope="session")
def packed_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_packed(tmp_path_factory.mktemp("themes"))


@pytest.fixture
def tiny_model() -> Callable[..., ConceptLM]:
    def build(seed: int = 0, dtype: torch.dtype = torch.float64, **changes: object) -> ConceptLM:
        values: dict[str, object] = {
            "vocab_size": VOCAB,
            "num_layers": 2,
            "num_heads": 2,
            "num_kv_heads": 1,
            "width": 12,
            "max_length": 64,
            "block": BLOCK,
            "norm_order": "pre",
            "num_concepts": NUM_CONCEPTS,
            "num_discovered": 19,
            "discovered_rank": 5,
            "top_k_known": 3,
            "top_k_known_features": 3,
            "top_k_discovered": 6,
            "pad_id": PAD,
            "bos_id": BOS,
            "eos_id": EOS,
            "eoc_id": EOC,
            "mask_id": MASK,
        }
        config = ModelConfig.parse(values | changes)
        return init_model(config, seed, known_bias=-1.0).to(dtype)

    return build


def make_batch(rows: int = 5, seed: int = 0, length: int = LENGTH) -> PackedBatch:
    rng = torch.Generator().manual_seed(seed)
    tokens = torch.randint(5, VOCAB, (rows, length), generator=rng)
    chunk = torch.full((rows, length), -1)
    number = 0
    for row in range(rows):
        tokens[row, 0] = BOS
        cut = int(torch.randint(3, length - 4, (), generator=rng))
        end = length - row % 3
        tokens[row, cut] = EOC
        tokens[row, end:] = PAD
        chunk[row, 1:cut] = number
        chunk[row, cut + 1 : end] = number + 1
        number += 2
    has_label = torch.rand((number, NUM_CONCEPTS), generator=rng) < 0.3
    has_label[0] = False
    label_chunk, label_concept = has_label.nonzero(as_tuple=True)
    inside = (chunk.flatten() >= 0).nonzero()[:, 0]
    span_pos = inside[torch.rand(len(inside), generator=rng) < 0.4]
    span_concept = torch.randint(NUM_CONCEPTS, (len(span_pos),), generator=rng)
    return PackedBatch(
        tokens=tokens,
        loss_mask=tokens != PAD,
        chunk=chunk,
        num_chunks=number,
        label_chunk=label_chunk,
        label_concept=label_concept,
        span_pos=span_pos,
        span_concept=span_concept,
        rows=torch.arange(number),
        num_bytes=100,
    )


@pytest.fixture
def tiny_batch() -> Callable[..., PackedBatch]:
    return make_batch


@pytest.fixture
def tiny_packed() -> PackedCorpus:
    return TinyPacked({"train": 23, "heldout": 5})


class TinyPacked(PackedCorpus):
    """A packed corpus in memory: random sequences, but the same ones every time."""

    def __init__(self, sizes: dict[str, int], length: int = LENGTH) -> None:
        self.sizes, self.length, self.num_concepts = sizes, length, NUM_CONCEPTS

    def num_sequences(self, split: str) -> int:
        return self.sizes[split]

    def batch(self, split: str, rows: Sequence[int]) -> PackedBatch:
        return make_batch(len(rows), seed=sum(rows) + 1000 * (split == "heldout"), length=self.length)

    def tokenizer(self) -> Tokenizer:
        raise NotImplementedError
