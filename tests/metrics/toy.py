"""A toy world of real artifacts: documents about six concepts with words of their own, annotated and packed.

Documents of one collection have filler words of their own, so that there is a source to recognise.
"""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from vitrail.artifacts import Stage
from vitrail.atlas import AnnotatedCorpus, Card, Chunk, ConceptLibrary, Label
from vitrail.atlas.annotated import ChunkWriter
from vitrail.corpus import split_of
from vitrail.model import ConceptLM, ModelConfig, init_model
from vitrail.packed import PackedCorpus, PackSettings, pack_corpus
from vitrail.text import train_tokenizer

CONCEPTS = {
    "heart": ("heart", "valve", "artery"),
    "graph": ("graph", "vertex", "edge"),
    "mining": ("coal", "copper", "ore"),
    "court": ("judge", "court", "appeal"),
    "weather": ("rain", "storm", "cloud"),
    "music": ("violin", "sonata", "choir"),
}
COLLECTIONS = {
    "atlas-of-things": ("river", "mountain", "people", "north", "border", "coast", "city", "old"),
    "manual": ("returns", "array", "value", "function", "given", "type", "input", "list"),
}
LENGTH, CHUNK_WORDS, EMBEDDING_WIDTH = 64, 14, 4
WIDTH = 16


@dataclass(frozen=True)
class Toy:
    """What was made, opened."""

    annotated: AnnotatedCorpus
    packed: PackedCorpus
    library: ConceptLibrary

    def chunks(self, split: str) -> list[Chunk]:
        return [chunk for chunk in self.annotated.chunks() if chunk.split == split]


def make_toy(folder: Path, num_documents: int = 240, seed: int = 0) -> Toy:
    """Write the artifacts under `folder`.

    Args:
        folder: an empty directory.
        num_documents: documents of three chunks.
        seed: of the texts.

    Returns:
        the toy world.
    """
    chunks = _chunks(num_documents, np.random.default_rng(seed))
    library = ConceptLibrary([_card(concept_id, chunks) for concept_id in range(len(CONCEPTS))])
    annotated_dir, packed_dir = folder / "annotated", folder / "packed"
    with Stage(annotated_dir, "annotated", {"seed": seed}, {}).write() as writing:
        writer = ChunkWriter(writing.dir, EMBEDDING_WIDTH)
        writer.add(chunks, np.ones((len(chunks), EMBEDDING_WIDTH), dtype=np.float32))
        writer.close()
        library.save(writing.dir / "concepts.parquet")
        writing.counts["chunks"] = len(chunks)
    tokenizer = train_tokenizer([chunk.text for chunk in chunks], 400)
    pack_corpus(annotated_dir, tokenizer, packed_dir, PackSettings(length=LENGTH, token_window=4))
    return Toy(AnnotatedCorpus.open(annotated_dir), PackedCorpus.open(packed_dir), library)


def _chunks(num_documents: int, rng: np.random.Generator) -> list[Chunk]:
    chunks: list[Chunk] = []
    for number in range(num_documents):
        collection = list(COLLECTIONS)[number % 2]
        document_id = f"{number:032x}"
        start = 0
        for _ in range(3):
            text, labels = _text(COLLECTIONS[collection], number % 2, rng)
            chunks.append(
                Chunk(
                    row=len(chunks),
                    chunk_id=f"{document_id}:{start}",
                    document_id=document_id,
                    start=start,
                    stop=start + len(text),
                    text=text,
                    labels=labels,
                    source=f"{collection}/{number}",
                    license="CC0",
                    title=f"document {number}",
                    domain=collection,
                    split=split_of(document_id),
                )
            )
            start += len(text)
    return chunks


def _text(filler: tuple[str, ...], kind: int, rng: np.random.Generator) -> tuple[str, tuple[Label, ...]]:
    """Words, two of them of one concept in three chunks of four; collections have favourite concepts."""
    words = [str(word) for word in rng.choice(filler, size=CHUNK_WORDS)]
    odds = np.array([3.0, 1.0, 2.0, 2.0, 1.0, 3.0][:: 1 if kind else -1])
    carried = rng.choice(len(CONCEPTS), p=odds / odds.sum()) if rng.random() < 0.75 else None
    if carried is None:
        return " ".join(words) + "\n", ()
    own = list(CONCEPTS.values())[int(carried)]
    places = sorted(int(place) for place in rng.choice(CHUNK_WORDS, size=2, replace=False))
    for place in places:
        words[place] = str(rng.choice(own))
    starts = [len(" ".join(words[:place])) + (place > 0) for place in places]
    spans = tuple((start, start + len(words[place])) for start, place in zip(starts, places, strict=True))
    return " ".join(words) + "\n", (Label(int(carried), 5.0, spans),)


def _card(concept_id: int, chunks: list[Chunk]) -> Card:
    name = list(CONCEPTS)[concept_id]
    num_chunks = sum(label.concept_id == concept_id for chunk in chunks for label in chunk.labels)
    words = CONCEPTS[name]
    return Card(
        concept_id=concept_id,
        head="known",
        name=name,
        description=f"about {name}",
        kind="content",
        words=words,
        lift=(9.0,) * len(words),
        path=(),
        num_chunks=num_chunks,
        threshold=3.0,
        is_automatic=True,
    )


def make_reader(toy: Toy, attention: float = 0.0) -> ConceptLM:
    """A model that reads concepts by construction: each has a channel of its own, set by its words.

    Args:
        toy: the toy world.
        attention: how strongly a position takes over the mean channels of what it sees.

    Returns:
        the model; without attention all masked positions are alike.
    """
    tokenizer = toy.packed.tokenizer()
    ids = {name: getattr(tokenizer, name) for name in ("pad_id", "bos_id", "eos_id", "eoc_id", "mask_id")}
    shape = {
        "num_layers": 1,
        "num_heads": 2,
        "num_kv_heads": 2,
        "width": WIDTH,
        "block": 8,
        "norm_order": "pre",
    }
    known = {"num_concepts": len(CONCEPTS), "top_k_known": 2, "top_k_known_features": 2}
    discovered = {"num_discovered": 5, "discovered_rank": 2, "top_k_discovered": 2}
    values = {"vocab_size": tokenizer.vocab_size, "max_length": toy.packed.length, "tie_embeddings": False}
    model = init_model(ModelConfig.parse({**values, **ids, **shape, **known, **discovered, "clip_qkv": None}), seed=0)
    model.requires_grad_(False)
    for name, weight in model.named_parameters():
        if name.endswith("c_proj.weight"):
            weight.zero_()
    model.get_parameter("transformer.blocks.0.attn.c_attn.weight").zero_()[-WIDTH:] = torch.eye(WIDTH)
    model.get_parameter("transformer.blocks.0.attn.c_proj.weight")[:] = attention * torch.eye(WIDTH)
    embedding = model.get_parameter("transformer.tok_emb.weight").zero_()
    head = model.get_parameter("transformer.lm_head.weight").mul_(5)
    predictor = model.get_parameter("known_head.concept_predictor.weight").zero_()
    concepts = model.get_parameter("known_head.concept_embedding.weight").zero_()
    embedding[:, -1] = 1.0
    for concept_id, words in enumerate(CONCEPTS.values()):
        own = [token_id for word in words for token_id in tokenizer.encode(" " + word)]
        embedding[own, concept_id], head[own, concept_id] = 1.0, 3.0
        predictor[concept_id, concept_id], predictor[concept_id, -1] = 3.0, -4.0
        concepts[concept_id, concept_id] = 1.0
    return model.eval()
