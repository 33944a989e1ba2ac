"""Windows of an annotated corpus as packed documents: `[BOS]`, then each chunk and `<|endofchunk|>`, then the end.

A window is the documents that begin in a stretch of rows, whole; so windows cover the corpus once, and each can be read
without those before it.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, groupby, islice
from operator import attrgetter

import numpy as np

from vitrail.atlas import AnnotatedCorpus, Chunk
from vitrail.errors import ArtifactError, ConfigError
from vitrail.packed.settings import PackSettings
from vitrail.packed.units import Dropped, PackedChunk, PackedDocument, Unit
from vitrail.text import Tokenizer

PACKED_SPLITS = ("train", "heldout")
_ENCODE_DOCUMENTS = 256
_CONTROLS = 3
"""Control tokens that a chunk may need beside it: start and end of its document, and its own end."""


class AnnotatedWindows:
    """Reads windows of an annotated corpus and encodes them."""

    def __init__(self, corpus: AnnotatedCorpus, tokenizer: Tokenizer, settings: PackSettings, num_known: int) -> None:
        """Set up.

        Args:
            corpus: what is packed.
            tokenizer: what to encode with.
            settings: of the packing.
            num_known: concepts of the corpus' library; a label beyond them is refused.
        """
        self._corpus, self._tokenizer, self._settings, self._num_known = corpus, tokenizer, settings, num_known
        self._num_bytes = np.array([len(tokenizer.token_bytes(t)) for t in range(tokenizer.vocab_size)])

    def documents(self, window: int) -> Iterator[PackedDocument]:
        """The documents of a window, encoded.

        Args:
            window: 0, 1, 2, …

        Yields:
            documents of the packed splits, in order.

        Raises:
            ConfigError: a chunk does not fit a sequence, and the settings do not say to drop it.
            ArtifactError: a label is of no known concept, or the corpus is damaged.
        """
        kept = (chunks for chunks in self._chunks(window) if chunks[0].split in PACKED_SPLITS)
        while slab := list(islice(kept, _ENCODE_DOCUMENTS)):
            encoded = iter(self._tokenizer.encode_batch([chunk.text for chunk in chain.from_iterable(slab)]))
            for chunks in slab:
                yield self._document(chunks, list(islice(encoded, len(chunks))))

    def _chunks(self, window: int) -> Iterator[list[Chunk]]:
        """The documents whose first chunk lies in the window."""
        start = window * self._settings.shard_chunks
        stop = start + self._settings.shard_chunks
        documents = groupby(self._corpus.chunks(max(0, start - 1)), key=attrgetter("document_id"))
        if start:
            _, before = next(documents)
            if any(chunk.row >= stop for chunk in before):
                return
        for _, chunks in documents:
            first = next(chunks)
            if first.row >= stop:
                return
            yield [first, *chunks]

    def _document(self, chunks: Sequence[Chunk], encoded: Sequence[list[int]]) -> PackedDocument:
        most = self._settings.length - _CONTROLS
        kept: list[tuple[Chunk, list[int]]] = []
        dropped: list[Dropped] = []
        for chunk, tokens in zip(chunks, encoded, strict=True):
            if len(tokens) <= most:
                kept.append((chunk, tokens))
                continue
            where = f"chunk {chunk.chunk_id} ({chunk.source}): {len(tokens)} tokens"
            if self._settings.long_chunks == "error":
                raise ConfigError(
                    f"{where}, a sequence holds {most}; set length to more than {self._settings.length}, "
                    "or long_chunks to 'drop'"
                )
            dropped.append(Dropped(chunk.chunk_id, where))
        units = [self._unit(*pair, place == 0, place == len(kept) - 1) for place, pair in enumerate(kept)]
        return PackedDocument(chunks[0].split, self._group(chunks[0]), units, tuple(dropped))

    def _group(self, chunk: Chunk) -> str:
        by = self._settings.group_by
        return "" if by == "none" else chunk.source if by == "source" else chunk.domain

    def _unit(self, chunk: Chunk, tokens: list[int], is_first: bool, is_last: bool) -> Unit:
        for label in chunk.labels:
            if not 0 <= label.concept_id < self._num_known:
                raise ArtifactError(
                    f"{self._corpus.path}: chunk {chunk.chunk_id} carries concept {label.concept_id}, the library has "
                    f"{self._num_known} (0..{self._num_known - 1}); annotate the corpus again with its atlas"
                )
        start = [self._tokenizer.bos_id] if is_first else []
        end = [self._tokenizer.eos_id] if is_last else []
        pairs = sorted(set(self._token_labels(chunk, tokens)))
        packed = PackedChunk(
            row=chunk.row,
            start=len(start),
            size=len(tokens),
            num_bytes=len(chunk.text.encode()),
            label_concept=[label.concept_id for label in chunk.labels],
            span_pos=[len(start) + pos for pos, _ in pairs],
            span_concept=[concept for _, concept in pairs],
        )
        return Unit(np.array([*start, *tokens, self._tokenizer.eoc_id, *end], np.uint32), packed)

    def _token_labels(self, chunk: Chunk, tokens: list[int]) -> Iterable[tuple[int, int]]:
        """(token of the chunk, concept) for every token in or near a span."""
        window = self._settings.token_window
        ends = self._ends(chunk, tokens) if any(label.spans for label in chunk.labels) else []
        for label in chunk.labels:
            for start, stop in label.spans:
                first = bisect_right(ends, len(chunk.text[:start].encode()))
                last = bisect_left(ends, len(chunk.text[:stop].encode()))
                for pos in range(max(0, first - window), min(len(ends), last + 1 + window)):
                    yield pos, label.concept_id

    def _ends(self, chunk: Chunk, tokens: list[int]) -> list[int]:
        """Bytes of the text up to each token's end."""
        if self._tokenizer.is_byte_exact:
            ends: list[int] = np.cumsum(self._num_bytes[tokens]).tolist() if tokens else []
            return ends
        _, offsets = self._tokenizer.encode_with_offsets(chunk.text)
        return [len(chunk.text[:stop].encode()) for _, stop in offsets]
