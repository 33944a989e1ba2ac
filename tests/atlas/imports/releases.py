"""A synthetic release of the shape of the FineWeb Atlas: five tables in Parquet, rows in a random order."""

import random
from collections import Counter
from dataclasses import dataclass, field
from itertools import combinations
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

WORDS = ("river", "delta", "wind", "stone", "glass", "lead", "light")


@dataclass
class Release:
    """What a release holds, as plain rows; `write` makes its files."""

    concepts: list[dict[str, Any]] = field(default_factory=list)
    documents: list[dict[str, Any]] = field(default_factory=list)
    chunks: list[dict[str, Any]] = field(default_factory=list)
    reverse_index: list[dict[str, Any]] = field(default_factory=list)
    cooccurrence: list[dict[str, Any]] = field(default_factory=list)

    def write(self, folder: Path, order_seed: int = 0, num_files: int = 2) -> Path:
        """Write the tables; the chunks in several files, all rows shuffled."""
        folder.mkdir(parents=True)
        shuffle = random.Random(order_seed).shuffle
        for name in ("concepts", "documents", "chunks", "reverse_index", "cooccurrence"):
            rows = list(getattr(self, name))
            shuffle(rows)
            size = -(-len(rows) // num_files) if name == "chunks" and rows else max(len(rows), 1)
            schema = pa.Table.from_pylist(rows).schema
            for number, first in enumerate(range(0, len(rows), size)):
                table = pa.Table.from_pylist(rows[first : first + size], schema=schema)
                pq.write_table(table, folder / f"{name}-{number}.parquet")
        return folder


def make_release(seed: int = 0, num_documents: int = 23, num_concepts: int = 7) -> Release:
    """A consistent release: concept ids are not 0 to C-1, chunks carry 0 to 3 of them."""
    draw = random.Random(seed)
    ids = sorted(draw.sample(range(100, 1000), num_concepts))
    release = Release(
        concepts=[{"concept_id": i, "name": f"concept {i}", "description": f"About {i}."} for i in ids],
        documents=[
            {"document_id": f"doc-{d}", "source": f"web/{d % 3}", "domain": "odd" if d % 2 else "even"}
            for d in range(num_documents)
        ],
    )
    for d in range(num_documents):
        pos = 0
        for _ in range(draw.randint(1, 5)):
            text = (
                " ".join(draw.choice(["river", "delta", "wind", "stone", "glass", "lead", "light"]) for _ in range(9))
                + ". "
            )
            carried = draw.sample(ids, draw.randint(0, 3))
            release.chunks.append(
                {
                    "chunk_id": f"doc-{d}/{pos}",
                    "document_id": f"doc-{d}",
                    "text": text,
                    "start": pos,
                    "end": pos + len(text),
                    "concept_ids": carried,
                    "scores": [round(draw.uniform(0.5, 1), 3) for _ in carried],
                }
            )
            pos += len(text)
    release.reverse_index = reverse_of(release.chunks)
    release.cooccurrence = pairs_of(release.chunks)
    return release


def reverse_of(chunks: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The reverse index of chunks."""
    found: dict[int, list[str]] = {}
    for chunk in chunks:
        for concept in chunk["concept_ids"]:
            found.setdefault(concept, []).append(chunk["chunk_id"])
    return [{"concept_id": concept, "chunk_ids": ids} for concept, ids in found.items()]


def pairs_of(chunks: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The co-occurrence of chunks, each pair once."""
    counts: Counter[tuple[int, int]] = Counter()
    for chunk in chunks:
        counts.update(combinations(sorted(chunk["concept_ids"]), 2))
    return [{"concept_a": a, "concept_b": b, "count": n} for (a, b), n in counts.items()]
