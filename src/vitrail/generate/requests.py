"""Requests: what is checked before generation, and what one request carries through it."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from operator import index

import torch
from jaxtyping import Float
from torch import Tensor

from vitrail.errors import ConfigError, NonFiniteLogits, PromptTooLong
from vitrail.generate.policies import Moment
from vitrail.generate.sampling import Sampling, banned_ids, stop_ids
from vitrail.generate.trace import Commit, Ranked, Trace
from vitrail.model import ModelConfig
from vitrail.steer import SteerPlan

OnCommit = Callable[[Commit], None]


Ending = Callable[[Sequence[int], Sequence[int]], int | None]
"""Takes in absolute positions and their ids as they are filled in; gives where the text ends once it is known, such
as behind a stop string."""


@dataclass(frozen=True)
class Picked:
    """What one forward fills in for one request.

    Attributes:
        positions: absolute positions, in the order of commitment.
        tokens: their ids.
        logits: raw logits of these.
        logprobs: log-probabilities of these, in nats.
        alternatives: most likely ids of each with their log-probabilities, where they are asked for.
        known: most active known concepts of each with their activations, where they are asked for.
        discovered: the same of discovered concepts.
    """

    positions: Sequence[int]
    tokens: Sequence[int]
    logits: Sequence[float]
    logprobs: Sequence[float]
    alternatives: tuple[Ranked, ...] = ()
    known: tuple[Ranked, ...] = ()
    discovered: tuple[Ranked, ...] = ()


@dataclass(frozen=True)
class Window:
    """The part of a request's row that is computed until its next positions are filled in.

    Attributes:
        start: first position; whole attention blocks lie before it.
        stop: end of the row as the network sees it.
        fill_from: first position that may be filled in now.
        fill_to: end of those.
    """

    start: int
    stop: int
    fill_from: int
    fill_to: int


class Request:
    """One prompt while it is being continued."""

    def __init__(
        self,
        number: int,
        config: ModelConfig,
        prompt: Sequence[int],
        sampling: Sampling,
        plan: SteerPlan | None,
        ending: Ending | None = None,
    ) -> None:
        """Check a prompt against a model.

        Args:
            number: place of the request in its call.
            config: of the model.
            prompt: ids; may be empty for `cdlm`. Masked positions are gaps, to be filled in.
            sampling: how to sample.
            plan: steering, or None.
            ending: says where the text ends before its length is reached, or None.

        Raises:
            PromptTooLong: prompt and new tokens do not fit the context.
            ConfigError: the prompt holds what is no id of the vocabulary, or an option that this model or this
                prompt cannot have.
        """
        self.number, self.sampling, self.plan = number, sampling, plan
        self.prompt_ids = whole_ids(number, prompt)
        _check_prompt(number, self.prompt_ids, sampling, config)
        self.row = [*self.prompt_ids, *[config.mask_id] * sampling.max_new_tokens]
        """Prompt, and what is filled in; masked where nothing is yet."""
        self.stop = len(self.row)
        """Position where the text ends; a stop id moves it."""
        self.done = self.row.index(config.mask_id) // config.block * config.block
        """Positions before this are final, and are whole attention blocks."""
        self.commits: list[Commit] = []
        self.failure: NonFiniteLogits | None = None
        """Why the text could not be finished, or None."""
        self.moment = Moment(step=0, opened=0)
        self._config, self._ending = config, ending
        self._stop_ids = stop_ids(config, sampling)
        self._generator = torch.Generator().manual_seed(sampling.seed)

    @property
    def is_finished(self) -> bool:
        """Whether nothing before the end of the text is open."""
        return self._config.mask_id not in self.row[: self.stop]

    @property
    def window(self) -> Window:
        """What is computed next: the block that holds the next open position.

        On the grid of the prompt a region of new tokens may reach over two attention blocks, and the row ends with it.
        """
        block = self._config.block
        if self.sampling.grid == "attention":
            stop = min(self.done + block, self._config.max_length)
            return Window(self.done, stop, self.done, stop)
        offset = len(self.prompt_ids) % block
        fill_to = min(self.done + offset + block, len(self.row))
        stop = min(-(-fill_to // block) * block, len(self.row))
        return Window(self.done, stop, self.done + offset, fill_to)

    @property
    def open_places(self) -> list[int]:
        """Absolute positions of the window that are still to be filled in."""
        window, mask_id = self.window, self._config.mask_id
        places = range(window.fill_from, min(window.fill_to, self.stop))
        return [place for place in places if self.row[place] == mask_id]

    def uniform(self, count: int) -> Float[Tensor, " n"]:
        """The randomness of the next draws, from the request's own generator.

        Args:
            count: how many tokens are drawn.

        Returns:
            values in [0, 1).
        """
        return torch.rand(count, generator=self._generator, dtype=torch.float64)

    def begin(self, opened: int) -> None:
        """Enter a window.

        Args:
            opened: positions to be filled in there.
        """
        self.moment = Moment(step=0, opened=opened)

    def cut(self, position: int) -> None:
        """End the text at a position at the latest; the work on it stops at the next step.

        Args:
            position: absolute, where the text ends; 0 abandons the request.
        """
        self.stop = min(self.stop, position)

    def fail_at(self, position: int) -> None:
        """Abandon the request, since the model cannot say what comes at a position.

        Args:
            position: absolute.
        """
        self.failure = NonFiniteLogits(
            f"prompt {self.number}: the model's logits at position {position} are not finite "
            f"(step {len(self.commits)}); are its weights damaged?"
        )
        self.cut(0)

    def commit(self, picked: Picked, row_length: int) -> Commit:
        """Record what one forward filled in; a stop id among it moves the end of the text.

        Args:
            picked: positions, ids, and their scores.
            row_length: length of the row in that forward.

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
            alternatives=picked.alternatives,
            known=picked.known,
            discovered=picked.discovered,
        )
        self.commits.append(commit)
        self.moment = Moment(self.moment.step + 1, self.moment.opened)
        for pos, token in zip(picked.positions, picked.tokens, strict=True):
            self.row[pos] = token
            # A gap lies inside the text: nothing sampled there ends it.
            if token in self._stop_ids and pos >= len(self.prompt_ids):
                self.cut(pos + 1)
        end = None if self._ending is None else self._ending(picked.positions, picked.tokens)
        if end is not None:
            self.cut(end)
        return commit

    def trace(self, model_id: str) -> Trace:
        """The finished request.

        Args:
            model_id: artifact id of the model.

        Returns:
            its trace.
        """
        mask_id, start = self._config.mask_id, len(self.prompt_ids)
        gaps = [self.row[pos] for pos, token in enumerate(self.prompt_ids) if token == mask_id]
        return Trace(
            prompt_ids=self.prompt_ids,
            token_ids=(*gaps, *self.row[start : self.stop]),
            commits=tuple(self.commits),
            sampling=self.sampling,
            plan=self.plan,
            mask_id=mask_id,
            model_id=model_id,
        )


