"""What stands behind an answer in its block, which is not there yet when the answer is written."""

from collections.abc import Callable
from dataclasses import replace

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from vitrail.model import ConceptLM
from vitrail.packed import PackedBatch
from vitrail.train.answers import behind_answers, open_ended

BLOCK = 4


def _conversations(rows: int, length: int, seed: int) -> PackedBatch:
    rng = torch.Generator().manual_seed(seed)
    tokens = torch.randint(5, 41, (rows, length), generator=rng)
    asked = torch.rand((rows, length), generator=rng) < 0.5
    none = torch.zeros(0, dtype=torch.long)
    chunk = torch.full((rows, length), -1)
    return PackedBatch(tokens, asked, chunk, 0, none, none, none, none, none, 10)


def _behind(asked: list[bool], block: int) -> list[bool]:
    """Position by position."""
    found = []
    for start in range(0, len(asked), block):
        began = ended = False
        for is_asked in asked[start : start + block]:
            ended = ended or (began and not is_asked)
            began = began or is_asked
            found.append(ended)
    return found


@settings(max_examples=60, deadline=None)
@given(asked=st.lists(st.booleans(), min_size=1, max_size=23), block=st.integers(1, 9))
def test_behind_an_answer_is_the_rest_of_its_block(asked: list[bool], block: int) -> None:
    assert behind_answers(torch.tensor([asked]), block).tolist() == [_behind(asked, block)]


def test_half_of_the_blocks_are_hidden_behind_their_answer(tiny_model: Callable[..., ConceptLM]) -> None:
    config, rows, length = tiny_model().config, 200, 15
    batch = _conversations(rows, length, 0)
    opened = open_ended(batch, config, 0, 3, rows, slice(0, rows))
    hidden, behind = opened.tokens == config.mask_id, behind_answers(batch.loss_mask, BLOCK)
    assert not (hidden & ~behind).any()
    assert 0.4 < float(hidden.sum() / behind.sum()) < 0.6
    for start in range(0, length, BLOCK):
        part = slice(start, start + BLOCK)
        share = hidden[:, part].sum(1) / behind[:, part].sum(1)
        assert set(share[~share.isnan()].tolist()) == {0.0, 1.0}, "a block is hidden as a whole"
    assert torch.equal(opened.loss_mask, batch.loss_mask & ~hidden), "what is hidden is not asked for"
    assert torch.equal(opened.tokens[~hidden], batch.tokens[~hidden])


def test_ranks_hide_what_one_process_hides(tiny_model: Callable[..., ConceptLM]) -> None:
    config, batch = tiny_model().config, _conversations(6, 13, 1)
    whole = open_ended(batch, config, 5, 2, 6, slice(0, 6))
    for rows in (slice(0, 3), slice(3, 6)):
        own = replace(batch, tokens=batch.tokens[rows], loss_mask=batch.loss_mask[rows], chunk=batch.chunk[rows])
        part = open_ended(own, config, 5, 2, 6, rows)
        assert torch.equal(part.tokens, whole.tokens[rows])
        assert torch.equal(part.loss_mask, whole.loss_mask[rows])
    assert not torch.equal(open_ended(batch, config, 5, 3, 6, slice(0, 6)).tokens, whole.tokens), "drawn each step"


def test_texts_and_causal_models_are_left_alone(
    tiny_model: Callable[..., ConceptLM], tiny_batch: Callable[..., PackedBatch]
) -> None:
    batch, chats = tiny_batch(), _conversations(5, 13, 0)
    assert open_ended(batch, tiny_model().config, 0, 0, 5, slice(0, 5)) is batch
    assert open_ended(chats, tiny_model(backbone="ar").config, 0, 0, 5, slice(0, 5)) is chats
