"""The model as `transformers` knows models: what `AutoModelForCausalLM.from_pretrained(DIR, ...)` gives.

`vitrail convert SRC DST --to huggingface` writes such a directory: weights under their released names, and a few
lines of Python that import this module. Logits are those of `vitrail.load`; `transformers`' own `generate` is not
offered, because it writes from left to right what a diffusion model fills in by confidence.
"""

import warnings
from typing import Any

import torch
from torch import Tensor, nn

from vitrail.model import ConceptLM, DecomposedOutput, ModelConfig

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # of what transformers imports on its own, where it is installed
    from transformers import PreTrainedConfig, PreTrainedModel
    from transformers.modeling_outputs import CausalLMOutput


class VitrailConfig(PreTrainedConfig):  # type: ignore[no-untyped-call]
    """The keys of a released `config.json`, flat, as `transformers` carries them."""

    model_type = "vitrail"

    def __init__(self, **keys: Any) -> None:
        """Hold a configuration.

        Args:
            keys: released keys, and any of `transformers`.
        """
        keys.setdefault("tie_word_embeddings", keys.get("weight_sharing", True))
        super().__init__(**keys)

    @property
    def shape(self) -> ModelConfig:
        """Shape and flags of the network."""
        keys = ModelConfig().to_released()
        return ModelConfig.from_released({key: value for key, value in self.to_dict().items() if key in keys})


class VitrailForCausalLM(PreTrainedModel):  # type: ignore[no-untyped-call]
    """A `ConceptLM` under its released names."""

    config_class = VitrailConfig
    base_model_prefix = ""
    main_input_name = "input_ids"
    _no_split_modules = ["Block"]  # noqa: RUF012 (their way)
    _supports_sdpa = True
    _tied_weights_keys = {"transformer.lm_head.weight": "transformer.tok_emb.weight"}  # noqa: RUF012

    def __init__(self, config: VitrailConfig) -> None:
        """Allocate the model.

        Args:
            config: its configuration.
        """
        super().__init__(config)
        network = ConceptLM(config.shape)
        self.transformer, self.known_head, self.unknown_head = (
            network.transformer,
            network.known_head,
            network.unknown_head,
        )
        # Beside the registered modules, or every tensor would have a second name.
        self.__dict__["_network"] = network
        self.post_init()  # type: ignore[no-untyped-call]

    @property
    def network(self) -> ConceptLM:
        """The same weights as vitrail's own model."""
        network: ConceptLM = self.__dict__["_network"]
        return network

    def forward(
        self, input_ids: Tensor, return_dict: bool | None = None, **unused: Any
    ) -> CausalLMOutput | tuple[Tensor]:
        """Logits at every position: of the token there (`cdlm`), or of the next (`ar`).

        Args:
            input_ids: [B T] tokens; masked positions hold the mask id.
            return_dict: False gives a tuple.
            unused: an attention mask of ones, and other arguments at the values that change nothing.

        Returns:
            [B T V] logits.

        Raises:
            ValueError: an argument that would have no effect.
        """
        mask = unused.pop("attention_mask", None)
        if mask is not None and not bool(mask.all()):
            raise ValueError("attention_mask hides positions, and this model has no padding; give rows of equal length")
        if given := [name for name, value in unused.items() if value is not None and value is not False]:
            raise ValueError(f"'{given[0]}' has no effect here; leave it out")
        logits = self.decompose(input_ids).logits
        return (logits,) if return_dict is False else CausalLMOutput(logits=logits)

    def decompose(self, input_ids: Tensor) -> DecomposedOutput:
        """Logits and the parts that sum to them (§5.3).

        Args:
            input_ids: [B T] tokens.

        Returns:
            the decomposition.
        """
        output: DecomposedOutput = self.network(input_ids)
        return output

    def get_input_embeddings(self) -> nn.Module:
        """The embedding of tokens."""
        return self.transformer.tok_emb

    def set_input_embeddings(self, value: nn.Module) -> None:
        """Put another embedding of tokens in its place.

        Args:
            value: the embedding.
        """
        assert isinstance(value, nn.Embedding)
        self.transformer.tok_emb = value

    def get_output_embeddings(self) -> nn.Module:
        """The LM head."""
        return self.transformer.lm_head

    def set_output_embeddings(self, new_embeddings: nn.Module) -> None:
        """Put another LM head in its place.

        Args:
            new_embeddings: the LM head.
        """
        assert isinstance(new_embeddings, nn.Linear)
        self.transformer.lm_head = new_embeddings

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        """Leave torch's own defaults; weights come from the checkpoint."""
