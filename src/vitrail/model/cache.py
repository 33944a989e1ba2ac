"""Keys and values of finished positions.

Under the block-causal mask a finished block never changes, so its keys and values are computed once. Each
layer owns one growing buffer; the current block is written behind the finished part, so attention reads
one view and nothing is copied.
"""

from collections.abc import Sequence

import torch
from jaxtyping import Float, Int
from torch import Tensor


class BlockCache:
    """Keys and values of the finished prefix, per layer: [B G P d], P = `length`.

    Filled by `ConceptLM.extend_cache`. It serves inference only: nothing in it takes part in a gradient.
    """

    def __init__(self) -> None:
        self.length = 0
        self._keys: dict[int, Tensor] = {}
        self._values: dict[int, Tensor] = {}

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

    def select(self, rows: Int[Tensor, " n"]) -> "BlockCache":
        """The finished prefix of some sequences, as a cache of its own.

        Args:
            rows: sequences to take, in the order wanted; they may repeat.

        Returns:
            a copy; extending it leaves this one as it is.
        """
        selected = BlockCache()
        selected.length = self.length
        for ours, theirs in ((self._keys, selected._keys), (self._values, selected._values)):
            theirs.update({layer: buffer[rows, :, : self.length] for layer, buffer in ours.items()})
        return selected

    @staticmethod
    def join(caches: Sequence["BlockCache"]) -> "BlockCache":
        """The sequences of several caches one after another.

        Args:
            caches: at least one; all of the same length.

        Returns:
            one cache, a copy.
        """
        assert len({cache.length for cache in caches}) == 1, "caches of different lengths cannot share a batch"
        joined = BlockCache()
        joined.length = caches[0].length
        for name in ("_keys", "_values"):
            stores: list[dict[int, Tensor]] = [getattr(cache, name) for cache in caches]
            parts = {layer: [store[layer][:, :, : joined.length] for store in stores] for layer in stores[0]}
            getattr(joined, name).update({layer: torch.cat(buffers) for layer, buffers in parts.items()})
        return joined

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
