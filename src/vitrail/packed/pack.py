"""The packing stage: an annotated corpus in, token shards with aligned labels out (§4.5.2).

Layout of a document: `[BOS]`, then each chunk followed by `<|endofchunk|>`, then `<|endoftext|>`. Chunks are
whole: none straddles two sequences. Documents go through in *windows*, each packed by itself, so memory holds
one window. Splits `train` and `heldout` are packed; `judge` documents are not.

Files per split (all `.npy`): `tokens` [S T]; `sequence_chunks` [S+1], the first chunk of each sequence; per
chunk `row`, `start` and `size` (tokens, without control tokens), `num_bytes`; as compressed rows `labels`
[chunks+1] → `label_concept`, and `spans` [chunks+1] → `span_pos` (place in the sequence), `span_concept`.
"""

import contextlib
import json
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, groupby, islice
from pathlib import Path
from types import TracebackType
from typing import Literal

import numpy as np
from pydantic import Field

from vitrail.artifacts import Manifest, Stage, Writing, read_manifest
from vitrail.atlas import AnnotatedCorpus, Chunk
from vitrail.errors import ConfigError, CorpusError
from vitrail.packed.columns import ColumnWriter
from vitrail.packed.filling import fill_sequences
from vitrail.settings import Settings
from vitrail.text import Tokenizer

KIND = "packed"
TOKENIZER_FOLDER = "tokenizer"
PACKED_SPLITS: tuple[Literal["train", "heldout"], ...] = ("train", "heldout")
CHUNK_COLUMNS = {"row": "i8", "start": "i4", "size": "i4", "num_bytes": "i4"}
LABEL_COLUMNS = {"label_concept": "i4", "span_pos": "i4", "span_concept": "i4"}
OFFSET_COLUMNS = ("sequence_chunks", "labels", "spans")

_WINDOW_CHUNKS = 50_000
_ENCODE_CHUNKS = 1_024


class PackSettings(Settings):
    """How sequences are packed."""

    length: int = Field(default=256, ge=8)
    """T, tokens of a sequence."""
    long_chunks: Literal["error", "drop"] = "error"
    """A chunk that does not fit a sequence: stop, or leave it out and list it in `dropped.jsonl`."""
    token_window: int = Field(default=4, ge=0)
    """Tokens on either side of a label's span that carry it as a token-level label, within the chunk."""


@dataclass(frozen=True)
class _Encoded:
    """A chunk in tokens: its unit is `tokens` between the control tokens."""

    chunk: Chunk
    tokens: list[int]
    span_pos: list[int]
    span_concept: list[int]


def pack_corpus(annotated_dir: Path, tokenizer: Tokenizer, out: Path, settings: PackSettings) -> Manifest:
    """Pack an annotated corpus into sequences of equal length (kind `packed`).

    The directory also holds the tokenizer and the library of concepts, so that training needs nothing else.

    Args:
        annotated_dir: annotated corpus.
        tokenizer: what to encode with.
        out: directory to be made; if it is there already and made of the same, nothing is done.
        settings: length and treatment of long chunks.

    Returns:
        the manifest; counts: `concepts`, and per split `<split>_sequences`, `_chunks`, `_tokens` (without
        control tokens), `_padding_tokens`, `_text_bytes`, `_labels`, `_dropped_chunks`.

    Raises:
        ArtifactError: `annotated_dir` is not an annotated corpus, or `out` holds something else.
        ConfigError: a chunk does not fit a sequence.
        CorpusError: the train split is empty.
        RunFailed: the disk is full.

    Cost: about 2 MB of text per core-second.
    """
    values = {**settings.model_dump(), "tokenizer": tokenizer.fingerprint}
    stage = Stage(out, KIND, values, {"annotated": annotated_dir})
    if stage.is_done:
        return read_manifest(out, KIND)
    corpus = AnnotatedCorpus.open(annotated_dir)
    with stage.write() as writing, contextlib.ExitStack() as stack:
        library = corpus.library()
        library.save(writing.dir / "concepts.parquet")
        tokenizer.save(writing.dir / TOKENIZER_FOLDER)
        writing.counts["concepts"] = library.num_known
        packers = {
            split: stack.enter_context(_SplitPacker(split, writing, tokenizer, settings)) for split in PACKED_SPLITS
        }
        for chunks in _documents(corpus.chunks()):
            if chunks[0].split in packers:
                packers[chunks[0].split].add(chunks)
        for packer in packers.values():
            packer.finish()
        if not writing.counts["train_sequences"]:
            raise CorpusError(f"{annotated_dir}: no document falls into the train split; import more documents")
    return read_manifest(out, KIND)


