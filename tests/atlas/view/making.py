"""Small annotated corpora of known content, written with the real writer."""

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from vitrail.artifacts import Stage
from vitrail.atlas import Card, Chunk, ConceptLibrary, Label
from vitrail.atlas.annotated import ChunkWriter
from vitrail.atlas.annotated.chunk import table_of
from vitrail.atlas.annotated.guide import FieldGuide
from vitrail.atlas.library import LIBRARY_NAME
from vitrail.corpus import split_of


@dataclass(frozen=True)
class Spec:
    """A document: its texts, each with concept → spans."""

    name: str
    chunks: Sequence[tuple[str, Mapping[int, Sequence[tuple[int, int]]]]]
    source: str = "web"
    domain: str = "odd"
    title: str = ""


def make_card(concept_id: int, name: str, kind: str = "content", path: tuple[str, ...] = ()) -> Card:
    return Card(
        concept_id=concept_id,
        head="known",
        name=name,
        description=f"Passages on {name}.",
        kind=kind,
        words=(name, "stone"),
        lift=(12.5, 3.0),
        path=path,
        num_chunks=10 + concept_id,
        threshold=0.5,
        is_automatic=True,
    )


def write_annotated(out: Path, cards: Sequence[Card], documents: Sequence[Spec], width: int = 5) -> Path:
    """An annotated corpus; the vector of a chunk is the mean of random directions of its concepts."""
    directions = np.random.default_rng(0).normal(size=(len(cards) + 1, width)).astype(np.float32)
    chunks: list[Chunk] = []
    for document in documents:
        start = 0
        for text, carried in document.chunks:
            labels = tuple(
                Label(c, round(1.0 + 0.01 * len(chunks), 3), tuple(spans)) for c, spans in sorted(carried.items())
            )
            chunks.append(
                Chunk(
                    row=len(chunks),
                    chunk_id=f"{document.name}:{start}",
                    document_id=document.name,
                    start=start,
                    stop=start + len(text),
                    text=text,
                    labels=labels,
                    source=document.source,
                    license="CC0",
                    title=document.title,
                    domain=document.domain,
                    split=split_of(document.name),
                )
            )
            start += len(text)
    vectors = [directions[[*(label.concept_id for label in chunk.labels), len(cards)]].mean(0) for chunk in chunks]
    array = np.array(vectors, np.float32).reshape(len(chunks), width)
    if width:
        array /= np.linalg.norm(array, axis=1, keepdims=True)
    library, guide = ConceptLibrary(cards), FieldGuide()
    with Stage(out, "annotated", {"documents": [repr(document) for document in documents]}, {}).write() as writing:
        writer = ChunkWriter(writing.dir, width)
        writer.add(chunks, array)
        writer.close()
        guide.add(table_of(chunks), 0)
        library.save(writing.dir / LIBRARY_NAME)
        guide.write(writing.dir, library)
        unlabelled = sum(not chunk.labels for chunk in chunks)
        labels_total = sum(len(chunk.labels) for chunk in chunks)
        writing.counts.update(chunks=len(chunks), labels=labels_total, unlabelled_chunks=unlabelled)
    return out


def random_documents(seed: int, num_documents: int, num_concepts: int, num_groups: int = 3) -> list[Spec]:
    """Documents of 1 to 6 chunks that carry 0 to 3 concepts; a span marks the word that stands for each."""
    draw = random.Random(seed)
    found = []
    for number in range(num_documents):
        group = draw.randrange(num_groups)
        chunks = []
        for _ in range(draw.randint(1, 6)):
            carried = sorted(draw.sample(range(num_concepts), draw.randint(0, min(3, num_concepts))))
            text, spans = "The glass. ", {}
            for concept in carried:
                word = f"word{concept}"
                spans[concept] = [(len(text), len(text) + len(word))]
                text += word + " "
            chunks.append((text, spans))
        found.append(
            Spec(f"{seed}-{number:04d}", chunks, f"source/{group}", "even" if group % 2 else "odd", f"Title {number}")
        )
    return found
