"""Cutting a batch loses nothing and mixes nothing up."""

from collections.abc import Callable

import pytest
import torch

from vitrail.packed import PackedBatch
from vitrail.train.microbatch import cut, present_tokens, row_slices

Batch = Callable[..., PackedBatch]


@pytest.mark.parametrize(
    ("num_rows", "size", "want"), [(5, 2, [2, 2, 1]), (5, None, [5]), (4, 7, [4]), (3, 1, [1] * 3)]
)
def test_slices_cover_the_batch(num_rows: int, size: int | None, want: list[int]) -> None:
    slices = list(row_slices(num_rows, size))
    assert [rows.stop - rows.start for rows in slices] == want
    assert [row for rows in slices for row in range(num_rows)[rows]] == list(range(num_rows))


def test_cut_keeps_labels_with_their_text(tiny_batch: Batch) -> None:
    batch = tiny_batch(rows=5)
    part = cut(batch, slice(2, 4))
    whole_pairs = {
        (int(batch.rows[j]), int(c))
        for j, c in zip(batch.label_chunk, batch.label_concept, strict=True)
        if int(batch.rows[j]) in part.rows.tolist()
    }
    assert whole_pairs == {
        (int(part.rows[j]), int(c)) for j, c in zip(part.label_chunk, part.label_concept, strict=True)
    }
    length = batch.tokens.shape[1]
    spans = [(int(p) - 2 * length, int(c)) for p, c in zip(batch.span_pos, batch.span_concept, strict=True)]
    assert list(zip(part.span_pos.tolist(), part.span_concept.tolist(), strict=True)) == [
        span for span in spans if 0 <= span[0] < 2 * length
    ]
    assert set(torch.unique(part.chunk).tolist()) - {-1} == set(range(part.num_chunks))
    assert torch.equal(part.tokens, batch.tokens[2:4])
    assert torch.equal(part.loss_mask, batch.loss_mask[2:4])


def test_a_cut_of_a_cut_is_the_cut(tiny_batch: Batch) -> None:
    """A rank's part is cut into micro-batches once more."""
    batch = tiny_batch(rows=5)
    twice, once = cut(cut(batch, slice(1, 5)), slice(1, 3)), cut(batch, slice(2, 4))
    for name in ("tokens", "loss_mask", "chunk", "label_chunk", "label_concept", "span_pos", "span_concept", "rows"):
        assert torch.equal(getattr(twice, name), getattr(once, name)), name
    assert twice.num_chunks == once.num_chunks


def test_padding_is_not_present(tiny_batch: Batch) -> None:
    batch = tiny_batch(rows=5)
    assert torch.equal(present_tokens(batch, 0), batch.tokens != 0)
    assert not bool(present_tokens(batch, 0).all())