def _documents(chunks: Iterable[Chunk]) -> Iterator[list[Chunk]]:
    for _, group in groupby(chunks, key=lambda chunk: chunk.document_id):
        yield list(group)


class _SplitPacker:
    """Packs the documents of one split, window by window."""

    def __init__(
        self,
        split: Literal["train", "heldout"],
        writing: Writing,
        tokenizer: Tokenizer,
        settings: PackSettings,
    ) -> None:
        self._split = split
        self._writing = writing
        self._tokenizer = tokenizer
        self._settings = settings
        self._num_bytes = np.array([len(tokenizer.token_bytes(t)) for t in range(tokenizer.vocab_size)])
        self._window: list[list[Chunk]] = []
        self._num_waiting = 0
        self._counts = dict.fromkeys(
            ("sequences", "chunks", "tokens", "padding_tokens", "text_bytes", "labels", "dropped_chunks"), 0
        )
        self._stack = contextlib.ExitStack()
        folder = writing.dir / split
        folder.mkdir()
        self._columns = {
            name: self._stack.enter_context(ColumnWriter(folder / f"{name}.npy", dtype))
            for name, dtype in {
                **CHUNK_COLUMNS,
                **LABEL_COLUMNS,
                **dict.fromkeys(OFFSET_COLUMNS, "i8"),
            }.items()
        }
        token_dtype = "u2" if tokenizer.vocab_size <= 2**16 else "u4"
        self._tokens = self._stack.enter_context(ColumnWriter(folder / "tokens.npy", token_dtype, settings.length))
        for name in OFFSET_COLUMNS:
            self._columns[name].append([0])

    def __enter__(self) -> "_SplitPacker":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, failure: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.__exit__(kind, failure, trace)

    def add(self, chunks: list[Chunk]) -> None:
        self._window.append(chunks)
        self._num_waiting += len(chunks)
        if self._num_waiting >= _WINDOW_CHUNKS:
            self._pack_window()

    def finish(self) -> None:
        self._pack_window()
        self._writing.counts.update({f"{self._split}_{name}": count for name, count in self._counts.items()})

    def _pack_window(self) -> None:
        documents = [kept for kept in map(self._without_long, self._encode()) if kept]
        units = [[self._unit(document, place) for place in range(len(document))] for document in documents]
        for runs in fill_sequences([[len(unit) for unit in row] for row in units], self._settings.length):
            places = [(run.document, place) for run in runs for place in range(run.first, run.stop)]
            self._write_sequence([(documents[d][p], units[d][p]) for d, p in places])
        self._window, self._num_waiting = [], 0

    def _encode(self) -> Iterator[list[_Encoded]]:
        encoded = chain.from_iterable(map(self._encode_slab, _slabs(chain.from_iterable(self._window))))
        for document in self._window:
            yield list(islice(encoded, len(document)))

    def _encode_slab(self, chunks: list[Chunk]) -> Iterator[_Encoded]:
        batch = self._tokenizer.encode_batch([chunk.text for chunk in chunks])
        for chunk, tokens in zip(chunks, batch, strict=True):
            ends = np.cumsum(self._num_bytes[tokens]).tolist() if tokens else []
            pairs = sorted(set(_token_labels(chunk, ends, self._settings.token_window)))
            yield _Encoded(chunk, tokens, [pos for pos, _ in pairs], [concept for _, concept in pairs])

    def _without_long(self, document: list[_Encoded]) -> list[_Encoded]:
        """Chunks that fit with every control token they could need."""
        most = self._settings.length - 3
        for long in (encoded for encoded in document if len(encoded.tokens) > most):
            chunk = long.chunk
            where = f"chunk {chunk.chunk_id} ({chunk.source}): {len(long.tokens)} tokens"
            if self._settings.long_chunks == "error":
                raise ConfigError(
                    f"{where}, a sequence holds {most}; set length to more than {self._settings.length}, "
                    "or long_chunks to 'drop'"
                )
            self._counts["dropped_chunks"] += 1
            with (self._writing.dir / "dropped.jsonl").open("a", encoding="utf-8") as file:
                file.write(json.dumps({"chunk_id": chunk.chunk_id, "reason": where}) + "\n")
        return [encoded for encoded in document if len(encoded.tokens) <= most]

    def _unit(self, document: list[_Encoded], place: int) -> list[int]:
        start = [self._tokenizer.bos_id] if place == 0 else []
        end = [self._tokenizer.eos_id] if place == len(document) - 1 else []
        return [*start, *document[place].tokens, self._tokenizer.eoc_id, *end]

    def _write_sequence(self, parts: Sequence[tuple[_Encoded, list[int]]]) -> None:
        tokens = np.full((1, self._settings.length), self._tokenizer.pad_id)
        columns: dict[str, list[int]] = {name: [] for name in self._columns}
        begin = 0
        for encoded, unit in parts:
            start = begin + (unit[0] == self._tokenizer.bos_id)
            tokens[0, begin : begin + len(unit)] = unit
            columns["row"].append(encoded.chunk.row)
            columns["start"].append(start)
            columns["size"].append(len(encoded.tokens))
            columns["num_bytes"].append(len(encoded.chunk.text.encode()))
            columns["label_concept"] += [label.concept_id for label in encoded.chunk.labels]
            columns["span_pos"] += [start + pos for pos in encoded.span_pos]
            columns["span_concept"] += encoded.span_concept
            columns["labels"].append(self._columns["label_concept"].num_rows + len(columns["label_concept"]))
            columns["spans"].append(self._columns["span_pos"].num_rows + len(columns["span_pos"]))
            begin += len(unit)
        columns["sequence_chunks"].append(self._columns["row"].num_rows + len(parts))
        self._tokens.append(tokens)
        for name, values in columns.items():
            self._columns[name].append(values)
        self._count(columns, padding=self._settings.length - begin)

    def _count(self, columns: dict[str, list[int]], padding: int) -> None:
        self._counts["sequences"] += 1
        self._counts["chunks"] += len(columns["row"])
        self._counts["tokens"] += sum(columns["size"])
        self._counts["padding_tokens"] += padding
        self._counts["text_bytes"] += sum(columns["num_bytes"])
        self._counts["labels"] += len(columns["label_concept"])


def _slabs(chunks: Iterator[Chunk]) -> Iterator[list[Chunk]]:
    while slab := list(islice(chunks, _ENCODE_CHUNKS)):
        yield slab


def _token_labels(chunk: Chunk, ends: Sequence[int], window: int) -> Iterator[tuple[int, int]]:
    """(token of the chunk, concept) for every token in or near a span; `ends`: bytes up to each token's end."""
    for label in chunk.labels:
        for start, stop in label.spans:
            first = bisect_right(ends, len(chunk.text[:start].encode()))
            last = bisect_left(ends, len(chunk.text[:stop].encode()))
            for pos in range(max(0, first - window), min(len(ends), last + 1 + window)):
                yield pos, label.concept_id
