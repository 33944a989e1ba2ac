"""Annotating a corpus: every document is cut into chunks, every chunk labelled, its vector kept (§4.5.1).

All splits are annotated. Documents come in the order of their ids and go through in slabs of fixed size,
so memory is flat and the result is the same bytes every time.
"""

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import replace
from heapq import heappush, heappushpop
from itertools import combinations, islice
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from threadpoolctl import threadpool_limits

from vitrail.artifacts import Manifest, Stage, read_manifest, read_whole
from vitrail.atlas.annotated.store import KIND, Chunk, ChunkWriter
from vitrail.atlas.annotator import Annotator
from vitrail.atlas.library import LIBRARY_NAME, ConceptLibrary
from vitrail.atlas.settings import AtlasSettings
from vitrail.corpus import Corpus, Document, chunk_text, split_of
from vitrail.errors import CorpusError

SLAB_CHUNKS = 4_096
EXAMPLES_PER_CONCEPT = 5


def annotate_corpus(corpus_dir: Path, atlas_dir: Path, out: Path) -> Manifest:
    """Label every chunk of a corpus (kind `annotated`).

    Args:
        corpus_dir: corpus directory; all splits are annotated.
        atlas_dir: atlas directory; its settings say how long a chunk is.
        out: directory to be made.

    Returns:
        the manifest; counts `chunks`, `labels`, `unlabelled_chunks`, and `<split>_chunks`.

    Raises:
        ArtifactError: an input is not what it should be, or `out` is something else.
        CorpusError: the corpus holds no text.
    """
    stage = Stage(out, KIND, {}, {"corpus": corpus_dir, "atlas": atlas_dir})
    if stage.is_done:
        return read_manifest(out, KIND)
    settings = AtlasSettings.parse(read_whole(atlas_dir, "atlas").settings, where=str(atlas_dir))
    annotator, library = Annotator.load(atlas_dir), ConceptLibrary.load(atlas_dir)
    with stage.write() as writing, threadpool_limits(1):
        guide = _FieldGuide()
        writer = ChunkWriter(writing.dir, annotator.width)
        for slab in _slabs(cut(Corpus.open(corpus_dir).documents(), settings)):
            annotation = annotator.annotate([chunk.text for chunk in slab])
            labelled = [replace(chunk, labels=labels) for chunk, labels in zip(slab, annotation.labels, strict=True)]
            writer.add(labelled, annotation.vectors)
            guide.add(labelled)
        writer.close()
        if not writer.num_chunks:
            raise CorpusError(f"{corpus_dir}: the corpus holds no text to annotate; import documents with text")
        library.save(writing.dir / LIBRARY_NAME)
        guide.write(writing.dir, library)
        writing.counts.update(guide.counts)
    return read_manifest(out, KIND)


def cut(documents: Iterable[Document], settings: AtlasSettings) -> Iterator[Chunk]:
    """The chunks of documents, without labels.

    Args:
        documents: in row order.
        settings: chunk sizes.

    Yields:
        chunks numbered from 0.
    """
    row = 0
    for document in documents:
        for start, stop in chunk_text(document.text, settings.chunk_tokens, settings.chunk_chars):
            yield Chunk(
                row=row,
                chunk_id=f"{document.id}:{start}",
                document_id=document.id,
                start=start,
                stop=stop,
                text=document.text[start:stop],
                labels=(),
                source=document.source,
                license=document.license,
                title=document.title,
                domain=document.domain,
                split=split_of(document.id),
            )
            row += 1


def _slabs(chunks: Iterator[Chunk]) -> Iterator[list[Chunk]]:
    while slab := list(islice(chunks, SLAB_CHUNKS)):
        yield slab


class _FieldGuide:
    """Counts, best examples of each concept, and pairs of concepts, gathered in one pass."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter(chunks=0, labels=0, unlabelled_chunks=0)
        self._pairs: Counter[tuple[int, int]] = Counter()
        self._best: dict[int, list[tuple[float, int, str]]] = {}

    def add(self, chunks: Iterable[Chunk]) -> None:
        for chunk in chunks:
            self.counts.update(
                {
                    "chunks": 1,
                    "labels": len(chunk.labels),
                    "unlabelled_chunks": int(not chunk.labels),
                    f"{chunk.split}_chunks": 1,
                }
            )
            ids = sorted(label.concept_id for label in chunk.labels)
            self._pairs.update([(c, c) for c in ids])
            self._pairs.update(combinations(ids, 2))
            for label in chunk.labels:
                self._keep(label.concept_id, (label.score, -chunk.row, chunk.chunk_id))

    def _keep(self, concept_id: int, example: tuple[float, int, str]) -> None:
        best = self._best.setdefault(concept_id, [])
        if len(best) < EXAMPLES_PER_CONCEPT:
            heappush(best, example)
        else:
            heappushpop(best, example)

    def write(self, folder: Path, library: ConceptLibrary) -> None:
        cards = [card for card in library.cards if card.head == "known"]
        examples = [sorted(self._best.get(card.concept_id, []), reverse=True) for card in cards]
        guide = pa.table(
            {
                "concept_id": pa.array([card.concept_id for card in cards], pa.int32()),
                "name": [card.name for card in cards],
                "num_chunks": pa.array([self._pairs[card.concept_id, card.concept_id] for card in cards], pa.int64()),
                "rows": pa.array([[-row for _, row, _ in best] for best in examples], pa.list_(pa.int64())),
                "chunk_ids": pa.array([[chunk for *_, chunk in best] for best in examples], pa.list_(pa.string())),
                "scores": pa.array([[score for score, *_ in best] for best in examples], pa.list_(pa.float32())),
            }
        )
        pq.write_table(guide, folder / "field_guide.parquet", compression="zstd")
        pairs = sorted(self._pairs)
        table = pa.table(
            {
                "first": pa.array([a for a, _ in pairs], pa.int32()),
                "second": pa.array([b for _, b in pairs], pa.int32()),
                "num_chunks": pa.array([self._pairs[pair] for pair in pairs], pa.int64()),
            }
        )
        pq.write_table(table, folder / "cooccurrence.parquet", compression="zstd")
