"""The loader: a pure function of seed, step and mixture; nothing lost or seen twice, whoever reads it."""

import threading
from collections import Counter
from collections.abc import Generator, Sequence
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.packed.annotated import random_chunks, write_annotated
from vitrail.errors import ConfigError, CorpusError
from vitrail.packed import DataSettings, Loader, MixtureStage, PackedCorpus, PackSettings, pack_corpus
from vitrail.packed.mixture import CYCLE, Mixture
from vitrail.packed.shuffle import permuted
from vitrail.text import Tokenizer

GROUPS = ["domain 0", "domain 1", "domain 2"]
seeds = st.integers(0, 2**32 - 1)
stages = st.lists(
    st.tuples(st.integers(1, 40), st.lists(st.integers(0, 9), min_size=3, max_size=3).filter(any)),
    min_size=1,
    max_size=4,
)


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory, tokenizer: Tokenizer) -> PackedCorpus:
    folder = tmp_path_factory.mktemp("runs")
    write_annotated(folder / "annotated", random_chunks(1, 150))
    values = PackSettings(length=67, shard_chunks=53, group_by="domain")
    pack_corpus(folder / "annotated", tokenizer, folder / "packed", values)
    return PackedCorpus.open(folder / "packed")


def staged(drawn: Sequence[tuple[int, Sequence[float]]]) -> tuple[MixtureStage, ...]:
    """Stages that last so many steps, with these weights of the three groups."""
    starts = np.cumsum([0, *(steps for steps, _ in drawn)]).tolist()
    return tuple(
        MixtureStage(from_step=start, weights=dict(zip(GROUPS, weights, strict=True)))
        for start, (_, weights) in zip(starts, drawn, strict=False)
    )


@settings(max_examples=200, deadline=None)
@given(num=st.integers(1, 3) | st.integers(1, 3000), seed=seeds, epoch=st.integers(0, 99))
def test_a_keyed_permutation_is_one(num: int, seed: int, epoch: int) -> None:
    places = np.arange(num)
    sent = permuted(places, num, (seed, epoch, ""))
    assert sorted(sent.tolist()) == places.tolist()
    half = places[::2]
    assert np.array_equal(permuted(half, num, (seed, epoch, "")), sent[::2]), "a place does not depend on others"


def test_permutations_look_random() -> None:
    """Where a place lands, and which of its neighbours lands first, are as even as chance lets them be."""
    num, draws = 5, 4_000
    table = np.array([permuted(np.arange(num), num, (seed, 0, "")) for seed in range(draws)])
    expected = draws / num
    for place in range(num):
        landed = np.bincount(table[:, place], minlength=num)
        chi = float(((landed - expected) ** 2 / expected).sum())
        assert chi < 23.5, "four degrees of freedom: exceeded once in ten thousand"
    long = permuted(np.arange(10_007), 10_007, (3, 0, ""))
    assert abs(float(np.corrcoef(long, np.arange(10_007))[0, 1])) < 0.04, "four standard deviations"
    assert abs(float(np.corrcoef(long[1:], long[:-1])[0, 1])) < 0.04


