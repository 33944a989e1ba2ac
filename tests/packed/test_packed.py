"""Packing: every chunk once and whole, labels where they belong, bad input named."""

import json
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.packed.annotated import NUM_CONCEPTS, random_chunks, write_annotated
from vitrail.artifacts import read_json, write_json
from vitrail.atlas import Chunk, Label
from vitrail.errors import ArtifactError, ConfigError, CorpusError
from vitrail.packed import PackedCorpus, PackedSplit, PackSettings, fill_sequences, pack_corpus
from vitrail.text import Tokenizer

LENGTH = 67
SPLITS: tuple[PackedSplit, ...] = ("train", "heldout")


@pytest.fixture(scope="module")
def chunks() -> list[Chunk]:
    return random_chunks(1, 150)


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory, tokenizer: Tokenizer, chunks: list[Chunk]) -> PackedCorpus:
    folder = tmp_path_factory.mktemp("runs")
    write_annotated(folder / "annotated", chunks)
    pack_corpus(folder / "annotated", tokenizer, folder / "packed", PackSettings(length=LENGTH, token_window=1))
    return PackedCorpus.open(folder / "packed")


sizes = st.lists(st.lists(st.integers(1, 31), min_size=1, max_size=6), max_size=30)


@settings(max_examples=60, deadline=None)
@given(sizes=sizes)
def test_every_chunk_is_in_one_sequence_and_fits(sizes: list[list[int]]) -> None:
    sequences = fill_sequences(sizes, 31)
    placed = [(run.document, place) for runs in sequences for run in runs for place in range(run.first, run.stop)]
    assert Counter(placed) == Counter((d, p) for d, row in enumerate(sizes) for p in range(len(row)))
    for runs in sequences:
        assert sum(sum(sizes[run.document][run.first : run.stop]) for run in runs) <= 31
    for document in range(len(sizes)):
        order = [place for d, place in placed if d == document]
        assert order == sorted(order), "a document's chunks stay in order"


def test_little_is_padded_where_sizes_vary() -> None:
    generator = np.random.default_rng(3)
    sizes = [generator.integers(50, 110, generator.integers(1, 12)).tolist() for _ in range(400)]
    used = sum(map(sum, sizes))
    assert 1 - used / (256 * len(fill_sequences(sizes, 256))) < 0.06


def test_packed_text_is_the_annotated_text(packed: PackedCorpus, chunks: list[Chunk]) -> None:
    tokenizer = packed.tokenizer()
    seen: list[int] = []
    for split in SPLITS:
        batch = packed.batch(split, range(packed.num_sequences(split)))
        for number, row in enumerate(batch.rows.tolist()):
            ids = batch.tokens[batch.chunk == number].tolist()
            assert tokenizer.decode(ids) == chunks[row].text
            assert chunks[row].split == split
            assert len(torch.unique((batch.chunk == number).nonzero()[:, 0])) == 1, "a chunk straddles two sequences"
        assert batch.num_bytes == sum(len(chunks[row].text.encode()) for row in batch.rows.tolist())
        seen += batch.rows.tolist()
    assert sorted(seen) == [chunk.row for chunk in chunks if chunk.split != "judge"]


def test_control_tokens_stand_around_documents_and_chunks(packed: PackedCorpus) -> None:
    tokenizer = packed.tokenizer()
    for split in SPLITS:
        batch = packed.batch(split, range(packed.num_sequences(split)))
        is_control = batch.chunk == -1
        assert set(batch.tokens[is_control].tolist()) <= tokenizer.special_ids
        assert not set(batch.tokens[~is_control].tolist()) & tokenizer.special_ids
        num = {name: int((batch.tokens == getattr(tokenizer, f"{name}_id")).sum()) for name in ("bos", "eos", "eoc")}
        assert num["bos"] == num["eos"], "every document begins and ends"
        assert num["eoc"] == batch.num_chunks
        counts = packed.manifest.counts
        assert int((batch.tokens == tokenizer.pad_id).sum()) == counts[f"{split}_padding_tokens"]
        assert int((~is_control).sum()) == counts[f"{split}_tokens"]


