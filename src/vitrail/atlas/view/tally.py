"""How often concepts stand in groups of chunks, and how sure that is.

Chunks of one document are not independent draws: a book on bees counts its bees a hundred times. So beside the
counts the sums of squares over documents are kept, from which the variance of a share is found as for a cluster
sample (linearised ratio estimator). Everything is a sum over slabs: memory grows with groups times concepts that
occur in them, not with the corpus.

Letters: G groups, C concepts, D documents of a slab.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float64, Int64
from scipy.sparse import csr_array

from vitrail.atlas.annotated import AnnotatedCorpus
from vitrail.atlas.view.columns import By, Slab, slabs

Z95 = 1.959964
"""Half width of a 95 % interval in standard errors of a normal distribution."""


@dataclass(frozen=True)
class Counts:
    """Counts of some chunks, all concepts at once.

    Attributes:
        documents: how many documents they belong to.
        chunks: how many there are (N).
        square_sizes: sum over documents of (chunks)².
        carrying: chunks that carry each concept (X).
        square_carrying: sum over documents of (chunks that carry it)².
        cross: sum over documents of chunks × chunks that carry it.
    """

    documents: int
    chunks: int
    square_sizes: int
    carrying: Int64[np.ndarray, " C"]
    square_carrying: Int64[np.ndarray, " C"]
    cross: Int64[np.ndarray, " C"]

    def share(self) -> Float64[np.ndarray, " C"]:
        """Share of the chunks that carry each concept; 0 where there are no chunks."""
        return self.carrying / max(self.chunks, 1)

    def logit(self) -> tuple[Float64[np.ndarray, " C"], Float64[np.ndarray, " C"]]:
        """Log odds of carrying each concept, with half a chunk added on either side, and their variance (C).

        The variance is the larger of two: Woolf's for independent chunks, and the one that lets chunks of one
        document depend on each other (linearised, for documents drawn at random).

        Returns:
            log odds [nats], and their variance.
        """
        yes, no = self.carrying + 0.5, self.chunks - self.carrying + 0.5
        simple = 1 / yes + 1 / no
        if self.documents < 2:
            return np.log(yes / no), simple
        share = self.share()
        spread = self.square_carrying - 2 * share * self.cross + share**2 * self.square_sizes
        clustered = np.maximum(spread, 0) * ((self.chunks + 1) / (yes * no)) ** 2
        clustered *= self.documents / (self.documents - 1)
        return np.log(yes / no), np.maximum(simple, clustered)

    def __add__(self, other: "Counts") -> "Counts":
        """Counts of both together, if they share no document."""
        return self._with(other, 1)

    def __sub__(self, other: "Counts") -> "Counts":
        """Counts of what is left when whole documents are taken away."""
        return self._with(other, -1)

    def _with(self, other: "Counts", sign: int) -> "Counts":
        return Counts(
            self.documents + sign * other.documents,
            self.chunks + sign * other.chunks,
            self.square_sizes + sign * other.square_sizes,
            self.carrying + sign * other.carrying,
            self.square_carrying + sign * other.square_carrying,
            self.cross + sign * other.cross,
        )


@dataclass(frozen=True)
class Tally:
    """Counts by group.

    Attributes:
        by: what the groups are.
        groups: their names, most chunks first, then by name.
        sizes: documents, chunks, and sum of (chunks of a document)² of each group.
        carrying: [G C] sparse: chunks with the concept.
        square_carrying: [G C] sparse: sum over documents of their square.
        cross: [G C] sparse: sum over documents of chunks × chunks with the concept.
    """

    by: By
    groups: tuple[str, ...]
    sizes: Int64[np.ndarray, "G 3"]
    carrying: csr_array
    square_carrying: csr_array
    cross: csr_array

    def of(self, group: int) -> Counts:
        """Counts of one group.

        Args:
            group: 0..G-1.

        Returns:
            its counts, dense over the concepts.
        """
        documents, chunks, square_sizes = self.sizes[group].tolist()
        rows = (matrix[[group]].toarray()[0] for matrix in (self.carrying, self.square_carrying, self.cross))
        return Counts(documents, chunks, square_sizes, *rows)

    def whole(self) -> Counts:
        """Counts of all groups together."""
        documents, chunks, square_sizes = self.sizes.sum(0).tolist()
        sums = (
            np.asarray(matrix.sum(0)).astype(np.int64) for matrix in (self.carrying, self.square_carrying, self.cross)
        )
        return Counts(documents, chunks, square_sizes, *sums)


def tally(corpus: AnnotatedCorpus, num_concepts: int, by: By = "corpus") -> Tally:
    """Count concepts by group, in one pass.

    Args:
        corpus: the annotated corpus.
        num_concepts: C of its library.
        by: what to group by.

    Returns:
        the tally; one group without a name for `corpus`.

    Raises:
        ArtifactError: a part is damaged.
    """
    place: dict[str, int] = {}
    sums = _Sums(num_concepts)
    for slab in slabs(corpus, by):
        groups = np.array([place.setdefault(name, len(place)) for name in slab.groups], np.int64)
        sums.add(slab, groups, len(place))
    order = sorted(place, key=lambda name: (-int(sums.sizes[place[name], 1]), name))
    rows = [place[name] for name in order]
    matrices = (matrix[rows] for matrix in sums.matrices)
    return Tally(by, tuple(order), sums.sizes[rows], *matrices)


def log_odds(
    first: Counts, second: Counts
) -> tuple[Float64[np.ndarray, " C"], Float64[np.ndarray, " C"], Float64[np.ndarray, " C"]]:
    """Log odds ratio of each concept, first against second, with its 95 % interval (C; see `Counts.logit`).

    Args:
        first: positive where the concept is more frequent here.
        second: the other chunks; shares no document with the first.

    Returns:
        log odds ratio in nats, lower and upper end of the interval.
    """
    (a, var_a), (b, var_b) = first.logit(), second.logit()
    half = Z95 * np.sqrt(var_a + var_b)
    return a - b, a - b - half, a - b + half


class _Sums:
    """Running sums over slabs."""

    def __init__(self, num_concepts: int) -> None:
        self.sizes: Int64[np.ndarray, "G 3"] = np.zeros((0, 3), np.int64)
        self.matrices = [csr_array((0, num_concepts), dtype=np.int64) for _ in range(3)]
        self._num_concepts = num_concepts

    def add(self, slab: Slab, groups: Int64[np.ndarray, " D"], num_groups: int) -> None:
        self.sizes = np.concatenate([self.sizes, np.zeros((num_groups - len(self.sizes), 3), np.int64)])
        np.add.at(self.sizes, groups, np.stack([np.ones_like(slab.sizes), slab.sizes, slab.sizes**2], 1))
        keys, carrying = np.unique(slab.label_documents * self._num_concepts + slab.label_concepts, return_counts=True)
        documents, concepts = np.divmod(keys, self._num_concepts)
        shape = (num_groups, self._num_concepts)
        for i, values in enumerate(_values(carrying.astype(np.int64), slab.sizes[documents])):
            self.matrices[i].resize(shape)
            self.matrices[i] = self.matrices[i] + csr_array((values, (groups[documents], concepts)), shape=shape)


def _values(carrying: Int64[np.ndarray, " P"], sizes: Int64[np.ndarray, " P"]) -> Iterator[Int64[np.ndarray, " P"]]:
    yield carrying
    yield carrying**2
    yield carrying * sizes
