"""Concept heads: hidden state in, activations and their sum of embeddings out (§5.3).

    z_c = query(h) · keys_c        a_c = sigmoid(clamp(z_c, ±15))        features = expand(Σ a_c values_c)

A head differs from another only in these four: dense or factorised embedding, linear or attention predictor.
Names of parameters are those of the release. Tables are padded to `pad_multiple` rows; padding is never read.

Letters: C concepts, D width, r rank, k concepts kept per position, S concepts in a slab.
"""

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from vitrail.model.config import ModelConfig
from vitrail.model.streaming import (
    best_concepts,
    plain_selected_sum,
    plain_sum,
    selected_logits,
    selected_sum,
    streamed_sum,
    wide,
)


@dataclass(frozen=True, eq=False)
class HeadOutput:
    """What a head adds to the composed state, and through which concepts.

    Attributes:
        features: [... D] Σ a_c E_c over the selected concepts.
        ids: [... k] reported concepts, best first; k = 0 where the head has no top-k.
        logits: [... k] their logits, clamped to ±15, at least fp32.
    """

    features: Float[Tensor, "... D"]
    ids: Int[Tensor, "... k"]
    logits: Float[Tensor, "... k"]


@dataclass(frozen=True)
class Selection:
    """How many concepts a head reports and sums.

    Attributes:
        reported: k, concepts reported; None reports none and sums all.
        summed: k_f, concepts in the features.
        by_logit: rank by logit instead of sigmoid (they differ where fp32 sigmoids tie).
    """

    reported: int | None
    summed: int | None
    by_logit: bool


