"""A real packed corpus of a few dozen documents, each on one of three themes."""

from pathlib import Path

import numpy as np

from vitrail.artifacts import Stage
from vitrail.atlas import Card, Chunk, ConceptLibrary, Label
from vitrail.atlas.annotated import ChunkWriter
from vitrail.corpus import Split
from vitrail.packed import PackSettings, pack_corpus
from vitrail.text import train_tokenizer

THEMES = {
    "cooking": "bread oven flour butter dough",
    "sailing": "boat harbour anchor sail tide",
    "chess": "bishop knight pawn checkmate rook",
}
FILLER = "the and of with near under over some many few that this then"


def _sentence(theme: str, rng: np.random.Generator) -> str:
    words = [*rng.choice(FILLER.split(), 12), *rng.choice(THEMES[theme].split(), 6)]
    return " ".join(rng.permutation(words))


def _chunk(row: int, theme: int, rng: np.random.Generator) -> Chunk:
    text = _sentence(list(THEMES)[theme], rng)
    word = list(THEMES.values())[theme].split()[0]
    start = text.find(word)
    spans = ((start, start + len(word)),) if start >= 0 else ()
    document = f"{row // 3:04}"
    split: Split = "heldout" if row // 3 % 5 == 0 else "train"
    return Chunk(
        row=row,
        chunk_id=f"{document}:{row % 3}",
        document_id=document,
        start=0,
        stop=len(text),
        text=text,
        labels=(Label(concept_id=theme, score=4.0, spans=spans),),
        source="test/themes",
        license="CC0",
        title=document,
        domain="test",
        split=split,
    )


def _card(concept_id: int, name: str) -> Card:
    words = tuple(THEMES[name].split())
    return Card(concept_id, "known", name, f"About {name}.", "content", words, (3.0,) * 5, (), 20, 3.0, True)


def make_packed(root: Path) -> Path:
    """Pack forty short documents on three themes; every fifth is held out."""
    rng = np.random.default_rng(0)
    chunks = [_chunk(row, row % 3, rng) for row in range(120)]
    with Stage(root / "annotated", "annotated", {}, {}).write() as writing:
        writer = ChunkWriter(writing.dir, 4)
        writer.add(chunks, np.ones((len(chunks), 4), dtype=np.float32))
        writer.close()
        ConceptLibrary([_card(i, name) for i, name in enumerate(THEMES)]).save(writing.dir / "concepts.parquet")
        writing.counts["chunks"] = len(chunks)
    tokenizer = train_tokenizer((chunk.text for chunk in chunks), 320)
    settings = PackSettings(length=64, long_chunks="error")
    pack_corpus(root / "annotated", tokenizer, root / "packed", settings)
    return root / "packed"
