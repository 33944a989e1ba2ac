"""Concept heads: hidden state in, activations and their sum of embeddings out (§5.3).

    z_c = query(h) · keys_c        a_c = sigmoid(clamp(z_c, ±15))        features = expand(Σ a_c values_c)

A head differs from another only in `query`, `table` (keys and values) and `expand`: dense or factorised embedding,
linear or attention predictor. All else is one kernel over the table, in `streaming`.
Names of parameters are those of the release. Tables are padded to `pad_multiple` rows; padding is never read.

Letters: C concepts, D width, r rank, k concepts kept per position, S concepts in a slab, R rows of a table.
"""

import math
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from vitrail.model.config import ModelConfig
from vitrail.model.streaming import (
    Table,
    best_concepts,
    selected_dots,
    selected_logits,
    selected_sum,
    streamed_sum,
    wide,
)

_REPORTED_OF_ALL = 64
"""Concepts that a discovered head without top-k reports, as the release does; a known one reports none."""


@dataclass(frozen=True, eq=False)
class HeadOutput:
    """What a head adds to the composed state, and through which concepts.

    Attributes:
        features: [... D] Σ a_c E_c over the selected concepts.
        ids: [... k] reported concepts, best first; k = 0 where a known head has no top-k.
        logits: [... k] their logits, clamped to ±15, at least fp32.
    """

    features: Float[Tensor, "... D"]
    ids: Int[Tensor, "... k"]
    logits: Float[Tensor, "... k"]


@dataclass(frozen=True)
class Selection:
    """How many concepts a head reports and sums.

    Attributes:
        reported: k, concepts reported; None reports none.
        summed: k_f, concepts in the features; None sums all.
        by_logit: rank by logit instead of sigmoid (they differ where fp32 sigmoids tie).
    """

    reported: int | None
    summed: int | None
    by_logit: bool


