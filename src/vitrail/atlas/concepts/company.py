"""The company that tags keep: vectors from the chunks they share, by a factorised tag × chunk matrix (§4.2.2).

Letters: R chunks, n tags.
"""

import numpy as np
from jaxtyping import Float32
from scipy.sparse import csr_array
from sklearn.utils.extmath import randomized_svd

from vitrail.atlas.concepts.geometry import unit

COMPANY_WIDTH = 128


def company(weighted: csr_array, seed: int) -> Float32[np.ndarray, "n 128"]:
    """Co-occurrence vectors of tags: the SVD of the tag × chunk matrix (rows of unit norm), padded to 128.

    Args:
        weighted: [R n] tf-idf.
        seed: of the randomised factorisation.

    Returns:
        [n 128] fp32 unit rows.
    """
    by_tag = weighted.T.tocsr()
    lengths = np.sqrt(by_tag.multiply(by_tag).sum(axis=1))
    by_tag.data /= np.repeat(np.maximum(lengths, 1e-9), np.diff(by_tag.indptr)).astype(np.float32)
    rank = min(COMPANY_WIDTH, min(by_tag.shape) - 1)
    u, s, _ = randomized_svd(by_tag, rank, n_iter=3, random_state=seed)
    out = np.zeros((by_tag.shape[0], COMPANY_WIDTH), np.float32)
    out[:, :rank] = unit(u * np.sqrt(s))
    return out
