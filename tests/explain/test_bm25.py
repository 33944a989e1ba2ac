"""BM25 against the formula written out term by term."""

import math
from collections import Counter

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from vitrail.explain import bm25_scores

WORDS = st.lists(st.sampled_from(["glass", "lead", "light", "of", "red", "window"]), max_size=9)


def by_hand(documents: list[list[str]], query: list[str]) -> list[float]:
    mean_length = max(sum(map(len, documents)) / len(documents), 1.0)
    scores = []
    for document in documents:
        counts, score = Counter(document), 0.0
        for word in query:
            frequency = sum(word in other for other in documents)
            idf = math.log(1 + (len(documents) - frequency + 0.5) / (frequency + 0.5))
            norm = 1.5 * (1 - 0.75 + 0.75 * len(document) / mean_length)
            if frequency:
                score += idf * counts[word] * 2.5 / (counts[word] + norm)
        scores.append(score)
    return scores


@settings(max_examples=25, deadline=None)
@given(st.lists(WORDS, min_size=1, max_size=6), WORDS)
def test_scores_are_those_of_the_formula(documents: list[list[str]], query: list[str]) -> None:
    documents = [["glass"], *documents]
    found = bm25_scores([" ".join(document) for document in documents], [" ".join(query)])
    np.testing.assert_allclose(found[0], by_hand(documents, query), atol=1e-5)


def test_unknown_words_and_empty_texts_score_zero() -> None:
    assert not bm25_scores(["red glass", ""], ["blue", ""]).any()
