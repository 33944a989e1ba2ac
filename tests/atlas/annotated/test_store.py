"""What is written comes back, whatever the sizes of the parts; guides of shards add up to the guide of the whole."""

from collections import Counter
from itertools import combinations_with_replacement
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vitrail.artifacts import Stage
from vitrail.atlas import AnnotatedCorpus, Card, Chunk, ConceptLibrary, Label
from vitrail.atlas.annotated import ChunkWriter, writer
from vitrail.atlas.annotated.chunk import table_of
from vitrail.atlas.annotated.guide import EXAMPLES_PER_CONCEPT, FieldGuide
from vitrail.atlas.annotated.store import PARTS_NAME
from vitrail.errors import ArtifactError

WIDTH, NUM_CONCEPTS, NUM_CHUNKS = 3, 5, 2_311
PART_ROWS = 1_103
"""Not a multiple of a row group, so that parts end inside one."""


def make_chunks(seed: int, num_chunks: int) -> list[Chunk]:
    generator = np.random.default_rng(seed)
    chunks = []
    for row in range(num_chunks):
        ids = generator.permutation(NUM_CONCEPTS)[: generator.integers(0, 4)].tolist()
        scores = np.round(generator.random(len(ids)), 1).astype(np.float32).tolist()
        labels = tuple(Label(c, score, ((0, 1), (2, 5))[: c % 3]) for c, score in zip(ids, scores, strict=True))
        text = f"chunk {row}"
        chunks.append(Chunk(row, f"d{row}:0", f"d{row}", 0, len(text), text, labels, "s", "CC0", "", "x", "train"))
    return chunks


def write(folder: Path, chunks: list[Chunk], vectors: np.ndarray, cuts: list[int]) -> AnnotatedCorpus:
    with Stage(folder, "annotated", {}, {}).write() as writing:
        writer = ChunkWriter(writing.dir, vectors.shape[1])
        for start, stop in zip([0, *cuts], [*cuts, len(chunks)], strict=True):
            writer.add(chunks[start:stop], vectors[start:stop])
        writer.close()
        assert writer.num_chunks == len(chunks)
    return AnnotatedCorpus.open(folder)


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> tuple[AnnotatedCorpus, list[Chunk], np.ndarray]:
    chunks = make_chunks(0, NUM_CHUNKS)
    vectors = np.random.default_rng(1).normal(size=(NUM_CHUNKS, WIDTH)).astype(np.float16).astype(np.float32)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(writer, "PART_ROWS", PART_ROWS)
        corpus = write(tmp_path_factory.mktemp("store") / "annotated", chunks, vectors, [7, 1_500])
    assert len(list(corpus.path.glob("chunks/*"))) == 3
    return corpus, chunks, vectors


Stored = tuple[AnnotatedCorpus, list[Chunk], np.ndarray]


@settings(deadline=None, max_examples=30)
@given(start=st.integers(0, NUM_CHUNKS), size=st.integers(0, 1_200))
def test_any_stretch_comes_back(stored: Stored, start: int, size: int) -> None:
    corpus, chunks, _ = stored
    assert list(corpus.chunks(start, start + size)) == chunks[start : start + size]


@settings(deadline=None)
@given(row=st.integers(0, NUM_CHUNKS - 1))
def test_any_chunk_comes_back(stored: Stored, row: int) -> None:
    corpus, chunks, _ = stored
    assert corpus.chunk(row) == chunks[row]


@settings(deadline=None)
@given(
    rows=st.lists(st.integers(-NUM_CHUNKS, NUM_CHUNKS - 1), max_size=20),
    bounds=st.tuples(st.integers(-3_000, 3_000), st.integers(-3_000, 3_000), st.sampled_from([1, 2, 700, -1])),
)
def test_vectors_are_indexed_like_one_array(stored: Stored, rows: list[int], bounds: tuple[int, int, int]) -> None:
    """Numbers in any order and from the end, slices with steps, masks, one row, all rows."""
    corpus, _, expected = stored
    vectors = corpus.embeddings()
    assert vectors.shape == expected.shape
    np.testing.assert_array_equal(vectors[np.array(rows, np.int64)], expected[np.array(rows, np.int64)])
    np.testing.assert_array_equal(vectors[slice(*bounds)], expected[slice(*bounds)])
    mask = np.zeros(NUM_CHUNKS, bool)
    mask[rows] = True
    np.testing.assert_array_equal(vectors[mask], expected[mask])
    for row in rows[:1]:
        np.testing.assert_array_equal(vectors[row], expected[row])
    np.testing.assert_array_equal(np.asarray(vectors, np.float32), expected)


@pytest.mark.parametrize("row", [NUM_CHUNKS, -NUM_CHUNKS - 1])
def test_vector_that_is_not_there_is_an_index_error(stored: Stored, row: int) -> None:
    with pytest.raises(IndexError, match="there are 2311 vectors"):
        stored[0].embeddings()[row]