class ConceptHead(nn.Module):
    """What all heads share; subclasses give `query`, `table`, `expand` and its transpose `lower`."""

    def __init__(self, num_concepts: int, width: int, selection: Selection, slab: int) -> None:
        super().__init__()
        self.num_concepts, self.width, self.selection, self.slab = num_concepts, width, selection, slab

    def query(self, hidden: Float[Tensor, "... D"]) -> Float[Tensor, "... p"]:
        """What is multiplied with the keys.

        Args:
            hidden: final hidden states.

        Returns:
            one vector of the width of the keys per position.
        """
        raise NotImplementedError

    @property
    def table(self) -> Table:
        """The rows that the streaming kernel reads: keys give logits, values are summed and expanded."""
        raise NotImplementedError

    def expand(self, values: Float[Tensor, "... q"]) -> Float[Tensor, "... D"]:
        """From the width of the values to the model's.

        Args:
            values: rows of values, or sums of them.

        Returns:
            the same in the model's width.
        """
        return values

    def lower(self, vectors: Float[Tensor, "... D"]) -> Float[Tensor, "... q"]:
        """The transpose of `expand`: `lower(v) · row = v · expand(row)`.

        Args:
            vectors: in the model's width.

        Returns:
            the same in the width of the values.
        """
        return vectors

    def logits(self, hidden: Float[Tensor, "... D"], rows: slice) -> Float[Tensor, "... S"]:
        """Unclamped logits z of a slab of concepts.

        Args:
            hidden: final hidden states.
            rows: concepts, within 0..C.

        Returns:
            z, at least fp32.
        """
        keys = self.table.keys[rows]
        dtype = wide(keys.dtype)
        with _full_precision(hidden):
            return self.query(hidden.to(keys.dtype)).to(dtype) @ keys.to(dtype).T

    def logits_for(self, hidden: Float[Tensor, "*n D"], ids: Int[Tensor, "*n k"]) -> Float[Tensor, "*n k"]:
        """Clamped logits z of chosen concepts.

        Args:
            hidden: final hidden states.
            ids: [... k] concept ids in 0..C-1, each position its own.

        Returns:
            z within ±15, at least fp32. Cost: O(n·k) rows read, at most a slab of them at a time.
        """
        with _full_precision(hidden):
            query = self.query(_flat(hidden).to(self.table.keys.dtype))
            return selected_logits(query, self.table, _flat(ids)).view(ids.shape)

    def sum_for(self, weights: Float[Tensor, "*n k"], ids: Int[Tensor, "*n k"]) -> Float[Tensor, "*n D"]:
        """Weighted sum of chosen embedding rows: Σ_k weights · E[ids].

        An edit of activations adds `sum_for(wanted - logits_for(hidden, ids).sigmoid(), ids)` to the features.

        Args:
            weights: any sign; rounded to the dtype of the head.
            ids: [... k] concept ids in 0..C-1; one that stands twice at a position counts twice.

        Returns:
            the sums, without the rows [... k D].
        """
        with _full_precision(weights):
            total = self.expand(selected_sum(_flat(weights), self.table, _flat(ids)))
        return total.view(*ids.shape[:-1], self.width)

    def dots_for(self, vectors: Float[Tensor, "*n D"], ids: Int[Tensor, "*n k"]) -> Float[Tensor, "*n k"]:
        """Products of chosen embedding rows with one vector for each position: E[ids] · v.

        With v a row of the LM head, this is how far the concept lifts that token.

        Args:
            vectors: one for each position.
            ids: [... k] concept ids in 0..C-1.

        Returns:
            the products, at least fp32, without the rows [... k D].
        """
        with _full_precision(vectors):
            lowered = self.lower(_flat(vectors))
            return selected_dots(lowered, self.table, _flat(ids)).view(ids.shape)

    def rows(self, ids: Int[Tensor, "..."]) -> Float[Tensor, "... D"]:
        """Embedding rows of chosen concepts.

        Args:
            ids: concept ids in 0..C-1.

        Returns:
            their rows of K (known) or of U = A·B (discovered).
        """
        return self.expand(self.table.values[ids])

    def embedding(self, rows: slice) -> Float[Tensor, "S D"]:
        """Embedding rows of a slab of concepts.

        Args:
            rows: concepts, within 0..C.

        Returns:
            their rows of K or U.
        """
        return self.expand(self.table.values[rows])

    def features(
        self, hidden: Float[Tensor, "... D"], top_k: int | None, *, learns_activations: bool = True
    ) -> HeadOutput:
        """The weighted sum of concept embeddings over the `top_k` best concepts, or over all.

        Args:
            hidden: final hidden states.
            top_k: concepts to sum and report; None sums all and reports none.
            learns_activations: whether the gradient reaches the activations; otherwise the embedding alone.

        Returns:
            features, ids and clamped logits. Neither forward nor backward holds [... C] where C > slab.
        """
        table = self.table
        flat = _flat(hidden).to(table.keys.dtype)
        with _full_precision(hidden):
            query = self.query(flat)
            if not learns_activations:
                query, table = query.detach(), replace(table, keys=table.keys.detach())
            total, ids, logits = self._sum(query, table, top_k)
            total = self.expand(total)
        lead = hidden.shape[:-1]
        return HeadOutput(
            total.reshape(*lead, self.width),
            ids.reshape(*lead, ids.shape[-1]),
            logits.reshape(*lead, ids.shape[-1]),
        )

    def forward(self, hidden: Float[Tensor, "... D"]) -> HeadOutput:
        """`features` with the selection of the configuration: sum the best k_f, report the best k.

        Args:
            hidden: final hidden states.

        Returns:
            features, ids and clamped logits.
        """
        output = self.features(hidden, self.selection.summed)
        reported = self.selection.reported
        if reported is not None and self.selection.summed is None:
            best = self.features(hidden, reported)
            return HeadOutput(output.features, best.ids, best.logits)
        if reported is None or output.ids.shape[-1] <= reported:
            return output
        logits, order = output.logits.topk(reported)
        return HeadOutput(output.features, output.ids.gather(-1, order), logits)

    def _sum(self, query: Tensor, table: Table, top_k: int | None) -> tuple[Tensor, Tensor, Tensor]:
        if top_k is None:
            return streamed_sum(query, table), *_nothing_reported(query)
        ids, found = best_concepts(query, table, top_k, self._rank)
        logits = selected_logits(query, table, ids, found)
        return selected_sum(logits.sigmoid(), table, ids), ids, logits

    def _rank(self, logits: Tensor) -> Tensor:
        return logits if self.selection.by_logit else logits.sigmoid()


class DenseHead(ConceptHead):
    """One full embedding row per concept."""

    def __init__(
        self, num_concepts: int, width: int, selection: Selection, slab: int, pad: int, use_attention: bool
    ) -> None:
        super().__init__(num_concepts, width, selection, slab)
        num_rows = _padded(num_concepts, pad)
        self.use_attention = use_attention
        self.concept_embedding = nn.Embedding(num_rows, width)
        if use_attention:
            self.concept_query_projection = nn.Linear(width, width, bias=False)
        else:
            self.concept_predictor = nn.Linear(width, num_rows, bias=False)

    def query(self, hidden: Float[Tensor, "... D"]) -> Float[Tensor, "... p"]:
        """The state itself, or its scaled projection.

        Args:
            hidden: final hidden states.

        Returns:
            what is multiplied with the keys.
        """
        if not self.use_attention:
            return hidden
        projected: Tensor = self.concept_query_projection(hidden)
        return projected.to(wide(projected.dtype)) / math.sqrt(self.width)

    @property
    def table(self) -> Table:
        """Keys are predictor rows, or the embedding under attention; values the embedding."""
        values = self.concept_embedding.weight
        keys = values if self.use_attention else self.concept_predictor.weight
        return Table(keys, values, self.num_concepts, self.slab)