def test_labels_and_spans_are_aligned(packed: PackedCorpus, chunks: list[Chunk]) -> None:
    tokenizer = packed.tokenizer()
    batch = packed.batch("train", range(packed.num_sequences("train")))
    pairs = zip(batch.label_chunk.tolist(), batch.label_concept.tolist(), strict=True)
    carried = {(int(batch.rows[chunk]), concept) for chunk, concept in pairs}
    packed_chunks = [chunk for chunk in chunks if chunk.split == "train"]
    assert carried == {(chunk.row, label.concept_id) for chunk in packed_chunks for label in chunk.labels}
    spans = zip(batch.span_pos.tolist(), batch.span_concept.tolist(), strict=True)
    marked = Counter((int(batch.rows[batch.chunk.flatten()[pos]]), concept) for pos, concept in spans)
    expected: Counter[tuple[int, int]] = Counter()
    for chunk in packed_chunks:
        _, offsets = tokenizer.encode_with_offsets(chunk.text)
        inside = [pos for pos, (start, stop) in enumerate(offsets) if start < 4 and stop > 0]
        for label in chunk.labels:
            if label.spans:  # the span starts with the chunk: the window of one token adds one at its end
                expected[chunk.row, label.concept_id] = min(len(offsets), len(inside) + 1)
    assert marked == expected


@settings(max_examples=15, deadline=None)
@given(data=st.data())
def test_a_batch_is_its_rows_side_by_side(packed: PackedCorpus, data: st.DataObject) -> None:
    num = packed.num_sequences("train")
    rows = data.draw(st.lists(st.integers(0, num - 1), min_size=1, max_size=5))
    batch = packed.batch("train", rows)
    alone = [packed.batch("train", [row]) for row in rows]
    assert torch.equal(batch.tokens, torch.cat([one.tokens for one in alone]))
    assert torch.equal(batch.rows, torch.cat([one.rows for one in alone]))
    assert torch.equal(batch.label_concept, torch.cat([one.label_concept for one in alone]))
    shifted = [one.span_pos + place * LENGTH for place, one in enumerate(alone)]
    assert torch.equal(batch.span_pos, torch.cat(shifted))
    assert batch.num_chunks == sum(one.num_chunks for one in alone)


def test_packing_twice_gives_the_same_bytes(
    packed: PackedCorpus, tokenizer: Tokenizer, tmp_path: Path, chunks: list[Chunk]
) -> None:
    write_annotated(tmp_path / "annotated", chunks)
    values = PackSettings(length=LENGTH, token_window=1)
    manifest = pack_corpus(tmp_path / "annotated", tokenizer, tmp_path / "packed", values)
    assert manifest.files == packed.manifest.files
    assert manifest.id == packed.manifest.id
    assert packed.num_concepts == NUM_CONCEPTS


def test_long_chunks_are_an_error_or_dropped_and_listed(tmp_path: Path, tokenizer: Tokenizer) -> None:
    annotated = write_annotated(tmp_path / "annotated", random_chunks(2, 40, max_words=30))
    with pytest.raises(ConfigError, match="a sequence holds 21; set length"):
        pack_corpus(annotated, tokenizer, tmp_path / "packed", PackSettings(length=24))
    assert not (tmp_path / "packed").exists()
    values = PackSettings(length=24, long_chunks="drop")
    counts = pack_corpus(annotated, tokenizer, tmp_path / "packed", values).counts
    dropped = counts["train_dropped_chunks"] + counts["heldout_dropped_chunks"]
    assert dropped > 0
    assert len((tmp_path / "packed" / "dropped.jsonl").read_text().splitlines()) == dropped


def test_bad_input_is_named(packed: PackedCorpus, tokenizer: Tokenizer, tmp_path: Path) -> None:
    with pytest.raises(IndexError, match="the split has"):
        packed.batch("train", [packed.num_sequences("train")])
    heldout = [chunk for chunk in random_chunks(3, 40) if chunk.split == "heldout"]
    annotated = write_annotated(tmp_path / "annotated", heldout)
    with pytest.raises(CorpusError, match="no document falls into the train split"):
        pack_corpus(annotated, tokenizer, tmp_path / "packed", PackSettings())
    write_annotated(tmp_path / "whole", random_chunks(4, 5))
    pack_corpus(tmp_path / "whole", tokenizer, tmp_path / "packed", PackSettings())
    with pytest.raises(ConfigError, match="at least one process"):
        pack_corpus(tmp_path / "whole", tokenizer, tmp_path / "packed", PackSettings(), workers=0)
    shard = tmp_path / "packed" / "shards" / "00000.train.safetensors"
    shard.write_bytes(shard.read_bytes()[:200])
    with pytest.raises(ArtifactError, match=r"00000\.train\.safetensors: damaged or missing \(200 bytes instead of"):
        PackedCorpus.open(tmp_path / "packed")