@settings(max_examples=25, deadline=None)
@given(batch_size=st.integers(1, 13), seed=seeds)
def test_each_epoch_is_a_permutation(packed: PackedCorpus, batch_size: int, seed: int) -> None:
    loader = Loader(packed, batch_size, seed)
    num = packed.num_sequences("train")
    stream = [row for step in range(-(-2 * num // batch_size)) for row in loader.rows_at(step)]
    assert sorted(stream[:num]) == sorted(stream[num : 2 * num]) == list(range(num))
    assert stream[:num] != stream[num : 2 * num], "epochs are shuffled anew"
    assert stream[:num] != Loader(packed, num, seed ^ 1).rows_at(0)


@settings(max_examples=25, deadline=None)
@given(data=st.data(), batch_size=st.integers(1, 29), seed=seeds)
def test_parts_of_ranks_make_up_the_global_batch(
    packed: PackedCorpus, data: st.DataObject, batch_size: int, seed: int
) -> None:
    """However many ranks, and whatever their number after an interruption, the stream of sequences is the same."""
    loader, fresh = (Loader(packed, batch_size, seed, mixture=staged([(5, (1, 2, 3)), (9, (3, 0, 1))])) for _ in "ab")
    seen: list[int] = []
    for step in range(12):
        ranks = data.draw(st.integers(1, batch_size))
        edges = [batch_size * rank // ranks for rank in range(ranks + 1)]
        seen += [row for start, stop in pairwise(edges) for row in fresh.rows_at(step)[start:stop]]
    assert seen == [row for step in range(12) for row in loader.rows_at(step)]
    start, stop = sorted(data.draw(st.tuples(st.integers(0, batch_size), st.integers(0, batch_size))))
    if start < stop:
        whole, part = loader.batch_at(7), loader.batch_at(7, slice(start, stop))
        assert torch.equal(part.tokens, whole.tokens[start:stop])
        assert torch.equal(part.loss_mask, whole.loss_mask[start:stop])


@pytest.mark.parametrize("ranks", [1, 3])
def test_resumed_on_other_ranks_sees_each_sequence_once(packed: PackedCorpus, ranks: int) -> None:
    """Two ranks until step k, then one or three, each in a loader of its own."""
    num, batch_size = packed.num_sequences("train"), 6
    steps = num // batch_size
    for stopped_at in (0, 1, steps // 2, steps):
        seen: Counter[int] = Counter()
        for count, first, last in ((2, 0, stopped_at), (ranks, stopped_at, steps)):
            share = batch_size // count
            for rank in range(count):
                loader = Loader(packed, batch_size, 11)
                for step in range(first, last):
                    seen.update(loader.rows_at(step)[rank * share : (rank + 1) * share])
        assert set(seen.values()) == {1}
        assert len(seen) == steps * batch_size


@settings(max_examples=25, deadline=None)
@given(drawn=stages, batch_size=st.integers(1, 31), seed=seeds)
def test_groups_go_on_over_stages(
    packed: PackedCorpus, drawn: list[tuple[int, list[int]]], batch_size: int, seed: int
) -> None:
    """Each group's stream is its shuffled epochs one after another, whatever the weights were in between."""
    loader = Loader(packed, batch_size, seed, mixture=staged(drawn))
    stream = [row for step in range(sum(steps for steps, _ in drawn) + 3) for row in loader.rows_at(step)]
    names = packed.groups_of("train", stream)
    for group, num in packed.groups("train").items():
        own = [row for row, name in zip(stream, names, strict=True) if name == group]
        for start in range(0, len(own), num):
            epoch = own[start : start + num]
            assert len(set(epoch)) == len(epoch), "a sequence was seen twice within an epoch of its group"


@settings(max_examples=40, deadline=None)
@given(weights=st.lists(st.floats(0.01, 1), min_size=3, max_size=3), seed=seeds, cycles=st.integers(1, 5))
def test_shares_are_the_weights(weights: list[float], seed: int, cycles: int) -> None:
    """In each cycle, and so in any number of them, to within one place in 4,096."""
    mixture = Mixture(staged([(1, weights)]), dict.fromkeys(GROUPS, 10), 7, seed)
    groups, own = mixture.drawn(np.arange(CYCLE * cycles))
    for number, weight in enumerate(weights):
        here = groups == number
        assert abs(here.mean() - weight / sum(weights)) <= 1 / CYCLE
        assert own[here].tolist() == list(range(int(here.sum()))), "no place of a group's stream is left out"
    # Each group has at least 20 places of a cycle; one after another they would change twice.
    assert np.count_nonzero(np.diff(groups[:CYCLE])) > 20, "groups stand mixed, not one after another"


def test_a_stage_begins_at_its_step(packed: PackedCorpus) -> None:
    loader = Loader(packed, 8, 3, mixture=staged([(700, (1, 0, 0)), (1, (0, 1, 0)), (1, (0, 1, 1))]))
    at = {step: set(packed.groups_of("train", loader.rows_at(step))) for step in (0, 699, 700, 701)}
    assert at == {0: {"domain 0"}, 699: {"domain 0"}, 700: {"domain 1"}, 701: {"domain 1", "domain 2"}}


def test_a_mixture_that_cannot_be_is_named(packed: PackedCorpus, tokenizer: Tokenizer, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no group is called 'domian 1'; did you mean 'domain 1'"):
        Loader(packed, 4, 0, mixture=[MixtureStage(weights={"domain 0": 1, "domian 1": 1})])
    with pytest.raises(ConfigError, match="weight 1 of 'domain 1' is less than one place in 4,096"):
        Loader(packed, 4, 0, mixture=[MixtureStage(weights={"domain 0": 1e6, "domain 1": 1, "domain 2": 1e6})])
    with pytest.raises(ConfigError, match="no weight is above zero"):
        MixtureStage.parse({"weights": {"domain 0": 0}})
    for steps, said in (
        ((1,), "starts at step 1; let it start at 0"),
        ((0, 5, 5), "each be higher than the one before"),
    ):
        with pytest.raises(ConfigError, match=said):
            DataSettings.parse({"mixture": [{"from_step": step, "weights": {"a": 1}} for step in steps]})
    write_annotated(tmp_path / "annotated", random_chunks(1, 20))
    pack_corpus(tmp_path / "annotated", tokenizer, tmp_path / "packed", PackSettings())
    plain = PackedCorpus.open(tmp_path / "packed")
    with pytest.raises(ConfigError, match="packed without groups to mix; pack it with --group_by source"):
        Loader(plain, 4, 0, mixture=[MixtureStage(weights={"domain 0": 1})])
    only_train = [chunk for chunk in random_chunks(1, 20) if chunk.split == "train"]
    pack_corpus(write_annotated(tmp_path / "train", only_train), tokenizer, tmp_path / "packed", PackSettings())
    with pytest.raises(CorpusError, match="no sequences in split 'heldout'"):
        Loader(PackedCorpus.open(tmp_path / "packed"), 4, 0, "heldout")


@pytest.mark.parametrize("workers", [0, 1, 3])
def test_workers_change_nothing(packed: PackedCorpus, workers: int) -> None:
    loader = Loader(packed, 5, 3)
    batches = list(loader.stream(4, 23, slice(1, 4), workers=workers))
    assert len(batches) == 23
    for step, batch in enumerate(batches, 4):
        again = loader.batch_at(step, slice(1, 4))
        assert torch.equal(batch.tokens, again.tokens)
        assert torch.equal(batch.span_pos, again.span_pos)
        assert torch.equal(batch.label_chunk, again.label_chunk)


def test_a_stream_that_is_left_ends(packed: PackedCorpus) -> None:
    """Its threads must not go on, and a fault in one comes out where the batch was awaited."""
    stream = Loader(packed, 5, 3).stream(0, 10**6, workers=2)
    assert isinstance(stream, Generator)
    next(stream)
    stream.close()
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("loader")]
    with pytest.raises(IndexError, match="the split has"):
        list(Broken(packed).stream(0, 5, workers=2))


class Broken(Loader):
    def __init__(self, packed: PackedCorpus) -> None:
        super().__init__(packed, 5, 3)

    def rows_at(self, step: int) -> list[int]:
        return [10**6 if step == 3 else 0]
