"""A server's embeddings as chunk vectors: any `/v1/embeddings` that the `openai` client can ask.

The model's name is part of the encoder's name, and so of the atlas; the address is not. Texts go out sorted, in
requests of fixed make-up, so that a server that is deterministic gives the same atlas whatever the order.
"""

import importlib
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
from jaxtyping import Float32
from scipy.sparse import csr_array

from vitrail.atlas.concepts.geometry import unit
from vitrail.atlas.llm.endpoint import Endpoint
from vitrail.errors import ConfigError, RunFailed

PREFIX = "endpoint:"
TEXTS_PER_REQUEST = 64
PROBE = "width"


class EndpointEncoder:
    """Unit vectors of texts, from a server."""

    reads_text = True

    def __init__(self, endpoint: Endpoint, model: str):
        """Ask the server for one vector, to learn the width.

        Args:
            endpoint: the server, with its key.
            model: name of the embedding model, as the server knows it.

        Raises:
            ConfigError: the package `openai` is not installed.
            RunFailed: the server does not answer, or not with vectors.
        """
        try:
            self._openai = importlib.import_module("openai")
        except ModuleNotFoundError as error:
            raise ConfigError(
                "encoding by a server needs the package openai; run: pip install 'vitrail[llm]'"
            ) from error
        self.name = PREFIX + model
        self._endpoint, self._model = endpoint, model
        self._client = self._openai.OpenAI(
            base_url=endpoint.url,
            api_key=endpoint.api_key.get_secret_value() if endpoint.api_key else "none",
            timeout=endpoint.timeout_s,
            max_retries=endpoint.max_retries,
        )
        self._width = int(self._ask([PROBE]).shape[1])

    @property
    def width(self) -> int:
        """E."""
        return self._width

    def encode(self, texts: Sequence[str], weighted: csr_array) -> Float32[np.ndarray, "R E"]:
        """Vectors of chunks, from their text alone.

        Args:
            texts: R chunk texts.
            weighted: not read.

        Returns:
            [R E] unit rows; zero for a blank text, which no server takes.

        Raises:
            RunFailed: the server gives up, or its vectors are unusable.
        """
        unique = sorted({text for text in texts if text.strip()})
        batches = [unique[i : i + TEXTS_PER_REQUEST] for i in range(0, len(unique), TEXTS_PER_REQUEST)]
        with ThreadPoolExecutor(self._endpoint.max_concurrency) as pool:
            parts = list(pool.map(self._ask, batches))
        rows = np.concatenate([np.zeros((1, self._width), np.float32), *(self._checked(part) for part in parts)])
        place = {text: i for i, text in enumerate(unique, 1)}
        return unit(rows[[place.get(text, 0) for text in texts]])

    def _ask(self, texts: Sequence[str]) -> Float32[np.ndarray, "R E"]:
        try:
            answer = self._client.embeddings.create(model=self._model, input=list(texts), encoding_format="float")
            found = sorted(answer.data, key=lambda item: item.index)
            vectors = np.array([item.embedding for item in found], np.float32)
        except self._openai.OpenAIError as error:
            raise self._failure(str(error)) from error
        except (AttributeError, TypeError, ValueError) as error:
            raise self._failure(f"no vectors in its answer: {error}") from error
        if vectors.ndim != 2 or len(vectors) != len(texts) or not np.isfinite(vectors).all():
            raise self._failure(f"{len(texts)} texts gave vectors of shape {vectors.shape}, or not all finite")
        if not vectors.any(axis=1).all():
            raise self._failure("a vector without a number other than 0")
        return vectors

    def _checked(self, vectors: Float32[np.ndarray, "R e"]) -> Float32[np.ndarray, "R E"]:
        if vectors.shape[1] != self._width:
            raise self._failure(f"vectors of width {vectors.shape[1]} after some of width {self._width}")
        return vectors

    def _failure(self, problem: Any) -> RunFailed:
        said = " ".join(str(problem).split())[:200]
        return RunFailed(
            f"{self._endpoint.url}: no embeddings from model '{self._model}' ({said}); "
            "check address, key and model, then run the same command again"
        )
