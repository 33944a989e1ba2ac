"""Requests: what is checked before generation, and what one request carries through it."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from vitrail.errors import ConfigError, PromptTooLong
from vitrail.generate.sampling import Sampling, stop_ids
from vitrail.generate.trace import Commit, Trace
from vitrail.model import ModelConfig
from vitrail.steer import SteerPlan

OnCommit = Callable[[Commit], None]


@dataclass(frozen=True)
class Picked:
    """What one forward fills in for one request.

    Attributes:
        positions: absolute positions, most confident first.
        tokens: their ids.
        logits: raw logits of these.
        logprobs: log-probabilities of these, in nats.
    """

    positions: Sequence[int]
    tokens: Sequence[int]
    logits: Sequence[float]
    logprobs: Sequence[float]


class Request:
    """One prompt while it is being continued."""

    def __init__(
        self, number: int, config: ModelConfig, prompt: Sequence[int], sampling: Sampling, plan: SteerPlan | None
    ) -> None:
        """Check a prompt against a model.

        Args:
            number: place of the request in its call.
            config: of the model.
            prompt: ids; may be empty.
            sampling: how to sample.
            plan: steering, or None.

        Raises:
            PromptTooLong: prompt and new tokens do not fit the context.
            ConfigError: the prompt holds an id outside the vocabulary, or the mask id.
        """
        self.number, self.sampling, self.plan = number, sampling, plan
        self.prompt_ids = tuple(prompt)
        _check_prompt(number, self.prompt_ids, sampling.max_new_tokens, config)
        self.ids = list(self.prompt_ids)
        """Prompt and finished blocks."""
        self.stop = len(prompt) + sampling.max_new_tokens
        """Position where the text ends; a stop id moves it."""
        self.commits: list[Commit] = []
        self._stop_ids = stop_ids(config, sampling)
        self._mask_id = config.mask_id
        self._generator = torch.Generator().manual_seed(sampling.seed)

    def uniform(self, count: int) -> Float[Tensor, " n"]:
        """The randomness of the next draws, from the request's own generator.

        Args:
            count: how many tokens are drawn.

        Returns:
            values in [0, 1).
        """
        return torch.rand(count, generator=self._generator, dtype=torch.float64)

    def block_start(self, block: int) -> int:
        """First position of the block that holds the next token.

        Args:
            block: tokens in a block.

        Returns:
            an absolute position on the grid.
        """
        return len(self.ids) // block * block

    def cut(self, position: int) -> None:
        """End the text at a position at the latest; the work on it stops at the next step.

        Args:
            position: absolute, where the text ends; 0 abandons the request.
        """
        self.stop = min(self.stop, position)

    def commit(
        self, picked: Picked, row_length: int, alternatives: Sequence[tuple[tuple[int, float], ...]] = ()
    ) -> Commit:
        """Record what one forward filled in; a stop id among it moves the end of the text.

        Args:
            picked: positions, ids, and their scores.
            row_length: length of the row in that forward.
            alternatives: the most likely ids of each position with their log-probabilities, if asked for.

        Returns:
            the record.
        """
        commit = Commit(
            step=len(self.commits),
            positions=tuple(picked.positions),
            tokens=tuple(picked.tokens),
            logits=tuple(picked.logits),
            logprobs=tuple(picked.logprobs),
            row_length=row_length,
            request=self.number,
            alternatives=tuple(alternatives),
        )
        self.commits.append(commit)
        for pos, token in zip(picked.positions, picked.tokens, strict=True):
            if token in self._stop_ids:
                self.cut(pos + 1)
        return commit

    def trace(self, model_id: str) -> Trace:
        """The finished request.

        Args:
            model_id: artifact id of the model.

        Returns:
            its trace.
        """
        return Trace(
            prompt_ids=self.prompt_ids,
            token_ids=tuple(self.ids[len(self.prompt_ids) : self.stop]),
            commits=tuple(self.commits),
            sampling=self.sampling,
            plan=self.plan,
            mask_id=self._mask_id,
            model_id=model_id,
        )


def _check_prompt(number: int, prompt: tuple[int, ...], num_new: int, config: ModelConfig) -> None:
    longest = config.max_length
    if len(prompt) >= longest:
        raise PromptTooLong(
            f"prompt {number}: {len(prompt)} tokens do not fit the context of {longest} tokens and leave room "
            f"for an answer; shorten it by at least {len(prompt) - longest + 1}"
        )
    if len(prompt) + num_new > longest:
        raise PromptTooLong(
            f"prompt {number}: {len(prompt)} tokens and {num_new} new ones exceed the context of {longest} tokens; "
            f"shorten the prompt or ask for at most {longest - len(prompt)} new tokens"
        )
    for pos, token in enumerate(prompt):
        if not 0 <= token < config.vocab_size or token == config.mask_id:
            reason = "the mask" if token == config.mask_id else f"outside the vocabulary of {config.vocab_size}"
            raise ConfigError(f"prompt {number}: id {token} at position {pos} is {reason}; encode the text again")
