"""The plan of shards: every document once and in order, whatever the size of a shard."""

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vitrail.atlas.annotated.shards import MAX_SHARD_BYTES, MIN_SHARD_BYTES, fitting_bytes, plan_shards
from vitrail.corpus import Corpus
from vitrail.errors import ArtifactError


@settings(deadline=None, max_examples=10)
@given(target=st.sampled_from([1, 40_000, 90_000, 10**9]))
def test_shards_hold_every_document_once(corpus: Path, target: int) -> None:
    stored = Corpus.open(corpus)
    shards = plan_shards(stored, target)
    assert [shard.number for shard in shards] == list(range(len(shards)))
    assert [d for shard in shards for d in shard.documents()] == list(stored.documents())


def test_shards_follow_from_the_size_of_the_corpus(corpus: Path) -> None:
    """A shard has 8 MB of text, unless there were too many shards."""
    stored = Corpus.open(corpus)
    assert len(plan_shards(stored, 1)) == 3
    assert len(plan_shards(stored, fitting_bytes(stored))) == 1
    for num_bytes, wanted in ((10**6, MIN_SHARD_BYTES), (7 * 10**12, MAX_SHARD_BYTES), (10**11, 10**11 // 4_096)):
        counts = {**stored.manifest.counts, "text_bytes": num_bytes}
        assert fitting_bytes(Corpus(corpus, stored.manifest.model_copy(update={"counts": counts}))) == wanted


def test_file_that_is_no_parquet_is_named(corpus: Path, tmp_path: Path) -> None:
    (tmp_path / "documents").mkdir()
    (tmp_path / "documents" / "part-00000.parquet").write_bytes(b"no parquet")
    with pytest.raises(ArtifactError, match=r"part-00000.parquet: damaged or missing .*; import the corpus again"):
        plan_shards(Corpus(tmp_path, Corpus.open(corpus).manifest), 1)