class FactorizedHead(ConceptHead):
    """Embedding (and linear predictor) of low rank: E = coef · basisᵀ."""

    def __init__(
        self,
        num_concepts: int,
        width: int,
        rank: int,
        selection: Selection,
        slab: int,
        pad: int,
        use_attention: bool,
    ) -> None:
        super().__init__(num_concepts, width, selection, slab)
        num_rows = _padded(num_concepts, pad)
        self.use_attention = use_attention
        self.embedding_coef = nn.Embedding(num_rows, rank)
        self.embedding_basis = nn.Linear(rank, width, bias=False)
        if use_attention:
            self.concept_query_projection = nn.Linear(width, width, bias=False)
        else:
            self.predictor_down = nn.Linear(width, rank, bias=False)
            self.predictor_up = nn.Linear(rank, num_rows, bias=False)

    def query(self, hidden: Float[Tensor, "... D"]) -> Float[Tensor, "... p"]:
        """The state brought down to the rank.

        Args:
            hidden: final hidden states.

        Returns:
            what is multiplied with the keys.
        """
        if not self.use_attention:
            lowered: Tensor = self.predictor_down(hidden)
            # The release rounds the lowered state, and ranks logits in fp32: in bf16 many would be equal.
            return lowered.to(wide(lowered.dtype))
        projected: Tensor = self.concept_query_projection(hidden)
        down = projected @ self.embedding_basis.weight
        return down.to(wide(down.dtype)) / math.sqrt(self.width)

    @property
    def table(self) -> Table:
        """Keys are the upper factor of the predictor, or the coefficients under attention; values the latter."""
        values = self.embedding_coef.weight
        keys = values if self.use_attention else self.predictor_up.weight
        return Table(keys, values, self.num_concepts, self.slab)

    def expand(self, values: Float[Tensor, "... q"]) -> Float[Tensor, "... D"]:
        """From the rank to the model's width.

        Args:
            values: coefficients, or sums of them.

        Returns:
            values · basisᵀ.
        """
        expanded: Tensor = F.linear(values, self.embedding_basis.weight)
        return expanded

    def lower(self, vectors: Float[Tensor, "... D"]) -> Float[Tensor, "... q"]:
        """The transpose of `expand`, in at least fp32.

        Args:
            vectors: in the model's width.

        Returns:
            vectors · basis.
        """
        dtype = wide(torch.promote_types(vectors.dtype, self.embedding_basis.weight.dtype))
        return vectors.to(dtype) @ self.embedding_basis.weight.to(dtype)


class NoHead(ConceptHead):
    """Stands where a model has no such head: no concepts, features zero."""

    def __init__(self, width: int) -> None:
        super().__init__(0, width, Selection(None, None, by_logit=True), slab=1)

    def features(
        self, hidden: Float[Tensor, "... D"], top_k: int | None, *, learns_activations: bool = True
    ) -> HeadOutput:
        """Zeros.

        Args:
            hidden: final hidden states.
            top_k: without effect, there is nothing to choose from.
            learns_activations: without effect, there are none.

        Returns:
            zero features, no concepts.
        """
        return HeadOutput(torch.zeros_like(hidden), *_nothing_reported(hidden))


def known_head(config: ModelConfig) -> ConceptHead:
    """The head of the named concepts; never factorised.

    Args:
        config: shape of the model.

    Returns:
        a new head.
    """
    if not config.interpretable:
        return NoHead(config.width)
    reported = config.top_k_known
    summed = None if reported is None else config.top_k_known_features or reported
    selection = Selection(reported, summed, by_logit=config.top_k_on_logits)
    return DenseHead(
        config.num_concepts,
        config.width,
        selection,
        config.slab,
        config.pad_multiple,
        config.use_attention_known,
    )


def discovered_head(config: ModelConfig) -> ConceptHead:
    """The head of the discovered concepts (the release's unknown head).

    Args:
        config: shape of the model.

    Returns:
        a new head.
    """
    if not (config.interpretable and config.use_discovered and config.num_discovered):
        return NoHead(config.width)
    top_k = config.top_k_discovered if config.apply_top_k_to_discovered else None
    by_logit = config.factorize_discovered or config.top_k_on_logits
    selection = Selection(top_k or _REPORTED_OF_ALL, top_k, by_logit)
    num, width, slab, pad = config.num_discovered, config.width, config.slab, config.pad_multiple
    use_attention = config.use_attention_discovered
    if config.factorize_discovered:
        return FactorizedHead(num, width, config.discovered_rank, selection, slab, pad, use_attention)
    return DenseHead(num, width, selection, slab, pad, use_attention)


def _flat(x: Tensor) -> Tensor:
    return x.reshape(x.shape[:-1].numel(), x.shape[-1])


def _full_precision(hidden: Tensor) -> torch.autocast:
    # Sigmoids and rankings of nearly equal logits need fp32; the heads are a small part of a step.
    return torch.autocast(hidden.device.type, enabled=False)


def _nothing_reported(query: Tensor) -> tuple[Tensor, Tensor]:
    empty = query.new_empty((*query.shape[:-1], 0))
    return empty.long(), empty.to(wide(query.dtype))


def _padded(num_rows: int, multiple: int) -> int:
    return -(-num_rows // multiple) * multiple
