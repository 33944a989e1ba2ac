"""Writes small annotated corpora, with random words and random labels, for the tests of packing."""

from pathlib import Path

import numpy as np

from vitrail.artifacts import Stage
from vitrail.atlas import Card, Chunk, ConceptLibrary, Label
from vitrail.atlas.annotated import ChunkWriter
from vitrail.corpus import split_of

WORDS = ["graph", "node", "edge", "river", "mountain", "court", "judge", "minister", "array", "matrix", "sum", "naïve"]
NUM_CONCEPTS = 7


def random_chunks(seed: int, num_documents: int, max_words: int = 20) -> list[Chunk]:
    generator = np.random.default_rng(seed)
    chunks: list[Chunk] = []
    for number in range(num_documents):
        start = 0
        document_id = f"{seed:03d}-{number:05d}"
        for _ in range(generator.integers(1, 5)):
            text = " ".join(generator.choice(WORDS, generator.integers(1, max_words))) + ". "
            concepts = generator.choice(NUM_CONCEPTS, generator.integers(0, 3), replace=False)
            labels = tuple(Label(int(c), 1.0, ((0, min(4, len(text))),) if c % 2 else ()) for c in concepts)
            place = (len(chunks), f"{document_id}:{start}", document_id, start, start + len(text))
            split = split_of(document_id)
            chunks.append(
                Chunk(*place, text, labels, f"source/{number}", "CC0", "Title", f"domain {number % 3}", split)
            )
            start += len(text)
    return chunks


def write_annotated(path: Path, chunks: list[Chunk]) -> Path:
    with Stage(path, "annotated", {}, {}).write() as writing:
        writer = ChunkWriter(writing.dir, 3)
        writer.add(chunks, np.zeros((len(chunks), 3), np.float32))
        writer.close()
        cards = [
            Card(c, "known", f"concept {c}", "", "content", ("w",), (1.0,), (), 1, 0.5, True)
            for c in range(NUM_CONCEPTS)
        ]
        ConceptLibrary(cards).save(writing.dir / "concepts.parquet")
        writing.counts["chunks"] = len(chunks)
    return path
