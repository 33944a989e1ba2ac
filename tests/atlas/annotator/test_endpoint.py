"""A server's embeddings, over real HTTP."""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from scipy.sparse import csr_array

from tests.atlas.annotator.conftest import SETTINGS, Small
from tests.atlas.annotator.embedding_server import WIDTH, good, serving, vector
from vitrail.atlas.annotator import TAGS_NAME, Annotator, EndpointEncoder, make_encoder
from vitrail.atlas.annotator.fit import FitInputs, fit_annotator
from vitrail.atlas.llm.endpoint import Endpoint
from vitrail.errors import ConfigError, RunFailed

NONE = csr_array((1, 1), dtype=np.float32)


def _endpoint(url: str, retries: int = 0) -> Endpoint:
    return Endpoint(url=url, max_retries=retries, timeout_s=5, max_concurrency=3)


def test_vectors_come_back_in_order_and_of_length_1() -> None:
    texts = [f"word{i % 150} common" for i in range(200)]
    with serving(good) as (url, requests):
        found = EndpointEncoder(_endpoint(url), "m").encode([*texts, " \n"], NONE)
    wanted = np.array([vector(text) for text in texts])
    np.testing.assert_allclose(found[:-1], wanted / np.linalg.norm(wanted, axis=1, keepdims=True), rtol=1e-5)
    assert not found[-1].any(), "a blank text is not sent"
    assert sorted(len(request) for request in requests[1:]) == [22, 64, 64], "each text is asked for once"


def test_a_full_server_is_asked_again() -> None:
    with serving(lambda n, texts: (503, {"error": "busy"}) if n == 0 else good(n, texts)) as (url, requests):
        assert EndpointEncoder(_endpoint(url, retries=1), "m").width == WIDTH
    assert len(requests) == 2


def _without(n: int, texts: list[str]) -> tuple[int, dict[str, Any]]:
    status, body = good(n, texts)
    return status, body | {"data": body["data"][: len(texts) - 1]}


def _narrow(n: int, texts: list[str]) -> tuple[int, dict[str, Any]]:
    status, body = good(n, texts)
    return status, body | {"data": [item | {"embedding": item["embedding"][:5]} for item in body["data"]]}


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        (lambda n, texts: (401, {"error": {"message": "wrong key"}}), "401"),
        (lambda n, texts: (200, {"data": None}), "no embeddings"),
        (lambda n, texts: (200, {"data": [{"index": 0, "embedding": ["a"]}]}), "no vectors in its answer"),
        (_without, "gave vectors of shape"),
        (_narrow, f"vectors of width 5 after some of width {WIDTH}"),
    ],
)
def test_faults_are_one_line(fault: Any, said: str) -> None:
    with serving(lambda n, texts: good(n, texts) if n == 0 else fault(n, texts)) as (url, _):
        encoder = EndpointEncoder(_endpoint(url), "m")
        with pytest.raises(RunFailed, match=said) as error:
            encoder.encode(["one text", "another"], NONE)
    assert str(error.value).startswith(f"{url}: no embeddings from model 'm'")
    assert "\n" not in str(error.value)


def test_no_server_there() -> None:
    with serving(good) as (url, _):
        pass
    with pytest.raises(RunFailed, match="check address, key and model"):
        EndpointEncoder(_endpoint(url), "m")


def test_an_atlas_of_a_servers_vectors(small: Small, tmp_path: Path) -> None:
    """Fitted, saved, and used again with the address given anew; another width is refused."""
    with serving(good) as (url, _):
        encoder = make_encoder("endpoint:m", small.encoded.space.vectors, _endpoint(url))
        inputs = FitInputs(
            small.texts[:120],
            small.heldout[:20],
            small.tags,
            type(small.encoded)(
                small.encoded.space, small.encoded.rarity, small.encoded.weighted[:120], small.encoded.rows[:120]
            ),
            type(small.evidence)(
                small.evidence.detector,
                small.evidence.thresholds,
                [rows[rows < 120] for rows in small.evidence.labelled],
                small.evidence.kinds,
            ),
        )
        fitted = fit_annotator(inputs, encoder, SETTINGS)
        pq.write_table(pa.table({"tag": list(small.tags)}), tmp_path / TAGS_NAME)
        fitted.annotator.save(tmp_path)
        again = Annotator.load(tmp_path, _endpoint(url))
        first, second = fitted.annotator.annotate(small.heldout[:9]), again.annotate(small.heldout[:9])
    assert first.labels == second.labels
    assert first.vectors.shape == (9, WIDTH)
    assert url not in (tmp_path / "annotator.safetensors").read_bytes().decode("latin-1")
    with serving(_narrow) as (url, _), pytest.raises(ConfigError, match=f"of width {WIDTH}, not with 'endpoint:m' of"):
        Annotator.load(tmp_path, _endpoint(url))
