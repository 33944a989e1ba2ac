from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vitrail.errors import ConfigError
from vitrail.metrics.ngram import NGramModel

START = -1


def twin_prob(sequences: list[list[int]], order: int, vocab: int, context: tuple[int, ...], token: int) -> float:
    """Interpolated Kneser–Ney by dictionaries, written from the equations."""
    grams = Counter(
        tuple(([START] * (order - 1) + ids)[end - order + 1 : end + 1])
        for ids in sequences
        for end in range(order - 1, order - 1 + len(ids))
    )
    tables = {order: grams}
    for length in range(order - 1, 0, -1):
        tables[length] = Counter(gram[1:] for gram in tables[length + 1])
    prob = 1 / vocab
    for length in range(1, order + 1):
        table, tail = tables[length], context[len(context) - length + 1 :] if length > 1 else ()
        once, twice = (sum(count == n for count in table.values()) for n in (1, 2))
        discount = once / (once + 2 * twice) if once and twice else 0.5
        rest = {gram[-1]: count for gram, count in table.items() if gram[:-1] == tail}
        if rest:
            own = max(rest.get(token, 0) - discount, 0)
            prob = (own + discount * len(rest) * prob) / sum(rest.values())
    return prob


corpora = st.lists(st.lists(st.integers(0, 6), min_size=1, max_size=11), min_size=1, max_size=5)


@settings(max_examples=25, deadline=None)
@given(corpora, st.integers(1, 3), st.lists(st.integers(0, 6), max_size=4))
def test_agrees_with_the_dictionary_twin(sequences: list[list[int]], order: int, context: list[int]) -> None:
    model = NGramModel.fit([np.array(ids) for ids in sequences], order, 7)
    padded = tuple([START] * (order - 1) + context)[len(context) :] if order > 1 else ()
    expected = [twin_prob(sequences, order, 7, padded, token) for token in range(7)]
    assert np.allclose(model.next_probs(np.array(context, dtype=np.int64)), expected, rtol=1e-12)


@settings(max_examples=25, deadline=None)
@given(corpora, st.integers(1, 3), st.lists(st.integers(0, 6), max_size=4))
def test_probabilities_are_positive_and_sum_to_one(sequences: list[list[int]], order: int, context: list[int]) -> None:
    probs = NGramModel.fit([np.array(ids) for ids in sequences], order, 7).next_probs(np.array(context, dtype=np.int64))
    assert probs.min() > 0
    assert abs(probs.sum() - 1) < 1e-12


def test_order_of_sequences_does_not_matter() -> None:
    rng = np.random.default_rng(0)
    sequences = [rng.integers(0, 19, size=31) for _ in range(7)]
    text = rng.integers(0, 19, size=23)
    one, other = NGramModel.fit(sequences, 3, 19), NGramModel.fit(sequences[::-1], 3, 19)
    assert np.array_equal(one.logprobs(text), other.logprobs(text))


def test_longer_contexts_help_on_text_with_structure() -> None:
    """The cycle 0 1 2 3 4 is certain to a bigram model and uniform to a unigram model."""
    cycle = np.arange(500) % 5
    unigram, bigram = (NGramModel.fit([cycle], order, 5) for order in (1, 2))
    assert unigram.perplexity(cycle) == pytest.approx(5, abs=0.01)
    assert bigram.perplexity(cycle, start=1) < 1.02


def test_perplexity_scores_only_what_follows_the_prompt() -> None:
    model = NGramModel.fit([np.array([0, 1, 2, 0, 1, 3])], 2, 5)
    ids = np.array([0, 1, 2, 4])
    assert model.perplexity(ids, start=3) == pytest.approx(np.exp(-model.logprobs(ids)[3]))
    assert np.isnan(model.perplexity(ids, start=4))


@pytest.mark.parametrize(("order", "vocab", "message"), [(4, 5, "order 4"), (0, 5, "order 0"), (3, 2**22, "64 bits")])
def test_refuses_what_it_cannot_count(order: int, vocab: int, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        NGramModel.fit([np.array([0, 1])], order, vocab)


def test_refuses_an_empty_corpus() -> None:
    with pytest.raises(ConfigError, match="no tokens"):
        NGramModel.fit([], 2, 5)
