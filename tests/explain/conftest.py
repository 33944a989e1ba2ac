"""A tiny random model that writes real traces; sizes are different primes where they can be."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from vitrail.artifacts import Stage, read_manifest
from vitrail.atlas import Card, Chunk, ConceptLibrary
from vitrail.atlas.annotated import ChunkWriter
from vitrail.explain import IndexSettings, build_index
from vitrail.generate import Sampling, Trace, generate
from vitrail.model import ConceptLM, ModelConfig, init_model, save_model
from vitrail.packed import PackSettings, pack_corpus
from vitrail.steer import SteerPlan
from vitrail.text import Tokenizer, train_tokenizer

BLOCK = 8
VOCAB = 53


def _make_model(seed: int = 0, dtype: torch.dtype = torch.float32, **changes: object) -> ConceptLM:
    """A model whose parts are all of the size of its logits, so that no error can hide."""
    settings: dict[str, object] = {
        "vocab_size": VOCAB,
        "num_layers": 3,
        "num_heads": 3,
        "num_kv_heads": 1,
        "width": 30,
        "max_length": 96,
        "block": BLOCK,
        "mlp_type": "standard",
        "mlp_ratio": 2,
        "num_concepts": 17,
        "num_discovered": 29,
        "discovered_rank": 7,
        "top_k_known": 5,
        "top_k_known_features": 5,
        "top_k_discovered": 11,
        "pad_id": 48,
        "bos_id": 49,
        "eos_id": 50,
        "eoc_id": 51,
        "mask_id": 52,
        "norm_order": "pre",
        "slab": 8,
    }
    model = init_model(ModelConfig.parse(settings | changes), seed)
    generator = torch.Generator().manual_seed(seed + 1)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if weight.ndim == 2 and "blocks" not in name:
                scale = 1.0 if "emb" in name or "lm_head" in name else weight.shape[1] ** -0.5
                weight.normal_(std=scale, generator=generator)
    return model.to(dtype).requires_grad_(False).eval()


def _make_plan(model: ConceptLM, strength: float = 1.0, seed: int = 5) -> SteerPlan:
    """An injection in a random direction with a penalty on some words."""
    generator = torch.Generator().manual_seed(seed)
    weight = model.transformer.tok_emb.weight
    direction = strength * torch.randn(weight.shape[1], generator=generator).to(weight.dtype)
    penalty = torch.rand(weight.shape[0], generator=generator).to(weight.dtype)
    return SteerPlan(direction=direction, layer=2, logit_penalty=penalty, text="glass=+1.0")


def _make_trace(
    model: ConceptLM, plan: SteerPlan | None = None, tokens_per_step: int = 2, max_new_tokens: int = 13
) -> Trace:
    """A real generation whose prompt ends inside a block."""
    sampling = Sampling(max_new_tokens=max_new_tokens, tokens_per_step=tokens_per_step, temperature=1.0, seed=3)
    prompt = [49, 3, 1, 4, 1, 5, 9, 2, 6, 5, 3]
    (trace,) = generate(model, [prompt], sampling, [plan], model_id="a" * 64)
    return trace


@pytest.fixture(scope="session")
def make_model() -> Callable[..., ConceptLM]:
    return _make_model


@pytest.fixture(scope="session")
def make_plan() -> Callable[..., SteerPlan]:
    return _make_plan


@pytest.fixture(scope="session")
def make_trace() -> Callable[..., Trace]:
    return _make_trace


@pytest.fixture(scope="session")
def model() -> ConceptLM:
    return _make_model()


@pytest.fixture(scope="session")
def trace(model: ConceptLM) -> Trace:
    return _make_trace(model)


@dataclass(frozen=True)
class World:
    """Artifacts of a small run, made by the real writers."""

    root: Path
    tokenizer: Tokenizer
    library: ConceptLibrary
    model: ConceptLM
    model_id: str

    def build_index(self, name: str, **changes: object) -> Path:
        settings = {"fit_chunks": 400, "recall_queries": 100, "hidden_width": 64}
        build_index(
            self.root / "model",
            self.root / "annotated",
            self.root / "packed",
            self.root / name,
            IndexSettings.parse(settings | changes),
        )
        return self.root / name


@pytest.fixture(scope="session")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    root = tmp_path_factory.mktemp("world")
    library = ConceptLibrary([_card("known", 0, "glass"), _card("known", 1, "lead"), _card("discovered", 3, "of")])
    chunks = _chunks(600)
    with Stage(root / "annotated", "annotated", {}, {}).write() as writing:
        library.save(writing.dir / "concepts.parquet")
        writer = ChunkWriter(writing.dir, 32)
        writer.add(chunks, _embeddings(chunks))
        writer.close()
        writing.counts["chunks"] = len(chunks)
    tokenizer = train_tokenizer((chunk.text for chunk in chunks), 320)
    pack_corpus(root / "annotated", tokenizer, root / "packed", PackSettings(length=64))
    ids = {f"{name}_id": getattr(tokenizer, f"{name}_id") for name in ("pad", "bos", "eos", "eoc", "mask")}
    model = _make_model(vocab_size=tokenizer.vocab_size, tie_embeddings=True, **ids)
    with Stage(root / "model", "model", {}, {}).write() as writing:
        save_model(model, writing.dir)
    return World(root, tokenizer, library, model, read_manifest(root / "model").id)


def _card(head: Literal["known", "discovered"], concept_id: int, name: str) -> Card:
    return Card(concept_id, head, name, "", "content", (name,), (2.0,), (), 9, 0.5, True)


def _chunks(count: int) -> list[Chunk]:
    """Passages of eight words drawn from one of twelve topics; every tenth document is held out."""
    rng = np.random.default_rng(0)
    words = np.array([["".join(rng.choice(list("abdegilmnorstu"), 5)) for _ in range(9)] for _ in range(12)])
    chunks = []
    for row in range(count):
        document = row // 3
        text = " ".join(rng.choice(words[document % 12], 8))
        split: Literal["train", "heldout"] = "heldout" if document % 10 == 9 else "train"
        chunks.append(
            Chunk(
                row=row,
                chunk_id=f"{document}:{row % 3}",
                document_id=str(document),
                start=0,
                stop=len(text),
                text=text,
                labels=(),
                source=f"topic-{document % 12}",
                license="CC0-1.0",
                title=f"On topic {document % 12}",
                domain="test",
                split=split,
            )
        )
    return chunks


def _embeddings(chunks: list[Chunk]) -> NDArray[np.float32]:
    """Random projections of word counts, as an encoder of bags of words gives; one chunk has none."""
    vocabulary = sorted({word for chunk in chunks for word in chunk.text.split()})
    directions = np.random.default_rng(1).normal(size=(len(vocabulary), 32))
    vectors = np.stack([sum(directions[vocabulary.index(word)] for word in chunk.text.split()) for chunk in chunks])
    vectors = 0.2 + vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    vectors[4] = 0.0
    return np.asarray(vectors, dtype=np.float32)