def test_corpus_without_vectors_is_read(tmp_path: Path) -> None:
    """Width 0: labels that came from elsewhere."""
    chunks = make_chunks(2, 11)
    corpus = write(tmp_path / "annotated", chunks, np.zeros((11, 0), np.float32), [])
    assert list(corpus.chunks()) == chunks
    assert np.asarray(corpus.embeddings()).shape == (11, 0)


def read_all(corpus: AnnotatedCorpus) -> None:
    """As one does who opens the directory anew."""
    again = AnnotatedCorpus(corpus.path, corpus.manifest)
    list(again.chunks())
    again.embeddings()


@pytest.mark.parametrize("name", ["parts.parquet", "guide.parquet"])
def test_tables_beside_the_chunks_have_the_bytes_they_were_made_with(tmp_path: Path, name: str) -> None:
    """Their numbers point into the chunks: a flipped bit would be a row that is not there."""
    chunks = make_chunks(1, 40)
    with Stage(tmp_path / "annotated", "annotated", {}, {}).write() as writing:
        with_chunks = ChunkWriter(writing.dir, WIDTH)
        with_chunks.add(chunks, np.ones((40, WIDTH), np.float32))
        with_chunks.close()
        (writing.dir / "guide.parquet").write_bytes(b"a table")
    file = tmp_path / "annotated" / name
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(data)
    with pytest.raises(ArtifactError, match=rf"{name}: damaged .*make the annotated corpus again"):
        AnnotatedCorpus.open(tmp_path / "annotated")


@pytest.mark.parametrize("fault", ["columns", "rows", "vectors", "sizes"])
def test_tables_that_do_not_fit_each_other_are_named(tmp_path: Path, fault: str) -> None:
    """Files that read well by themselves, but not as these parts of this corpus."""
    chunks = make_chunks(1, 40)
    corpus = write(tmp_path / "annotated", chunks, np.ones((40, WIDTH), np.float32), [])
    (part,), (vectors,) = corpus.path.glob("chunks/*"), corpus.path.glob("embeddings/*")
    if fault == "columns":
        pq.write_table(pa.table({"text": [chunk.text for chunk in chunks]}), part)
    elif fault == "rows":
        pq.write_table(table_of(chunks[:30]), part)
    elif fault == "vectors":
        np.save(vectors, np.ones((30, WIDTH), np.float16))
    else:
        pq.write_table(pa.table({"num_chunks": [None]}), corpus.path / PARTS_NAME)
    with pytest.raises(ArtifactError, match=r"damaged .*make the annotated corpus again"):
        read_all(AnnotatedCorpus(corpus.path, corpus.manifest))


def test_older_layout_is_one_clear_line(tmp_path: Path) -> None:
    with Stage(tmp_path / "annotated", "annotated", {}, {}).write() as writing:
        (writing.dir / "embeddings").mkdir()
        np.save(writing.dir / "embeddings" / "chunks.npy", np.zeros((1, 1), np.float16))
    with pytest.raises(ArtifactError, match=r"parts.parquet: missing, as where an older vitrail annotated"):
        AnnotatedCorpus.open(tmp_path / "annotated")


@settings(deadline=None, max_examples=25)
@given(seed=st.integers(0, 999), size=st.integers(0, 60), cut=st.integers(0, 60))
def test_guides_of_shards_make_the_guide_of_the_whole(seed: int, size: int, cut: int) -> None:
    """Against plain counting; of equal scores the earlier chunk wins."""
    chunks = make_chunks(seed, size)
    cards = [Card(c, "known", f"c{c}", "", "content", ("w",), (2.0,), (), 1, 0.0, True) for c in range(NUM_CONCEPTS)]
    with TemporaryDirectory() as name:
        folder, merged = Path(name), FieldGuide()
        for number, part in enumerate([chunks[:cut], chunks[cut:]]):
            guide = FieldGuide()
            guide.add(table_of(part), 0)
            (folder / str(number)).mkdir()
            guide.save(folder / str(number))
            merged.merge(folder / str(number), cut * number)
        merged.write(folder, ConceptLibrary(cards))
        table = pq.read_table(folder / "field_guide.parquet").to_pylist()
        pairs = pq.read_table(folder / "cooccurrence.parquet").to_pylist()
    counted = Counter(
        pair
        for chunk in chunks
        for pair in combinations_with_replacement(sorted(label.concept_id for label in chunk.labels), 2)
    )
    assert [((pair["first"], pair["second"]), pair["num_chunks"]) for pair in pairs] == sorted(counted.items())
    for concept_id, row in enumerate(table):
        found = sorted(
            (-label.score, chunk.row) for chunk in chunks for label in chunk.labels if label.concept_id == concept_id
        )[:EXAMPLES_PER_CONCEPT]
        assert row["num_chunks"] == counted[concept_id, concept_id]
        assert row["rows"] == [place for _, place in found]
        assert row["chunk_ids"] == [f"d{place}:0" for _, place in found]
        assert row["scores"] == [-score for score, _ in found]
