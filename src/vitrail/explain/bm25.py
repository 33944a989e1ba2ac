"""BM25: how well plain word matching finds a passage, as the baseline of the training-data index.

`R` documents, `Q` queries; the Okapi form with its usual constants.
"""

from collections.abc import Sequence

import numpy as np
from jaxtyping import Float
from numpy import ndarray
from scipy.sparse import csr_array

SATURATION = 1.5
LENGTH_WEIGHT = 0.75


def bm25_scores(documents: Sequence[str], queries: Sequence[str]) -> Float[ndarray, "Q R"]:
    """BM25 score of every document for every query.

    Args:
        documents: R texts.
        queries: Q texts; a word counts as often as it occurs.

    Returns:
        [Q R] scores, fp32, zero where no word is shared.

    Cost: memory of one count matrix and of the [Q R] answer.
    """
    from sklearn.feature_extraction.text import CountVectorizer  # loads slowly, and only an index is measured with it

    vectorizer = CountVectorizer(token_pattern=r"(?u)\w+", dtype=np.float32)
    counts = csr_array(vectorizer.fit_transform(documents))
    lengths = counts.sum(axis=1)
    per_row = SATURATION * (1 - LENGTH_WEIGHT + LENGTH_WEIGHT * lengths / max(float(lengths.mean()), 1.0))
    document_frequency = np.bincount(counts.indices, minlength=counts.shape[1])
    rarity = np.log1p((len(documents) - document_frequency + 0.5) / (document_frequency + 0.5))
    norms = np.repeat(per_row, np.diff(counts.indptr))
    counts.data = counts.data * (SATURATION + 1) / (counts.data + norms) * rarity[counts.indices]
    scores = csr_array(vectorizer.transform(queries)) @ counts.T
    return np.asarray(scores.toarray(), dtype=np.float32)
