"""The heads: one linear head for each kind of concept, on the chunk's vector (§4.2.3).

What a head says of a concept is a logit; in scores it counts as z, standard deviations above the concept's mean
logit over the corpus, so that concepts can be compared and added to other evidence.

Letters: R chunks, C concepts (c of one kind), E width.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float32
from numpy.typing import NDArray

MIN_SCALE = 1e-4
"""A spread below this is rounding: the head says the same of every chunk, and its z is 0."""

SLAB_CONCEPTS = 512
SLAB_SCORES = 16_384


@dataclass(frozen=True)
class Heads:
    """Linear heads of C concepts.

    Attributes:
        weights: [C E].
        biases: [C]; the logit is calibrated: its sigmoid is the chance that a chunk carries the concept.
        mean: [C] mean logit over the corpus.
        scale: [C] its standard deviation.
        kinds: [C] the head that each concept belongs to.
    """

    weights: Float32[np.ndarray, "C E"]
    biases: Float32[np.ndarray, " C"]
    mean: Float32[np.ndarray, " C"]
    scale: Float32[np.ndarray, " C"]
    kinds: tuple[str, ...]

    def z_at(
        self, chunks: Float32[np.ndarray, "R E"], rows: NDArray[np.integer], concepts: NDArray[np.integer]
    ) -> Float32[np.ndarray, " p"]:
        """Z of single pairs of chunk and concept.

        Args:
            chunks: [R E] vectors.
            rows: [p] chunk of each pair.
            concepts: [p] concept of each pair.

        Returns:
            [p] fp32.
        """
        z = np.empty(len(rows), np.float32)
        for start in range(0, len(rows), SLAB_SCORES):
            slab = slice(start, start + SLAB_SCORES)
            inside = concepts[slab]
            logits = np.einsum("ij,ij->i", chunks[rows[slab]], self.weights[inside]) + self.biases[inside]
            z[slab] = (logits - self.mean[inside]) / self.scale[inside]
        return z

    def z_of(
        self, chunks: Float32[np.ndarray, "R E"], concepts: NDArray[np.integer]
    ) -> Iterator[tuple[NDArray[np.integer], Float32[np.ndarray, "R s"]]]:
        """Z of all chunks, for some concepts at a time.

        Args:
            chunks: [R E] vectors.
            concepts: which concepts.

        Yields:
            at most 512 concepts, and [R s] their z.
        """
        for start in range(0, len(concepts), SLAB_CONCEPTS):
            slab = concepts[start : start + SLAB_CONCEPTS]
            logits = chunks @ self.weights[slab].T + self.biases[slab]
            yield slab, np.asarray((logits - self.mean[slab]) / self.scale[slab], np.float32)

    def logits(self, chunks: Float32[np.ndarray, "R E"], concept_id: int) -> Float32[np.ndarray, " R"]:
        """Calibrated log-odds of one concept.

        Args:
            chunks: [R E] vectors.
            concept_id: 0..C-1.

        Returns:
            [R] fp32.
        """
        return np.asarray(chunks @ self.weights[concept_id] + self.biases[concept_id], np.float32)

    def only(self, concept_ids: Sequence[int]) -> "Heads":
        """The heads of some of the concepts.

        Args:
            concept_ids: in the wanted order.

        Returns:
            fewer heads.
        """
        ids = list(concept_ids)
        kinds = tuple(self.kinds[i] for i in ids)
        return Heads(self.weights[ids], self.biases[ids], self.mean[ids], self.scale[ids], kinds)

    def arrays(self) -> dict[str, np.ndarray]:
        """What is stored: for each kind `head.KIND.ids`, `.weight`, `.bias`, `.mean`, `.scale`."""
        out: dict[str, np.ndarray] = {}
        for kind in sorted(set(self.kinds)):
            ids = np.flatnonzero(np.array(self.kinds) == kind)
            parts = self.only(ids.tolist())
            out |= {
                f"head.{kind}.ids": ids,
                f"head.{kind}.weight": parts.weights,
                f"head.{kind}.bias": parts.biases,
                f"head.{kind}.mean": parts.mean,
                f"head.{kind}.scale": parts.scale,
            }
        return out

    @classmethod
    def from_arrays(cls, stored: Mapping[str, np.ndarray]) -> "Heads":
        """Heads as `arrays` gave them.

        Args:
            stored: arrays by name; others are left alone.

        Returns:
            the heads.

        Raises:
            ValueError: there are none, or their concepts are not 0..C-1.
        """
        kinds = sorted(name.split(".")[1] for name in stored if name.startswith("head.") and name.endswith(".ids"))
        if not kinds:
            raise ValueError("no heads")
        ids = np.concatenate([stored[f"head.{kind}.ids"] for kind in kinds])
        order = np.argsort(ids, kind="stable")
        if not np.array_equal(ids[order], np.arange(len(ids))):
            raise ValueError("heads without a concept each")
        weights, biases, mean, scale = (
            np.concatenate([stored[f"head.{kind}.{part}"] for kind in kinds])[order]
            for part in ("weight", "bias", "mean", "scale")
        )
        owner = [kind for kind in kinds for _ in range(len(stored[f"head.{kind}.ids"]))]
        return cls(weights, biases, mean, scale, tuple(owner[i] for i in order))


def standardised(
    weights: Float32[np.ndarray, "C E"],
    biases: Float32[np.ndarray, " C"],
    kinds: Sequence[str],
    chunks: Float32[np.ndarray, "R E"],
) -> Heads:
    """Heads with the mean and spread of their logits over a corpus.

    Args:
        weights: [C E].
        biases: [C].
        kinds: [C].
        chunks: [R E] vectors of the corpus.

    Returns:
        the heads; holds the logits of 512 concepts at a time.
    """
    mean, scale = np.zeros_like(biases), np.ones_like(biases)
    for start in range(0, len(biases), SLAB_CONCEPTS):
        slab = slice(start, start + SLAB_CONCEPTS)
        logits = chunks @ weights[slab].T + biases[slab]
        spread = logits.std(0)
        mean[slab], scale[slab] = logits.mean(0), np.where(spread > MIN_SCALE, spread, 1)
    return Heads(weights, biases, mean, scale, tuple(kinds))
