"""The loader: which sequences make the batch of a step, as a pure function of seed, step and mixture.

The stream is one shuffled epoch after another; batches are consecutive stretches of it and may cross from one
epoch to the next. With a mixture, each group has such a stream of its own, and the mixture says which one each place
takes. Nothing depends on how many ranks or threads read it, so resuming needs no state but the step.
"""

from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import lru_cache

import numpy as np
from jaxtyping import Int64

from vitrail.errors import ConfigError, CorpusError
from vitrail.packed.batch import PackedBatch
from vitrail.packed.mixture import Mixture
from vitrail.packed.reader import PackedCorpus, PackedSplit
from vitrail.packed.settings import MixtureStage
from vitrail.packed.shuffle import permuted

_MOST_PLACES = 4_096


class Loader:
    """Batches of a split in shuffled order."""

    def __init__(
        self,
        packed: PackedCorpus,
        batch_size: int,
        seed: int,
        split: PackedSplit = "train",
        mixture: Sequence[MixtureStage] = (),
    ) -> None:
        """Set up the stream.

        Args:
            packed: the corpus.
            batch_size: B, sequences per batch, over all ranks.
            seed: of the shuffles.
            split: train or heldout.
            mixture: shares of the groups, by stages; empty for every sequence once an epoch.

        Raises:
            CorpusError: the split is empty.
            ConfigError: a mixture of groups that there are not, or of a corpus packed without groups.
        """
        if not packed.num_sequences(split):
            raise CorpusError(f"{packed.path}: no sequences in split '{split}'; import more documents")
        if mixture and packed.group_by == "none":
            raise ConfigError(
                f"{packed.path}: packed without groups to mix; pack it with --group_by source (or domain)"
            )
        self._packed, self._batch_size, self._seed = packed, batch_size, seed
        self._split: PackedSplit = split
        self._mixture = Mixture(mixture, packed.groups(split), batch_size, seed) if mixture else None
        self._page_size = min(_MOST_PLACES, max(batch_size, packed.num_sequences(split)))  # few epochs a page
        self._page = lru_cache(maxsize=4)(self._drawn_page)

    def rows_at(self, step: int) -> list[int]:
        """Sequences of a step's global batch.

        Args:
            step: 0, 1, 2, …

        Returns:
            B rows of the split.
        """
        first = step * self._batch_size
        stop = first + self._batch_size
        pages = range(first // self._page_size, (stop - 1) // self._page_size + 1)
        rows = np.concatenate([self._page(page) for page in pages])
        own: list[int] = rows[first - pages.start * self._page_size :][: self._batch_size].tolist()
        return own

    def batch_at(self, step: int, rows: slice | None = None) -> PackedBatch:
        """The batch of a step, or a rank's part of it.

        Args:
            step: 0, 1, 2, …
            rows: which sequences of the global batch; None for all.

        Returns:
            the sequences with their labels; the same for the same seed, step and mixture.
        """
        chosen = self.rows_at(step)
        return self._packed.batch(self._split, chosen if rows is None else chosen[rows])

    def stream(
        self, first_step: int, num_steps: int, rows: slice | None = None, workers: int = 0
    ) -> Iterator[PackedBatch]:
        """The batches of consecutive steps.

        Args:
            first_step: of the first batch.
            num_steps: how many batches.
            rows: as of `batch_at`.
            workers: threads that prepare batches ahead, two each; 0 for none.

        Yields:
            the same batches in the same order, whatever the number of workers.
        """
        steps = iter(range(first_step, first_step + num_steps))
        if workers == 0:
            for step in steps:
                yield self.batch_at(step, rows)
            return
        pool = ThreadPoolExecutor(workers, thread_name_prefix="loader")
        waiting: deque[Future[PackedBatch]] = deque()
        try:
            for step in steps:
                waiting.append(pool.submit(self.batch_at, step, rows))
                if len(waiting) > 2 * workers:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        finally:
            pool.shutdown(cancel_futures=True)

    def _drawn_page(self, page: int) -> Int64[np.ndarray, " n"]:
        """Rows at many places of the stream at once, since numpy is as fast for these as for one batch."""
        places = np.arange(page * self._page_size, (page + 1) * self._page_size)
        if self._mixture is None:
            return self._shuffled(places, self._packed.num_sequences(self._split), "")
        groups, own = self._mixture.drawn(places)
        sizes = self._packed.groups(self._split)
        rows = np.empty_like(places)
        for number in np.unique(groups).tolist():
            name, here = self._mixture.groups[number], groups == number
            rows[here] = self._packed.rows_of(self._split, name, self._shuffled(own[here], sizes[name], name))
        return rows

    def _shuffled(self, places: Int64[np.ndarray, " n"], num: int, group: str) -> Int64[np.ndarray, " n"]:
        """Numbers 0..num-1 at places of a stream of shuffled epochs."""
        epochs, inside = np.divmod(places, num)
        result = np.empty_like(places)
        for epoch in np.unique(epochs).tolist():
            here = epochs == epoch
            result[here] = permuted(inside[here], num, (self._seed, epoch, group))
        return result
