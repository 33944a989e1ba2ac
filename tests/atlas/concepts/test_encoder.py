"""MiniLM: a function of the set of texts; bf16 close to fp32; sensible neighbours."""

from pathlib import Path

import numpy as np
import pytest
import torch

from vitrail.atlas import MiniLM
from vitrail.atlas.concepts.encoder import _check_weights
from vitrail.errors import ArtifactError

TEXTS = ["shortest path", "supreme court", "graph", "judge", "dijkstra algorithm", "", "naïve Bayes", "graph"]


def test_order_and_repeats_change_no_bit() -> None:
    model = MiniLM()
    vectors = model.encode(TEXTS)
    np.testing.assert_array_equal(model.encode(TEXTS[::-1])[::-1], vectors)
    np.testing.assert_array_equal(vectors[2], vectors[7])


def test_precisions_agree() -> None:
    exact = MiniLM(torch.float32).encode(TEXTS)
    coarse = MiniLM(torch.bfloat16).encode(TEXTS)
    np.testing.assert_allclose(np.linalg.norm(exact, axis=1), 1, atol=1e-5)
    assert (exact * coarse).sum(1).min() > 0.999  # bf16 keeps 8 bits of each activation


def test_related_texts_are_near() -> None:
    path, court, graph, judge, dijkstra, *_ = MiniLM().encode(TEXTS)
    assert path @ dijkstra > path @ court
    assert court @ judge > graph @ judge


def test_other_weights_are_refused(tmp_path: Path) -> None:
    file = tmp_path / "model.safetensors"
    file.write_bytes(b"other weights")
    with pytest.raises(ArtifactError, match="wanted 53aa5117"):
        _check_weights(file)