class ConceptHead(nn.Module):
    """What all heads share; subclasses give `query`, `keys`, `values` and `expand`."""

    def __init__(self, num_concepts: int, width: int, selection: Selection, slab: int) -> None:
        super().__init__()
        self.num_concepts, self.width, self.selection, self.slab = num_concepts, width, selection, slab

    def query(self, hidden: Float[Tensor, "... D"]) -> Float[Tensor, "... p"]:
        """What is multiplied with `keys`.

        Args:
            hidden: final hidden states.

        Returns:
            one vector of the width of `keys` per position.
        """
        raise NotImplementedError

    @property
    def keys(self) -> Float[Tensor, "C p"]:
        """One row of the predictor per concept."""
        raise NotImplementedError

    @property
    def values(self) -> Float[Tensor, "C q"]:
        """One row per concept, to be expanded to the width."""
        raise NotImplementedError

    def expand(self, values: Float[Tensor, "... q"]) -> Float[Tensor, "... D"]:
        """From the width of `values` to the model's.

        Args:
            values: rows of `values`, or sums of them.

        Returns:
            the same in the model's width.
        """
        return values

    def logits(self, hidden: Float[Tensor, "... D"], rows: slice) -> Float[Tensor, "... S"]:
        """Unclamped logits z of a slab of concepts.

        Args:
            hidden: final hidden states.
            rows: concepts, within 0..C.

        Returns:
            z, at least fp32.
        """
        dtype = wide(self.keys.dtype)
        with _full_precision(hidden):
            return self.query(hidden.to(self.keys.dtype)).to(dtype) @ self.keys[rows].to(dtype).T

    def rows(self, ids: Int[Tensor, "..."]) -> Float[Tensor, "... D"]:
        """Embedding rows of chosen concepts.

        Args:
            ids: concept ids in 0..C-1.

        Returns:
            their rows of K (known) or of U = A·B (discovered).
        """
        return self.expand(self.values[ids])

    def embedding(self, rows: slice) -> Float[Tensor, "S D"]:
        """Embedding rows of a slab of concepts.

        Args:
            rows: concepts, within 0..C.

        Returns:
            their rows of K or U.
        """
        return self.expand(self.values[rows])

    def features(self, hidden: Float[Tensor, "... D"], top_k: int | None) -> HeadOutput:
        """The weighted sum of concept embeddings over the `top_k` best concepts, or over all.

        Args:
            hidden: final hidden states.
            top_k: concepts to sum and report; None sums all and reports none.

        Returns:
            features, ids and clamped logits. Where C > slab, neither forward nor backward holds [... C].
        """
        flat = hidden.reshape(-1, hidden.shape[-1]).to(self.keys.dtype)
        with _full_precision(hidden):
            total, ids, logits = self._sum(self.query(flat), top_k)
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
        if reported is None or output.ids.shape[-1] <= reported:
            return output
        logits, order = output.logits.topk(reported)
        return HeadOutput(output.features, output.ids.gather(-1, order), logits)

    def _sum(self, query: Tensor, top_k: int | None) -> tuple[Tensor, Tensor, Tensor]:
        keys, values, is_small = self.keys, self.values, self.num_concepts <= self.slab
        if top_k is None:
            total = plain_sum(query, keys, values) if is_small else streamed_sum(query, keys, values, self.slab)
            return total, *_nothing_reported(query)
        if is_small:
            return plain_selected_sum(query, keys, values, top_k, self._rank)
        ids = best_concepts(query, keys, top_k, self.slab, self._rank)
        logits = selected_logits(query, keys, ids, self.slab)
        return selected_sum(logits.sigmoid(), values, ids), ids, logits

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
            what is multiplied with `keys`.
        """
        if not self.use_attention:
            return hidden
        projected: Tensor = self.concept_query_projection(hidden)
        return projected.to(wide(projected.dtype)) / math.sqrt(self.width)

    @property
    def keys(self) -> Float[Tensor, "C p"]:
        """Predictor rows, or the embedding under attention."""
        if self.use_attention:
            return self.values
        return self.concept_predictor.weight[: self.num_concepts]

    @property
    def values(self) -> Float[Tensor, "C q"]:
        """Embedding rows."""
        return self.concept_embedding.weight[: self.num_concepts]


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
            what is multiplied with `keys`.
        """
        if not self.use_attention:
            lowered: Tensor = self.predictor_down(hidden)
            return lowered
        projected: Tensor = self.concept_query_projection(hidden)
        down = projected @ self.embedding_basis.weight
        return down.to(wide(down.dtype)) / math.sqrt(self.width)

    @property
    def keys(self) -> Float[Tensor, "C p"]:
        """Upper factor of the predictor, or the coefficients under attention."""
        if self.use_attention:
            return self.values
        return self.predictor_up.weight[: self.num_concepts]

    @property
    def values(self) -> Float[Tensor, "C q"]:
        """Coefficients of the embedding."""
        return self.embedding_coef.weight[: self.num_concepts]

    def expand(self, values: Float[Tensor, "... q"]) -> Float[Tensor, "... D"]:
        """From the rank to the model's width.

        Args:
            values: coefficients, or sums of them.

        Returns:
            values · basisᵀ.
        """
        expanded: Tensor = F.linear(values, self.embedding_basis.weight)
        return expanded


class NoHead(ConceptHead):
    """Stands where a model has no such head: no concepts, features zero."""

    def __init__(self, width: int) -> None:
        super().__init__(0, width, Selection(None, None, by_logit=True), slab=1)

    def features(self, hidden: Float[Tensor, "... D"], top_k: int | None) -> HeadOutput:
        """Zeros.

        Args:
            hidden: final hidden states.
            top_k: without effect, there is nothing to choose from.

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
    selection = Selection(top_k, top_k, by_logit)
    num, width, slab, pad = config.num_discovered, config.width, config.slab, config.pad_multiple
    use_attention = config.use_attention_discovered
    if config.factorize_discovered:
        return FactorizedHead(num, width, config.discovered_rank, selection, slab, pad, use_attention)
    return DenseHead(num, width, selection, slab, pad, use_attention)


def _full_precision(hidden: Tensor) -> torch.autocast:
    # Sigmoids and rankings of nearly equal logits need fp32; the heads are a small part of a step.
    return torch.autocast(hidden.device.type, enabled=False)


def _nothing_reported(query: Tensor) -> tuple[Tensor, Tensor]:
    empty = query.new_empty((*query.shape[:-1], 0))
    return empty.long(), empty.to(wide(query.dtype))


def _padded(num_rows: int, multiple: int) -> int:
    return -(-num_rows // multiple) * multiple
