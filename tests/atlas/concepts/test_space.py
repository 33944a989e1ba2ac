"""The space of tags: what a setting puts into a vector, and that a cache changes nothing."""

from pathlib import Path
from typing import get_args

import numpy as np
import pytest
from scipy.sparse import coo_array, csr_array, hstack

from vitrail.atlas.concepts.space import VectorKind, encode
from vitrail.atlas.sample import Chunks
from vitrail.atlas.tags import TagTable
from vitrail.atlas.tags.tagging import Tagging, tag_chunks

SENTENCES = (
    "The shortest path of a weighted graph joins two vertices.",
    "A graph has vertices and edges; an edge joins two vertices.",
    "The river carries water past the old town and its bridge.",
    "Under the bridge the river is deep, and the water is cold.",
    "Judges of the supreme court hear the appeal of a lower court.",
    "The court of appeal sits in the town; its judges hear the case.",
)


@pytest.fixture(scope="module")
def chunks() -> Chunks:
    texts = [f"{SENTENCES[i % 6]} {SENTENCES[(i + 2 * (i // 6)) % 6]}" for i in range(30)]
    return Chunks(texts, np.arange(30), np.arange(30) % 3, ["graphs", "law", "rivers"])


@pytest.fixture(scope="module")
def tagging(chunks: Chunks) -> Tagging:
    return tag_chunks(chunks.texts, 100)


@pytest.mark.parametrize("name", get_args(VectorKind))
def test_vectors_are_what_the_setting_says(name: VectorKind, chunks: Chunks, tagging: Tagging) -> None:
    """Unit rows; the first half is meaning, the rest company, and either may be missing."""
    encoded = encode(tagging, chunks, 0, name)
    space = encoded.space
    width = {"both": 384 + 128, "minilm": 384, "company": 128}[name]
    assert space.vectors.shape == (len(tagging.table.tags), width)
    assert space.meaning_width == (0 if name == "company" else 384)
    np.testing.assert_allclose(np.linalg.norm(space.vectors, axis=1), 1, atol=1e-5)
    assert encoded.rows.shape == (30, width)


def test_a_cache_changes_no_bit(chunks: Chunks, tagging: Tagging, tmp_path: Path) -> None:
    """Without, empty, filled: the same vectors, or a rebuild would have another id."""
    without = encode(tagging, chunks, 0)
    for _ in range(2):
        np.testing.assert_array_equal(encode(tagging, chunks, 0, cache=tmp_path).space.vectors, without.space.vectors)
    assert list(tmp_path.rglob("*.parquet"))


def test_given_tags_keep_company_though_no_text_holds_them(chunks: Chunks, tagging: Tagging) -> None:
    """What a language model calls "theory of graphs" stands in no text; it keeps the company of "vertices"."""
    is_graph = np.array(["vertices" in text for text in chunks.texts])
    column = coo_array((np.ones(is_graph.sum()), (np.flatnonzero(is_graph), np.zeros(is_graph.sum(), int))))
    given = hstack([tagging.given, column.tocsr()]).tocsr()
    occurrences = hstack([tagging.occurrences, csr_array((30, 1))]).tocsr()
    tags, names = (*tagging.table.tags, "theory of graphs"), (*tagging.table.is_name, False)
    space = encode(Tagging(TagTable(tags, tags, names), occurrences, given), chunks, 0, "company").space
    cosines = space.vectors @ space.vectors[-1]
    assert cosines[tags.index("vertices")] > 0.7
    assert abs(cosines[tags.index("river")]) < 0.3


def test_a_sample_of_three_chunks_has_topics() -> None:
    texts = [SENTENCES[0]] * 3
    few = Chunks(texts, np.arange(3), np.zeros(3, np.int64), [""])
    assert encode(tag_chunks(texts, 100), few, 0, "company").rows.shape == (3, 128)


def test_a_table_without_uses_filters_no_tag(chunks: Chunks, tagging: Tagging) -> None:
    """Tags that a language model gave come without counts of their use: all are taken for names of things."""
    table = TagTable(tagging.table.tags, tagging.table.display, tagging.table.is_name)
    space = encode(Tagging(table, tagging.occurrences, tagging.given), chunks, 0, "company").space
    assert (space.noun_share == 1).all()
