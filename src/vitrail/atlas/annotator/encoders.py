"""Encoders of chunks: what the heads read, and what retrieval will search (§4.2.3, §4.6).

The paper's annotator reads Qwen3-Embedding-0.6B (S). Here the default costs nothing beyond the tags (C): a chunk
is the tf-idf mean of its tags' vectors. MiniLM reads the text itself; a server may do so with any model.

Letters: R chunks, n tags, E width.
"""

from collections.abc import Sequence
from importlib import import_module
from typing import Protocol, runtime_checkable

import numpy as np
from jaxtyping import Float32
from scipy.sparse import csr_array

from vitrail.atlas.concepts.geometry import chunk_vectors


@runtime_checkable
class ChunkEncoder(Protocol):
    """Texts to unit vectors.

    Attributes:
        name: as in the settings.
        reads_text: whether the text counts, or its tags alone.
    """

    name: str
    reads_text: bool

    @property
    def width(self) -> int:
        """E."""
        ...

    def encode(self, texts: Sequence[str], weighted: csr_array) -> Float32[np.ndarray, "R E"]:
        """Vectors of chunks.

        Args:
            texts: R chunk texts.
            weighted: [R n] tf-idf of their tags.

        Returns:
            [R E] unit rows; zero for a chunk in which the encoder sees nothing.
        """
        ...


class TagsEncoder:
    """A chunk as the weighted mean of its tags' vectors."""

    name = "tags"
    reads_text = False

    def __init__(self, vectors: Float32[np.ndarray, "n E"]):
        """Use tag vectors.

        Args:
            vectors: [n E] unit rows.
        """
        self._vectors = vectors

    @property
    def width(self) -> int:
        """E."""
        return int(self._vectors.shape[1])

    def encode(self, texts: Sequence[str], weighted: csr_array) -> Float32[np.ndarray, "R E"]:
        """Vectors of chunks, from their tags alone.

        Args:
            texts: not read.
            weighted: [R n] tf-idf.

        Returns:
            [R E] unit rows; zero for a chunk without tags.
        """
        return chunk_vectors(weighted, self._vectors)


class MiniLMEncoder:
    """A chunk as MiniLM reads it, at most 256 tokens of it."""

    name = "minilm"
    reads_text = True
    width = 384

    def __init__(self) -> None:
        """Load the model.

        Raises:
            ArtifactError: its package is missing or damaged.
        """
        self._model = import_module("vitrail.atlas.concepts.encoder").minilm()  # no other encoder needs torch

    def encode(self, texts: Sequence[str], weighted: csr_array) -> Float32[np.ndarray, "R 384"]:
        """Vectors of chunks, from their text alone.

        Args:
            texts: R chunk texts.
            weighted: not read.

        Returns:
            [R 384] unit rows.
        """
        return np.asarray(self._model.encode(texts), np.float32)
