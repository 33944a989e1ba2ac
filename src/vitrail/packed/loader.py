"""The loader: which sequences make the batch of a step, as a pure function of seed and step.

The stream is one shuffled epoch after another; batches are consecutive stretches of it and may cross from one
epoch to the next. Resuming needs no state but the step.
"""

from functools import lru_cache
from itertools import groupby

import numpy as np

from vitrail.errors import CorpusError
from vitrail.packed.batch import PackedBatch
from vitrail.packed.reader import PackedCorpus, PackedSplit


class Loader:
    """Batches of a split in shuffled order."""

    def __init__(self, packed: PackedCorpus, batch_size: int, seed: int, split: PackedSplit = "train") -> None:
        """Set up the stream.

        Args:
            packed: the corpus.
            batch_size: B, sequences per batch.
            seed: of the shuffles.
            split: train or heldout.

        Raises:
            CorpusError: the split is empty.
        """
        if not packed.num_sequences(split):
            raise CorpusError(f"{packed.path}: no sequences in split '{split}'; import more documents")
        self._packed = packed
        self._batch_size = batch_size
        self._split: PackedSplit = split
        self._order = lru_cache(maxsize=2)(
            lambda epoch: np.random.default_rng([seed, epoch]).permutation(packed.num_sequences(split)).tolist()
        )

    def rows_at(self, step: int) -> list[int]:
        """Sequences of a step's batch.

        Args:
            step: 0, 1, 2, …

        Returns:
            B rows of the split.
        """
        num = self._packed.num_sequences(self._split)
        places = range(step * self._batch_size, (step + 1) * self._batch_size)
        rows: list[int] = []
        for epoch, group in groupby(places, key=lambda place: place // num):
            order = self._order(epoch)
            rows += [order[place % num] for place in group]
        return rows

    def batch_at(self, step: int) -> PackedBatch:
        """The batch of a step.

        Args:
            step: 0, 1, 2, …

        Returns:
            B sequences with their labels; the same for the same seed and step.
        """
        return self._packed.batch(self._split, self.rows_at(step))
