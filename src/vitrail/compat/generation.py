"""The reference's generation: a full forward over prompt and all masked blocks for every step, without a cache.

Slow on purpose: it is the oracle of the fast engine, and what that one's speed is measured against. The grid
of generation blocks starts at the end of the prompt; prompts of a batch have equal length; an end-of-turn
token of one row ends all rows; stop tokens count at block ends only.

`B` rows, `P` prompt tokens, `N` new tokens, `T` = P + N, `V` vocabulary, `n` candidates.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor

from vitrail.compat.options import (
    ReferenceIds,
    ReferenceOptions,
    ReferenceSteering,
    read_ids,
    read_options,
    read_prompt,
    read_steering,
)
from vitrail.compat.sampling import choose_token
from vitrail.compat.steering import Injector, relu_suppression
from vitrail.errors import ConfigError
from vitrail.model import ConceptLM, DecomposedOutput
from vitrail.model.streaming import wide


@dataclass(frozen=True)
class Commit:
    """What one step filled in one row.

    Attributes:
        row: of the batch.
        step: denoising step, counted over all blocks and including steps that commit nothing.
        positions: filled, in the order of the choices.
        tokens: chosen there.
        target_logits: their logits before penalties and masks; with guidance, the guided ones.
    """

    row: int
    step: int
    positions: tuple[int, ...]
    tokens: tuple[int, ...]
    target_logits: tuple[float, ...]


OnCommit = Callable[[Commit, DecomposedOutput], None]
"""Called after each commit with the output of its forward; never with guidance or without concept heads."""


@dataclass(frozen=True, eq=False)
class ReferenceGeneration:
    """A finished run.

    Attributes:
        rows: [B T] prompts and what was generated; positions that were never filled hold the mask id.
        prompt_length: P.
        commits: in order.
        text_ids: what would be decoded of row 0: no mask and EOS ids, up to the first stop or end-of-turn token.
    """

    rows: Int[Tensor, "B T"]
    prompt_length: int
    commits: tuple[Commit, ...]
    text_ids: tuple[int, ...]

    @property
    def tokens(self) -> list[int]:
        """Row 0, prompt first."""
        row: list[int] = self.rows[0].tolist()
        return row


@runtime_checkable
class HasNetwork(Protocol):
    """What `vitrail.load` returns, as far as this room needs it."""

    @property
    def network(self) -> ConceptLM:
        """The weights."""
        ...


def generate_like_reference(model: ConceptLM | HasNetwork, run: Mapping[str, Any]) -> list[int]:
    """Repeat a recorded run of the reference.

    Args:
        model: a network, or what `vitrail.load` returns.
        run: one record of a `generation.json`: `prompt` (ids), `generation`, `steering`, `special_ids`; all
            but the first may be absent or null.

    Returns:
        the final row, prompt first, unfilled masks included.

    Raises:
        ConfigError: an option that the reference does not have or would refuse.
        ConceptNotFound: a steering concept that the model does not have.
    """
    network = model if isinstance(model, ConceptLM) else model.network
    generation = reference_generation(
        network, read_prompt(run), read_options(run), steering=read_steering(run), ids=read_ids(run, network.config)
    )
    return generation.tokens


@torch.no_grad()
def reference_generation(
    model: ConceptLM,
    prompt: Int[Tensor, "B P"],
    options: ReferenceOptions,
    *,
    steering: ReferenceSteering | None = None,
    ids: ReferenceIds | None = None,
    on_commit: OnCommit | None = None,
) -> ReferenceGeneration:
    """Generate as the reference does, and say what was committed when.

    Args:
        model: the network, `cdlm`.
        prompt: [B P] token ids; P may be 0.
        options: how to generate.
        steering: what to inject and to suppress, or None.
        ids: control tokens; None takes those of the configuration.
        on_commit: called after each commit, row by row.

    Returns:
        rows and commits.

    Raises:
        ConfigError: an autoregressive model, or options that the reference would refuse.
        ConceptNotFound: a steering concept that the model does not have.
    Cost: one forward over all T positions, heads and LM head included, per step.
    """
    if model.config.backbone != "cdlm":
        raise ConfigError("the reference generates with block-diffusion models only; this one is autoregressive")
    device = model.transformer.lm_head.weight.device
    ids = ids or ReferenceIds.of(model.config)
    x = F.pad(prompt.to(device), (0, options.max_new_tokens), value=ids.mask_id)
    run = _Run(
        model=model,
        options=options,
        ids=ids,
        on_commit=on_commit,
        injector=Injector.of(model, steering),
        suppression=relu_suppression(model, steering.relu_strengths) if steering else None,
        generator=None if options.seed is None else torch.Generator(device).manual_seed(options.seed),
        x=x,
        is_prompt=x != ids.mask_id,
        commits=[],
    )
    run.fill(prompt.shape[1])
    return ReferenceGeneration(
        rows=x,
        prompt_length=prompt.shape[1],
        commits=tuple(run.commits),
        text_ids=_text_ids(x[0, prompt.shape[1] :].tolist(), options.stop_tokens, ids),
    )


@dataclass(frozen=True, eq=False)
class _Run:
    """One call: what does not change, and the rows `x` and `commits`, which grow."""

    model: ConceptLM
    options: ReferenceOptions
    ids: ReferenceIds
    on_commit: OnCommit | None
    injector: Injector | None
    suppression: Float[Tensor, " V"] | None
    generator: torch.Generator | None
    x: Int[Tensor, "B T"]
    is_prompt: Bool[Tensor, "B T"]
    commits: list[Commit]

    def fill(self, start: int) -> None:
        """Fill block after block, until all are full or a token ends the generation.

        Args:
            start: end of the prompt.
        """
        block = self.model.config.block
        steps = self.options.steps_per_block(block)
        for number in range(self.options.max_new_tokens // block):
            region = slice(start + number * block, start + (number + 1) * block)
            num_masked = (self.x[:, region] == self.ids.mask_id).sum(1).tolist()
            for step in range(steps):
                # Early steps take what does not divide; with more steps than masks the last ones take nothing.
                counts = [count // steps + (step < count % steps) for count in num_masked]
                if self.is_ended_by_step(number * steps + step, region, counts):
                    return
            if any(bool((self.x[:, start : region.stop] == token).any()) for token in self.options.stop_tokens):
                return

    def is_ended_by_step(self, step: int, region: slice, counts: list[int]) -> bool:
        """One forward and the commits that follow from it.

        Args:
            step: its number.
            region: the generation block.
            counts: tokens to commit in each row.

        Returns:
            whether an end-of-turn token ended the generation.
        """
        output, logits = self.forward()
        for row, count in enumerate(counts):
            candidates = region.start + (self.x[row, region] == self.ids.mask_id).nonzero()[:, 0]
            if not count or not len(candidates):
                continue
            commit = self.commit(row, step, candidates, count, logits[row])
            self.commits.append(commit)
            if self.on_commit and not self.options.cfg_scale and self.model.config.interpretable:
                self.on_commit(commit, output)
            if self.ids.eot_id in commit.tokens:
                return True
        return False

    def forward(self) -> tuple[DecomposedOutput, Float[Tensor, "B T V"]]:
        """The forward over the whole rows, steered and guided.

        Returns:
            the output of the conditional stream, and the logits to choose from.
        """
        num_committed = self.options.max_new_tokens - int((self.x == self.ids.mask_id).sum())
        injector = self.injector if self.injector and self.injector.is_on(num_committed) else None
        output = self.stream(self.x, injector)
        if not self.options.cfg_scale:
            return output, output.logits
        blind = self.stream(self.x.masked_fill(self.is_prompt, self.ids.mask_id), injector)
        return output, guided(output.logits, blind.logits, self.options.cfg_scale)

    def stream(self, input_ids: Int[Tensor, "B T"], injector: Injector | None) -> DecomposedOutput:
        """One stream of the guidance, or the only one.

        Args:
            input_ids: [B T] input.
            injector: what to inject at its masks, or None.

        Returns:
            the output.
        """
        injection = injector and injector.at_masks(input_ids, self.ids.mask_id)
        output: DecomposedOutput = self.model(input_ids, injection=injection)
        return output

    def commit(
        self, row: int, step: int, candidates: Int[Tensor, " n"], count: int, logits: Float[Tensor, "T V"]
    ) -> Commit:
        """Fill the most confident candidates of one row.

        Args:
            row: of the batch.
            step: number of the step.
            candidates: masked positions of the block.
            count: how many to fill.
            logits: [T V] of the row.

        Returns:
            what was filled; fewer than `count` where an end-of-turn token came up.
        """
        raw = logits[candidates].to(wide(logits.dtype))
        penalised = self.penalised(raw, self.x[row])
        order = penalised.softmax(-1).amax(-1).topk(min(count, len(candidates))).indices
        positions, tokens, target_logits = [], [], []
        for choice, pos in zip(order.tolist(), candidates[order].tolist(), strict=True):
            token = choose_token(penalised[choice], self.options, self.generator)
            self.x[row, pos] = token
            positions.append(pos)
            tokens.append(token)
            target_logits.append(float(raw[choice, token]))
            if token == self.ids.eot_id:
                self.x[row, pos + 1 :] = self.ids.eos_id
                break
        return Commit(row, step, tuple(positions), tuple(tokens), tuple(target_logits))

    def penalised(self, logits: Float[Tensor, "n V"], row: Int[Tensor, " T"]) -> Float[Tensor, "n V"]:
        """Logits after ReLU mask, repetition penalty and banned tokens, in this order.

        Args:
            logits: [n V] of the candidates.
            row: [T] the row as it stands; every id in it is penalised once, mask and EOS included.

        Returns:
            [n V] what confidence and choice are made from.
        """
        if self.suppression is not None:
            logits = logits - self.suppression
        penalty = self.options.repetition_penalty
        if penalty != 1:
            seen = torch.unique(row)
            values = logits[:, seen]
            logits = logits.index_copy(1, seen, torch.where(values > 0, values / penalty, values * penalty))
        banned = torch.tensor([self.ids.eos_id, self.ids.mask_id, self.ids.pad_id], device=logits.device)
        return logits.index_fill(1, banned, -torch.inf)


def guided(conditional: Float[Tensor, "*n V"], blind: Float[Tensor, "*n V"], scale: float) -> Float[Tensor, "*n V"]:
    """Classifier-free guidance u + (s+1)(c − u).

    Args:
        conditional: c, logits with the prompt.
        blind: u, logits with the prompt masked.
        scale: s.

    Returns:
        guided logits.
    """
    return blind + (scale + 1) * (conditional - blind)


def _text_ids(tokens: list[int], stop_tokens: tuple[int, ...], ids: ReferenceIds) -> tuple[int, ...]:
    kept: list[int] = []
    for token in tokens:
        if token in (ids.mask_id, ids.eos_id):
            continue
        if token in stop_tokens or token == ids.eot_id:
            break
        kept.append(token)
    return tuple(kept)
