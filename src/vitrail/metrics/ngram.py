"""N-gram models of token ids by interpolated Kneser–Ney: the baselines beside every likelihood.

The longest order counts occurrences; each shorter one counts in how many different contexts a continuation
was seen. One absolute discount per order, D = n₁ / (n₁ + 2 n₂); the shortest order is mixed with the
uniform distribution, so every token of the vocabulary has positive probability and they sum to one.

An n-gram is one integer: its ids as digits of a number in base `vocab_size + 1`, where the extra digit is the
start of a sequence. Counting is sorting, looking up is bisection; a fit on two million tokens takes seconds.
"""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Int64, Integer

from vitrail.errors import ConfigError
from vitrail.packed import PackedCorpus, PackedSplit

_MAX_ORDER = 3
_SEQUENCES_AT_ONCE = 64


@dataclass(frozen=True)
class _Order:
    """Counts of one order, sorted by key so that they can be looked up by bisection."""

    keys: np.ndarray  # n-grams
    counts: np.ndarray
    contexts: np.ndarray  # n-grams without their last token
    totals: np.ndarray  # sum of counts in each context
    num_types: np.ndarray  # different continuations of each context
    discount: float


@dataclass(frozen=True)
class NGramModel:
    """Interpolated Kneser–Ney model over token ids.

    Attributes:
        vocab_size: ids are 0..vocab_size-1; all take part in the normalisation.
        orders: counts of the orders 1, 2, ... up to the order of the model.
    """

    vocab_size: int
    orders: tuple[_Order, ...]

    @property
    def order(self) -> int:
        """Length of the longest n-gram counted."""
        return len(self.orders)

    @classmethod
    def fit(cls, sequences: Iterable[Integer[np.ndarray, "..."]], order: int, vocab_size: int) -> "NGramModel":
        """Count `sequences`; no n-gram crosses from one into the next.

        Args:
            sequences: token ids of each text, without padding.
            order: 1 (unigram), 2 or 3.
            vocab_size: ids are 0..vocab_size-1.

        Returns:
            the model.

        Raises:
            ConfigError: an order that is not supported, or nothing to count.

        Cost: a few sorts of all tokens; memory of a few int64 per token.
        """
        if not 1 <= order <= _MAX_ORDER:
            raise ConfigError(f"n-gram order {order}: use 1 to {_MAX_ORDER}")
        windows = [_windows(np.asarray(ids, dtype=np.int64), order, vocab_size) for ids in sequences]
        grams = np.concatenate([np.zeros((0, order), dtype=np.int64), *windows])
        if not len(grams):
            raise ConfigError("n-gram model: no tokens to count; give at least one non-empty sequence")
        base = vocab_size + 1
        keys, counts = np.unique(_join(grams, base), return_counts=True)
        orders = [_tabulate(keys, counts, base)]
        for shorter in range(order - 1, 0, -1):  # how many different tokens precede each shorter n-gram
            keys, counts = np.unique(keys % base**shorter, return_counts=True)
            orders.append(_tabulate(keys, counts, base))
        return cls(vocab_size, tuple(reversed(orders)))

    def logprobs(self, ids: Integer[np.ndarray, " n"]) -> Float[np.ndarray, " n"]:
        """Log-probability of every token given those before it in the sequence.

        Args:
            ids: one sequence of token ids.

        Returns:
            nats, all finite.
        """
        windows = _windows(np.asarray(ids, dtype=np.int64), self.order, self.vocab_size)
        return np.asarray(np.log(self._probs(windows)))

    def next_probs(self, context: Integer[np.ndarray, " n"]) -> Float[np.ndarray, " V"]:
        """Probabilities of all tokens after `context`, the start of a sequence; they sum to one."""
        ids = np.concatenate([np.asarray(context, dtype=np.int64), [0]])
        windows = np.repeat(_windows(ids, self.order, self.vocab_size)[-1:], self.vocab_size, axis=0)
        windows[:, -1] = np.arange(self.vocab_size)
        return self._probs(windows)

    def perplexity(self, ids: Integer[np.ndarray, " n"], start: int = 0) -> float:
        """Perplexity of a text per token.

        Args:
            ids: the sequence.
            start: tokens before it are context and not scored (a prompt).

        Returns:
            exp of the mean negative log-probability; NaN where nothing is scored.
        """
        scored = self.logprobs(ids)[start:]
        return float(np.exp(-scored.mean())) if len(scored) else float("nan")

    def _probs(self, windows: Int64[np.ndarray, "n order"]) -> Float[np.ndarray, " n"]:
        base = self.vocab_size + 1
        probs = np.full(len(windows), 1 / self.vocab_size)
        for length, table in enumerate(self.orders, start=1):
            keys = _join(windows[:, self.order - length :], base)
            seen, row = _find(table.keys, keys)
            known, context = _find(table.contexts, keys // base)
            total = np.where(known, table.totals[context], 1)
            own = np.where(seen, table.counts[row] - table.discount, 0.0)
            left = np.where(known, table.discount * table.num_types[context], 1.0)
            probs = (own + left * probs) / total
        return probs


def fit_ngram(
    packed: PackedCorpus, order: int, *, split: PackedSplit = "train", max_tokens: int = 10_000_000
) -> NGramModel:
    """The model of a split of a packed corpus, structure tokens included, padding left out.

    Args:
        packed: the packed corpus.
        order: 1, 2 or 3.
        split: usually `train`.
        max_tokens: sequences beyond about this many tokens are not counted; counts are held in memory.

    Returns:
        the model.
    """
    tokenizer = packed.tokenizer()
    num_sequences = min(packed.num_sequences(split), max(1, max_tokens // packed.length))
    sequences = []
    for start in range(0, num_sequences, _SEQUENCES_AT_ONCE):
        rows = range(start, min(start + _SEQUENCES_AT_ONCE, num_sequences))
        for ids in packed.batch(split, rows).tokens.numpy():
            sequences.append(ids[ids != tokenizer.pad_id])
    return NGramModel.fit(sequences, order, tokenizer.vocab_size)


def _windows(ids: Int64[np.ndarray, " n"], order: int, vocab_size: int) -> Int64[np.ndarray, "n order"]:
    """The n-gram that ends at each token; `vocab_size` stands before the first."""
    padded = np.concatenate([np.full(order - 1, vocab_size, dtype=np.int64), ids])
    return np.stack([padded[shift : shift + len(ids)] for shift in range(order)], axis=1)


def _join(grams: Int64[np.ndarray, "n order"], base: int) -> Int64[np.ndarray, " n"]:
    if base ** grams.shape[1] >= 2**63:
        raise ConfigError(f"n-gram order {grams.shape[1]} over {base - 1} tokens does not fit 64 bits; lower it")
    keys = grams[:, 0]
    for column in range(1, grams.shape[1]):
        keys = keys * base + grams[:, column]
    return keys


def _tabulate(keys: np.ndarray, counts: np.ndarray, base: int) -> _Order:
    contexts, first = np.unique(keys // base, return_index=True)
    num_once, num_twice = int((counts == 1).sum()), int((counts == 2).sum())
    # Without singletons (tiny vocabularies) the estimate is 0 and unseen tokens would get no mass.
    discount = num_once / (num_once + 2 * num_twice) if num_once and num_twice else 0.5
    return _Order(
        keys=keys,
        counts=counts,
        contexts=contexts,
        totals=np.add.reduceat(counts, first),
        num_types=np.diff(np.append(first, len(keys))),
        discount=discount,
    )


def _find(table: np.ndarray, keys: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    row = np.searchsorted(table, keys).clip(max=len(table) - 1)
    return table[row] == keys, row
