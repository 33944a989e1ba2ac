"""The language model whose every logit is a sum of concepts (§5.3).

    h = backbone(x)        k̂ = Σ a_c K_c        û = Σ a'_j U_j        ε = h − (k̂ + û)
    h̄ = k̂ + û + ρ ε        logits = W h̄

Letters: B batch, T tokens, D width, V vocabulary, k and m known and discovered concepts kept per token.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from vitrail.model.attention import AttentionKernel, SdpaKernel
from vitrail.model.backbone import Backbone, Injection
from vitrail.model.cache import BlockCache
from vitrail.model.config import ModelConfig
from vitrail.model.heads import discovered_head, known_head


@dataclass(frozen=True, eq=False)
class DecomposedOutput:
    """A forward, taken apart: `composed = known + discovered + residual`, up to rounding.

    Attributes:
        logits: [B T V] logits, `composed` through the LM head; V = 0 where they were not asked for.
        hidden: [B T D] h, after the final norm.
        known: [B T D] k̂, sum of the known concepts.
        discovered: [B T D] û, sum of the discovered concepts.
        residual: [B T D] what entered `composed` of h − (k̂ + û): ρ times it, or zero where the
            configuration leaves it out.
        composed: [B T D] h̄, what the LM head reads.
        known_ids: [B T k] known concepts reported, best first.
        known_logits: [B T k] their logits, clamped to ±15.
        discovered_ids: [B T m] discovered concepts reported, best first.
        discovered_logits: [B T m] their logits, clamped to ±15.
    """

    logits: Float[Tensor, "B T V"]
    hidden: Float[Tensor, "B T D"]
    known: Float[Tensor, "B T D"]
    discovered: Float[Tensor, "B T D"]
    residual: Float[Tensor, "B T D"]
    composed: Float[Tensor, "B T D"]
    known_ids: Int[Tensor, "B T k"]
    known_logits: Float[Tensor, "B T k"]
    discovered_ids: Int[Tensor, "B T m"]
    discovered_logits: Float[Tensor, "B T m"]

    @property
    def unexplained(self) -> Float[Tensor, "B T D"]:
        """ε = h − (k̂ + û), whether or not it entered `composed`."""
        return self.hidden - (self.known + self.discovered)


class ConceptLM(nn.Module):
    """Backbone, known head, discovered head; names of modules are the released tensor names."""

    def __init__(self, config: ModelConfig, kernel: AttentionKernel | None = None) -> None:
        """Allocate the model; weights are those of torch's defaults until `init_model` or `load_model`.

        Args:
            config: shape and flags.
            kernel: how attention is computed; scaled dot product by default.
        """
        super().__init__()
        self.config = config
        self.transformer = Backbone(config, kernel or SdpaKernel())
        self.known_head = known_head(config)
        self.unknown_head = discovered_head(config)

    def forward(
        self,
        input_ids: Int[Tensor, "B T"],
        *,
        residual_scale: float | Float[Tensor, "B T"] = 1.0,
        injection: Injection | None = None,
        cache: BlockCache | None = None,
    ) -> DecomposedOutput:
        """Logits with their decomposition.

        Args:
            input_ids: [B T] tokens; may hold the mask id anywhere.
            residual_scale: ρ, for all positions or one each.
            injection: what to add to the residual stream, or None.
            cache: finished positions before these, or None.

        Returns:
            logits and parts. `cdlm`: logits at i predict token i; `ar`: token i+1.
        """
        hidden = self.hidden(input_ids, injection=injection, cache=cache)
        return self.decompose(hidden, residual_scale=residual_scale)

    def hidden(
        self,
        input_ids: Int[Tensor, "B T"] | None = None,
        *,
        embeddings: Float[Tensor, "B T D"] | None = None,
        injection: Injection | None = None,
        cache: BlockCache | None = None,
    ) -> Float[Tensor, "B T D"]:
        """Final hidden states h of tokens, or of input embeddings.

        Args:
            input_ids: [B T] tokens, or None.
            embeddings: [B T D] input embeddings in place of tokens, or None.
            injection: what to add to the residual stream, or None.
            cache: finished positions before these, or None; it is read, not extended.

        Returns:
            [B T D] states after the final norm.

        Raises:
            ValueError: both or neither of tokens and embeddings are given.
        """
        if embeddings is None and input_ids is not None:
            embeddings = self.embed(input_ids)
        elif embeddings is None or input_ids is not None:
            raise ValueError("give either input_ids or embeddings")
        hidden: Tensor = self.transformer(embeddings, injection, cache)
        return hidden

    def decompose(
        self,
        hidden: Float[Tensor, "B T D"],
        *,
        residual_scale: float | Float[Tensor, "B T"] = 1.0,
        with_logits: bool = True,
    ) -> DecomposedOutput:
        """Run the heads and compose.

        The discovered head is not cut from the gradient here, so that gradients are those of the function
        computed; training detaches what the paper detaches.

        Args:
            hidden: [B T D] final hidden states.
            residual_scale: ρ, for all positions or one each; at 1 the composed state equals `hidden`.
            with_logits: whether to run the LM head.

        Returns:
            logits and parts.
        """
        known, discovered = self.known_head(hidden), self.unknown_head(hidden)
        if self.has_residual:
            scale = residual_scale[..., None] if isinstance(residual_scale, Tensor) else residual_scale
            residual = scale * (hidden - (discovered.features + known.features))
        else:
            residual = torch.zeros_like(hidden)
        # The order of these additions is that of the release: it matters in bf16.
        composed = (discovered.features + residual) + known.features
        logits = self.lm_logits(composed) if with_logits else composed[..., :0]
        return DecomposedOutput(
            logits=logits,
            hidden=hidden,
            known=known.features,
            discovered=discovered.features,
            residual=residual,
            composed=composed,
            known_ids=known.ids,
            known_logits=known.logits,
            discovered_ids=discovered.ids,
            discovered_logits=discovered.logits,
        )

    @property
    def has_residual(self) -> bool:
        """Whether ε enters the logits: by configuration, and always without a discovered head."""
        return self.config.use_residual or self.unknown_head.num_concepts == 0

    def lm_logits(self, composed: Float[Tensor, "*n D"]) -> Float[Tensor, "*n V"]:
        """Logits of composed states.

        Args:
            composed: states.

        Returns:
            states through the LM head.
        """
        logits: Tensor = self.transformer.lm_head(composed)
        return logits

    def embed(self, input_ids: Int[Tensor, "B T"]) -> Float[Tensor, "B T D"]:
        """Input embeddings of tokens.

        Args:
            input_ids: [B T] tokens.

        Returns:
            [B T D] rows of the embedding.
        """
        embeddings: Tensor = self.transformer.tok_emb(input_ids)
        return embeddings

    def recompute_layers(self) -> None:
        """Trade time for memory in training (see `Backbone.recompute_layers`): the same function."""
        self.transformer.recompute_layers()

    def compile_layers(self) -> None:
        """Compile the layers of the backbone (see `Backbone.compile_layers`): the same function, up to rounding."""
        self.transformer.compile_layers()

    @torch.no_grad()
    def extend_cache(
        self, input_ids: Int[Tensor, "B T"], cache: BlockCache, injection: Injection | None = None
    ) -> Float[Tensor, "B T D"]:
        """Run finished positions once and append their keys and values.

        Args:
            input_ids: [B T] tokens that follow the cache; whole blocks under `cdlm`, any number under `ar`.
            cache: extended in place.
            injection: what to add to the residual stream, or None; what is cached is then under its influence.

        Returns:
            [B T D] their hidden states; under `ar` the last ones give the next token.

        Raises:
            ValueError: a `cdlm` block would stay incomplete, so that its states could still change.
        """
        stop = cache.length + input_ids.shape[1]
        if self.config.backbone == "cdlm" and stop % self.config.block:
            raise ValueError(f"a cache holds whole blocks of {self.config.block} tokens, got {stop} positions")
        hidden = self.hidden(input_ids, injection=injection, cache=cache)
        cache.finish(input_ids.shape[1])
        return hidden
