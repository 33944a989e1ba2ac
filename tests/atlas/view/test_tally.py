"""Counts by group against a slow twin, and what the interval of a log odds ratio promises."""

from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Literal

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.atlas.view.making import Spec, make_card, random_documents, write_annotated
from vitrail.atlas import AnnotatedCorpus
from vitrail.atlas.view.columns import slabs
from vitrail.atlas.view.tally import Counts, log_odds, tally
from vitrail.errors import ArtifactError

By = Literal["corpus", "source", "domain"]


def _group(document: Spec, by: By) -> str:
    return "" if by == "corpus" else document.source if by == "source" else document.domain


def _slow(documents: Iterable[Spec], by: By, num_concepts: int) -> dict[str, Counts]:
    found: dict[str, Counts] = {}
    for document in documents:
        carried = Counter(concept for _, spans in document.chunks for concept in spans)
        x = np.array([carried[c] for c in range(num_concepts)], np.int64)
        n = len(document.chunks)
        one = Counts(1, n, n**2, x, x**2, x * n)
        group = _group(document, by)
        found[group] = found[group] + one if group in found else one
    return found


def _same(a: Counts, b: Counts) -> bool:
    numbers = (a.documents, a.chunks, a.square_sizes) == (b.documents, b.chunks, b.square_sizes)
    pairs = ((a.carrying, b.carrying), (a.square_carrying, b.square_carrying), (a.cross, b.cross))
    return numbers and all(np.array_equal(x, y) for x, y in pairs)


@settings(max_examples=15, deadline=None)
@given(seed=st.integers(0, 10_000), by=st.sampled_from(["corpus", "source", "domain"]), num_rows=st.integers(1, 9))
def test_tally_is_what_counting_by_hand_gives(seed: int, by: By, num_rows: int) -> None:
    documents = random_documents(seed, num_documents=11, num_concepts=5)
    with TemporaryDirectory() as folder:
        place = write_annotated(Path(folder) / "a", [make_card(c, f"c{c}") for c in range(5)], documents)
        corpus = AnnotatedCorpus.open(place)
        counted = tally(corpus, 5, by)
        cut = list(slabs(corpus, by, num_rows))
    expected = _slow(documents, by, 5)
    assert set(counted.groups) == set(expected)
    for number, group in enumerate(counted.groups):
        assert _same(counted.of(number), expected[group]), f"group {group!r} is counted wrongly"
    total = counted.whole()
    assert total.chunks == sum(len(document.chunks) for document in documents)
    rest = [total - counted.of(number) for number in range(len(counted.groups))]
    assert all(_same(one + counted.of(number), total) for number, one in enumerate(rest))
    # However few rows are read at once, no document is cut in two.
    names = [name for slab in cut for name in slab.document_ids]
    assert names == [document.name for document in documents]
    assert [size for slab in cut for size in slab.sizes.tolist()] == [len(d.chunks) for d in documents]


def _cluster_counts(rng: np.random.Generator, num_documents: int, share: float) -> Counts:
    """Documents of twenty chunks; a document is about the concept (or not) as a whole, half of its chunks say so."""
    is_about = rng.random(num_documents) < 2 * share
    x = np.where(is_about, rng.binomial(20, 0.5, num_documents), 0)
    whole = np.array([x.sum()], np.int64), np.array([(x**2).sum()], np.int64), np.array([20 * x.sum()], np.int64)
    return Counts(num_documents, 20 * num_documents, 400 * num_documents, *whole)


def test_interval_holds_its_promise_for_chunks_that_hang_together() -> None:
    """300 comparisons of equal shares: the interval should miss 0 in 5 %; Woolf's, for independent chunks, in 60 %."""
    rng = np.random.default_rng(7)
    missed, missed_by_woolf = 0, 0
    for _ in range(300):
        a, b = _cluster_counts(rng, 60, 0.2), _cluster_counts(rng, 90, 0.2)
        ratio, low, high = log_odds(a, b)
        missed += int(not low[0] <= 0 <= high[0])
        simple = sum(1 / (c.carrying[0] + 0.5) + 1 / (c.chunks - c.carrying[0] + 0.5) for c in (a, b))
        missed_by_woolf += int(abs(ratio[0]) > 1.96 * np.sqrt(simple))
    assert 2 <= missed <= 30, "5 % of 300 is 15; more than 30 means the interval is too short"
    assert missed_by_woolf > 90, "the example should be one where independence is a bad assumption"


def test_interval_of_independent_chunks_is_woolfs() -> None:
    x = np.array([30], np.int64)
    one = Counts(500, 500, 500, x, x, x)
    _, variance = one.logit()
    assert variance[0] == pytest.approx(1 / 30.5 + 1 / 470.5, rel=0.03)


def test_a_concept_on_no_chunk_has_a_finite_interval() -> None:
    none, some = np.zeros(1, np.int64), np.array([9], np.int64)
    ratio, low, high = log_odds(Counts(5, 40, 320, none, none, none), Counts(5, 40, 320, some, some * 2, some * 8))
    assert low[0] < ratio[0] < high[0]
    assert np.isfinite([low[0], high[0]]).all()
    assert ratio[0] < 0


def test_a_damaged_part_is_named(tmp_path: Path) -> None:
    documents = random_documents(1, num_documents=9, num_concepts=2)
    place = write_annotated(tmp_path / "a", [make_card(c, f"c{c}") for c in range(2)], documents)
    corpus = AnnotatedCorpus.open(place)
    (part,) = (place / "chunks").iterdir()
    part.write_bytes(part.read_bytes()[:200])
    with pytest.raises(ArtifactError, match=rf"{part.name}: damaged or missing .*make the annotated corpus again"):
        tally(corpus, 2)