def whole_ids(number: int, prompt: Sequence[int]) -> tuple[int, ...]:
    """A prompt as plain whole numbers, whichever kind they came as.

    Args:
        number: place of the request in its call.
        prompt: ids.

    Returns:
        the ids.

    Raises:
        ConfigError: no ids.
    """
    try:
        return tuple(index(token) for token in prompt)
    except TypeError as error:
        raise ConfigError(f"prompt {number}: neither a text nor whole ids ({error}); give one of them") from error


def _check_prompt(number: int, prompt: tuple[int, ...], sampling: Sampling, config: ModelConfig) -> None:
    longest, num_new = config.max_length, sampling.max_new_tokens
    if len(prompt) > longest or (num_new and len(prompt) == longest):
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
        if not 0 <= token < config.vocab_size:
            raise ConfigError(
                f"prompt {number}: id {token} at position {pos} is outside the vocabulary of {config.vocab_size}; "
                "encode the text again"
            )
    if not num_new and config.mask_id not in prompt:
        raise ConfigError(f"prompt {number}: max_new_tokens is 0 and it has no gaps, so there is nothing to write")
    _check_options(number, prompt, sampling, config)


def _check_options(number: int, prompt: tuple[int, ...], sampling: Sampling, config: ModelConfig) -> None:
    """Refuse options that the model or the prompt leaves without effect."""
    has_gaps = config.mask_id in prompt
    for name in ("stop_ids", "banned_ids"):
        if odd := [token for token in getattr(sampling, name) if not 0 <= token < config.vocab_size]:
            raise ConfigError(f"{name}: id {odd[0]} is outside the vocabulary of {config.vocab_size}; leave it out")
    if len(banned_ids(config, sampling)) == config.vocab_size:
        raise ConfigError("banned_ids: they leave no id to sample; ban fewer")
    if sampling.stop_ids and not sampling.max_new_tokens:
        raise ConfigError("stop_ids end what follows the prompt, and max_new_tokens is 0; leave them out")
    if has_gaps and sampling.grid == "prompt":
        raise ConfigError(f"prompt {number}: gaps are filled on the attention grid; leave out grid: prompt")
    if config.backbone == "cdlm":
        return
    if has_gaps:
        raise ConfigError(f"prompt {number}: an ar model cannot fill gaps; use a cdlm model")
    if not prompt:
        raise ConfigError(f"prompt {number}: it is empty, and an ar model continues at least one token")
    for name in _BLOCK_OPTIONS:
        if getattr(sampling, name) != Sampling.model_fields[name].default:
            raise ConfigError(f"{name} has no effect on an ar model, which writes token by token; leave it out")


_BLOCK_OPTIONS = ("order", "tokens_per_step", "steps_per_block", "threshold", "factor", "guidance", "grid")