def test_another_layout_is_named(tokenizer: Tokenizer, tmp_path: Path) -> None:
    pack_corpus(write_annotated(tmp_path / "annotated", random_chunks(4, 5)), tokenizer, tmp_path / "p", PackSettings())
    values = read_json(tmp_path / "p" / "manifest.json")
    del values["settings"]["layout"]
    write_json(tmp_path / "p" / "manifest.json", values)
    with pytest.raises(ArtifactError, match="packed in layout 1, this vitrail reads 2; pack the corpus again"):
        PackedCorpus.open(tmp_path / "p")


def test_labels_of_another_library_are_refused(tokenizer: Tokenizer, tmp_path: Path) -> None:
    """They would silently mean other concepts."""
    chunks = [replace(chunk, labels=(Label(NUM_CONCEPTS, 1.0, ()),)) for chunk in random_chunks(4, 5)]
    annotated = write_annotated(tmp_path / "annotated", chunks)
    named = rf"chunk {chunks[0].chunk_id} carries concept {NUM_CONCEPTS}, the library has {NUM_CONCEPTS} \(0\.\.6\)"
    with pytest.raises(ArtifactError, match=named):
        pack_corpus(annotated, tokenizer, tmp_path / "packed", PackSettings())
    library = annotated / "concepts.parquet"
    library.write_bytes(library.read_bytes().swapcase())  # of the same length, which a look at sizes does not notice
    with pytest.raises(ArtifactError, match=r"concepts\.parquet: damaged \(not the bytes it was made with\)"):
        pack_corpus(annotated, tokenizer, tmp_path / "packed", PackSettings())


def test_loss_mask_is_all_but_padding(packed: PackedCorpus) -> None:
    batch = packed.batch("train", range(packed.num_sequences("train")))
    assert torch.equal(batch.loss_mask, batch.tokens != packed.tokenizer().pad_id)
    assert not batch.loss_mask.all()


@pytest.mark.parametrize("group_by", ["none", "source", "domain"])
def test_sequences_hold_one_group_or_one_document(
    group_by: str, tokenizer: Tokenizer, chunks: list[Chunk], tmp_path: Path
) -> None:
    annotated = write_annotated(tmp_path / "annotated", chunks)
    for documents in ("mixed", "one"):
        values = PackSettings.parse(
            {"length": LENGTH, "group_by": group_by, "documents": documents, "shard_chunks": 97}
        )
        pack_corpus(annotated, tokenizer, tmp_path / documents, values)
        packed = PackedCorpus.open(tmp_path / documents)
        names = packed.groups_of("train", range(packed.num_sequences("train")))
        assert Counter(names) == packed.groups("train")
        seen: list[int] = []
        for row, name in enumerate(names):
            held = [chunks[chunk] for chunk in packed.batch("train", [row]).rows.tolist()]
            seen += [chunk.row for chunk in held]
            assert {"" if group_by == "none" else getattr(chunk, group_by) for chunk in held} == {name}
            if documents == "one":
                assert len({chunk.document_id for chunk in held}) == 1
        assert sorted(seen) == [chunk.row for chunk in chunks if chunk.split == "train"]
        for name, count in packed.groups("train").items():
            rows = packed.rows_of("train", name, np.arange(count))
            assert rows.tolist() == [row for row, other in enumerate(names) if other == name]


@pytest.mark.parametrize(
    ("column", "byte"),
    [
        ("tokens", 0xFF),
        ("sequence_chunks", 0xFF),
        ("labels", 0xFF),
        ("labels", 0x7F),
        ("spans", 0x7F),
        ("label_concept", 0xFF),
        ("label_concept", 0x7F),
        ("span_concept", 0xFF),
        ("span_pos", 0x7F),
        ("start", 0xFF),
        ("size", 0x7F),
    ],
)
def test_values_that_cannot_be_name_the_shard(
    column: str, byte: int, tokenizer: Tokenizer, chunks: list[Chunk], tmp_path: Path
) -> None:
    annotated = write_annotated(tmp_path / "annotated", chunks)
    pack_corpus(annotated, tokenizer, tmp_path / "packed", PackSettings(length=LENGTH, token_window=1))
    shard = tmp_path / "packed" / "shards" / "00000.train.safetensors"
    data = shard.read_bytes()
    begin = 8 + int.from_bytes(data[:8], "little")
    first, stop = (begin + place for place in json.loads(data[8:begin])[column]["data_offsets"])
    shard.write_bytes(data[:first] + bytes([byte]) * (stop - first) + data[stop:])
    packed = PackedCorpus.open(tmp_path / "packed")
    with pytest.raises(ArtifactError, match=r"00000\.train\.safetensors: damaged \(.*pack the corpus again"):
        packed.batch("train", range(packed.num_sequences("train")))
