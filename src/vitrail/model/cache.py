"""Keys and values of finished positions.

Under the block-causal mask a finished block never changes, nor does any token under the causal one, so their keys
and values are computed once. Each layer owns one growing buffer; the current positions are written behind the
finished part, so attention reads one view and nothing is copied.

Rows may stand at different places: a shorter prefix is padded to the longest, and attention skips the
padding (`starts`). Keys are rotated by their own absolute positions before they are stored, so it does not
matter in which slot they lie.
"""

from collections.abc import Sequence

import torch
from jaxtyping import Float, Int
from torch import Tensor


class BlockCache:
    """Keys and values of the finished prefixes, per layer: [B G P d], P = `length`, the longest prefix.

    Filled by `ConceptLM.extend_cache`. It serves inference only: nothing in it takes part in a gradient.

    Attributes:
        length: slots before the current positions.
        starts: [B] finished positions of each row; None where all rows have `length` of them.
    """

    def __init__(self, num_rows: int | None = None) -> None:
        """Make an empty cache.

        Args:
            num_rows: rows that stand at position 0, to be joined with others; None leaves it to the first forward.
        """
        self.length = 0
        self.starts = None if num_rows is None else torch.zeros(num_rows, dtype=torch.long)
        self._keys: dict[int, Tensor] = {}
        self._values: dict[int, Tensor] = {}

    @property
    def is_ragged(self) -> bool:
        """Whether some row has a shorter prefix than others."""
        return self.starts is not None and bool((self.starts != self.length).any())

    def put(
        self, layer: int, k: Float[Tensor, "B G T d"], v: Float[Tensor, "B G T d"]
    ) -> tuple[Float[Tensor, "B G S d"], Float[Tensor, "B G S d"]]:
        """Write the current positions behind the finished ones, without finishing them.

        Args:
            layer: layer number from 0.
            k: keys of the current positions.
            v: values of the current positions.

        Returns:
            views of keys and values of finished and current positions, S = length + T.
        """
        assert not (torch.is_grad_enabled() and k.requires_grad), "a cache takes no gradient: use no_grad"
        stop = self.length + k.shape[2]
        buffers = []
        for store, current in ((self._keys, k), (self._values, v)):
            buffer = self._room(store, layer, current, stop)
            buffer[:, :, self.length : stop] = current
            buffers.append(buffer[:, :, :stop])
        return buffers[0], buffers[1]

    def finish(self, count: int) -> None:
        """Count the positions written last as finished; each row's move up to its own prefix.

        Args:
            count: T, how many.
        """
        if self.starts is not None:
            short = (self.starts < self.length).nonzero()[:, 0]
            slot = self.starts[short, None] + torch.arange(count)
            for buffer in (*self._keys.values(), *self._values.values()):
                written = buffer[short, :, self.length : self.length + count]
                buffer[short[:, None], :, slot] = written.transpose(1, 2)
            self.starts = self.starts + count
        self.length += count

    def select(self, rows: Int[Tensor, " n"]) -> "BlockCache":
        """The finished prefixes of some sequences, as a cache of their own.

        Args:
            rows: sequences to take, in the order wanted; they may repeat.

        Returns:
            a copy; extending it leaves this one as it is.
        """
        selected = BlockCache()
        selected.starts = None if self.starts is None else self.starts[rows.cpu()]
        # Without rows, or without a record of them, the longest prefix stays the measure.
        has_rows = selected.starts is not None and len(selected.starts) > 0
        selected.length = int(selected.starts.max()) if selected.starts is not None and has_rows else self.length
        for ours, theirs in ((self._keys, selected._keys), (self._values, selected._values)):
            theirs.update({layer: buffer[rows, :, : selected.length] for layer, buffer in ours.items()})
        return selected

    @staticmethod
    def join(caches: Sequence["BlockCache"]) -> "BlockCache":
        """The sequences of several caches one after another.

        Args:
            caches: at least one; prefixes may differ in length.

        Returns:
            one cache, a copy.
        """
        joined = BlockCache()
        joined.starts = torch.cat([cache._known_starts() for cache in caches])
        joined.length = max(cache.length for cache in caches)
        for name in ("_keys", "_values"):
            stores: list[dict[int, Tensor]] = [getattr(cache, name) for cache in caches]
            largest = max(stores, key=len)
            for layer, example in largest.items():
                # Zeros, since what attention skips is still multiplied by a weight of zero.
                whole = example.new_zeros(len(joined.starts), example.shape[1], joined.length, example.shape[3])
                at = 0
                for cache, store in zip(caches, stores, strict=True):
                    stop = at + len(cache._known_starts())
                    if layer in store:
                        whole[at:stop, :, : cache.length] = store[layer][:, :, : cache.length]
                    at = stop
                getattr(joined, name)[layer] = whole
        return joined

    def _known_starts(self) -> Int[Tensor, " B"]:
        if self.starts is not None:
            return self.starts
        assert self._keys, "a cache that was never extended does not know its rows: say num_rows"
        return torch.full((len(next(iter(self._keys.values()))),), self.length)

    def _room(self, store: dict[int, Tensor], layer: int, current: Tensor, stop: int) -> Tensor:
        buffer = store.get(layer)
        if buffer is None or buffer.shape[2] < stop:
            batch, heads, _, width = current.shape
            # Doubling keeps the copies linear in the final length.
            grown = current.new_empty(batch, heads, 2 * stop, width)
            if buffer is not None:
                grown[:, :, : self.length] = buffer[:, :, : self.length]
            store[layer] = buffer = grown
        return buffer
