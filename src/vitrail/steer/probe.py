"""The probe: held-out masked positions at which the effect of an injection is measured.

Each row is a clean prefix of whole blocks and one block with about half of its tokens masked, as
generation meets it. The prefix runs once; each measurement then costs one block per row.

Letters: R rows, S positions of a row (prefix and block), P masked positions of all rows, c concepts, V vocabulary.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from vitrail.errors import ConfigError
from vitrail.model import BlockCache, ConceptLM, Injection, ModelConfig
from vitrail.steer.logits import deployed_logits

_TOKENS_PER_FORWARD = 1024


def make_probe(sequences: Int[Tensor, "N T"], config: ModelConfig, num_positions: int, seed: int) -> Int[Tensor, "R S"]:
    """Rows with exactly `num_positions` masked positions in their last block.

    Args:
        sequences: held-out tokens; rows are used again, with another mask, where they are too few.
        config: of the model that they are for.
        num_positions: masked positions wanted.
        seed: of the order of rows and of the masks.

    Returns:
        [R S] ids; S is a multiple of the block.

    Raises:
        ConfigError: no sequence holds a whole block with ordinary tokens.
    """
    num_blocks = sequences.shape[1] // config.block
    start = num_blocks // 2 * config.block
    rows = sequences.cpu()[:, : start + config.block]
    special = torch.tensor([config.pad_id, config.bos_id, config.eos_id, config.eoc_id, config.mask_id])
    can_mask = ~torch.isin(rows, special)
    can_mask[:, :start] = False
    usable = can_mask.any(1)
    if num_blocks == 0 or not usable.any():
        raise ConfigError(
            f"calibration: none of {len(sequences)} held-out sequences of {sequences.shape[1]} tokens holds a "
            f"block of {config.block} tokens of text; give more or longer held-out text"
        )
    rows, can_mask = rows[usable], can_mask[usable]
    generator = torch.Generator().manual_seed(seed)
    probe: list[Tensor] = []
    missing = num_positions
    while missing:
        for row in torch.randperm(len(rows), generator=generator).tolist():
            is_masked = can_mask[row] & (torch.rand(rows.shape[1], generator=generator) < 0.5)
            is_masked &= is_masked.cumsum(0) <= missing
            if is_masked.any():
                probe.append(rows[row].masked_fill(is_masked, config.mask_id))
                missing -= int(is_masked.sum())
            if not missing:
                break
    return torch.stack(probe)


@dataclass(frozen=True, eq=False)
class Meter:
    """Measures the largest logit change that injections cause at the masked positions of a probe.

    Attributes:
        model: the network.
        layer: injected after every block n >= layer.
        ids: [R b] last blocks of the probe.
        cache: the clean prefixes.
        plain: [P V] logits at the masked positions without injection.
    """

    model: ConceptLM
    layer: int
    ids: Int[Tensor, "R b"]
    cache: BlockCache
    plain: Float[Tensor, "P V"]

    @classmethod
    def of(cls, model: ConceptLM, probe: Int[Tensor, "R S"], layer: int) -> "Meter":
        """Run the prefixes and the plain forward.

        Args:
            model: the network.
            probe: rows of `make_probe`.
            layer: where injection begins.

        Returns:
            the meter.
        """
        probe = probe.to(model.transformer.lm_head.weight.device)
        start = probe.shape[1] - model.config.block
        cache, ids = BlockCache(), probe[:, start:]
        if start:
            model.extend_cache(probe[:, :start], cache)
        hidden = model.hidden(ids, cache=cache)
        return cls(model, layer, ids, cache, deployed_logits(model, hidden[ids == model.config.mask_id]))

    def change(self, vectors: Float[Tensor, "c D"]) -> Float[Tensor, " c"]:
        """Mean over masked positions of the largest absolute logit change, for each vector.

        Args:
            vectors: what is injected, already scaled.

        Returns:
            [c] logits, fp64.
        """
        size = max(1, _TOKENS_PER_FORWARD // self.ids.numel())
        rows = torch.arange(len(self.ids), device=self.ids.device)
        cache = self.cache.select(rows.repeat(size))
        changes = []
        for part in torch.split(vectors, size):
            if len(part) < size:
                cache = self.cache.select(rows.repeat(len(part)))
            changes.append(self._change(part, cache))
        return torch.cat(changes)

    def _change(self, vectors: Float[Tensor, "c D"], cache: BlockCache) -> Float[Tensor, " c"]:
        ids = self.ids.repeat(len(vectors), 1)
        is_masked = ids == self.model.config.mask_id
        injection = Injection(vectors.repeat_interleave(len(self.ids), dim=0), is_masked, self.layer)
        hidden = self.model.hidden(ids, injection=injection, cache=cache)
        logits = deployed_logits(self.model, hidden[is_masked]).view(len(vectors), *self.plain.shape)
        change: Tensor = logits.sub_(self.plain).abs_().amax(-1).double().mean(-1)
        return change
