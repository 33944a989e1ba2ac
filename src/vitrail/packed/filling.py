"""Filling sequences with whole chunks, so that little is padded and nothing is cut.

A sequence starts with the next chunks of one document, and what is left over is filled with next chunks of
others. How far the first document is continued is chosen so that the rest can be filled well. The
chunks of a document stay in their order, over as many sequences as they need.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

_GOOD_SHARE = 32
"""A filling that leaves at most 1/32 of the sequence is good enough to stop looking for a better one."""


@dataclass(frozen=True)
class Run:
    """Neighbouring chunks of one document in one sequence: chunks first..stop-1 of document `document`."""

    document: int
    first: int
    stop: int


def fill_sequences(sizes: Sequence[Sequence[int]], length: int) -> list[list[Run]]:
    """Distribute chunks over sequences (§4.5.2).

    Args:
        sizes: tokens of each chunk of each document, control tokens included, 1..length.
        length: T, tokens of a sequence.

    Returns:
        the runs of each sequence, in order; every chunk in exactly one.

    Cost: O(chunks · length) bit operations; about 100,000 chunks per core-second at length 256.
    """
    waiting = _Waiting(sizes)
    sequences = []
    while (document := waiting.first_document()) is not None:
        count = _first_run(waiting, document, length)
        runs: list[Run] = []
        room = length
        while document is not None:
            first = waiting.take(document, count)
            room -= sum(sizes[document][first : first + count])
            if runs and runs[-1].document == document:
                runs[-1] = Run(document, runs[-1].first, first + count)
            else:
                runs.append(Run(document, first, first + count))
            document, count = waiting.of_size(waiting.best_filling(room)[0]), 1
        sequences.append(runs)
    return sequences


def _first_run(waiting: "_Waiting", document: int, length: int) -> int:
    """How many chunks of the document to begin with: as many as leave room that can be filled well."""
    rooms = list(waiting.rooms_after(document, length))
    best_count, least_left = 1, length
    for count in range(len(rooms), 0, -1):
        left = rooms[count - 1] - sum(waiting.best_filling(rooms[count - 1]))
        if left < least_left:
            best_count, least_left = count, left
        if left * _GOOD_SHARE <= length:
            break
    return best_count


class _Waiting:
    """Documents with chunks left, by the size of the next one."""

    def __init__(self, sizes: Sequence[Sequence[int]]) -> None:
        self._sizes = sizes
        self._next = [0] * len(sizes)
        self._lowest = 0
        self._by_size: dict[int, dict[int, None]] = {}  # size → documents, in the order they came
        self._present = 0  # bit n: some document's next chunk has n tokens
        for document in range(len(sizes)):
            self._offer(document)

    def first_document(self) -> int | None:
        while self._lowest < len(self._sizes) and self._next[self._lowest] == len(self._sizes[self._lowest]):
            self._lowest += 1
        return self._lowest if self._lowest < len(self._sizes) else None

    def rooms_after(self, document: int, room: int) -> Iterator[int]:
        """Room left after one, two, … next chunks of the document."""
        sizes = self._sizes[document]
        for at in range(self._next[document], len(sizes)):  # a slice would copy the rest of a book each time
            room -= sizes[at]
            if room < 0:
                return
            yield room

    def best_filling(self, room: int) -> tuple[int, int]:
        """Sizes of one or two waiting chunks that fill the room best, larger first; zeros where none fits."""
        largest = self._largest_within(room)
        best = (largest, self._largest_within(room - largest)) if largest else (0, 0)
        size = largest
        while size and sum(best) < room <= 2 * size:
            size = self._largest_within(size - 1)
            pair = (size, self._largest_within(min(size, room - size)))
            best = max(best, pair, key=sum)
        return best

    def of_size(self, size: int) -> int | None:
        """The document whose next chunk of this size has waited longest."""
        return next(iter(self._by_size[size])) if size else None

    def take(self, document: int, count: int) -> int:
        """Take the next chunks of a document; the number of the first."""
        first = self._next[document]
        size = self._sizes[document][first]
        del self._by_size[size][document]
        if not self._by_size[size]:
            self._present &= ~(1 << size)
        self._next[document] = first + count
        self._offer(document)
        return first

    def _largest_within(self, room: int) -> int:
        return max(0, (self._present & ((2 << room) - 1)).bit_length() - 1) if room > 0 else 0

    def _offer(self, document: int) -> None:
        if self._next[document] < len(self._sizes[document]):
            size = self._sizes[document][self._next[document]]
            self._by_size.setdefault(size, {})[document] = None
            self._present |= 1 << size
