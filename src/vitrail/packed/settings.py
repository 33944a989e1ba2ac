"""Settings of packing, and of what training draws from a packed corpus."""

import math
from itertools import pairwise
from typing import Annotated, Literal

from pydantic import Field, model_validator

from vitrail.settings import Settings

Weight = Annotated[float, Field(ge=0)]


class PackSettings(Settings):
    """How sequences are packed."""

    length: int = Field(default=256, ge=8)
    """T, tokens of a sequence."""
    long_chunks: Literal["error", "drop"] = "error"
    """A chunk (or conversation) that does not fit a sequence: stop, or leave it out and list it in `dropped.jsonl`."""
    token_window: int = Field(default=4, ge=0)
    """Tokens on either side of a label's span that carry it as a token-level label, within the chunk."""
    group_by: Literal["none", "source", "domain"] = "none"
    """What documents of one sequence must share, so that a mixture can weight it; `none` mixes all."""
    documents: Literal["mixed", "one"] = "mixed"
    """Fill a sequence with chunks of several documents, or keep each sequence to one."""
    shard_chunks: int = Field(default=50_000, ge=1)
    """Chunks (or conversations) that are packed together into one shard; a worker holds one shard in memory."""


class MixtureStage(Settings):
    """Shares of the groups of a packed corpus, from one step of training on."""

    from_step: int = Field(default=0, ge=0)
    """First step that draws with these weights."""
    weights: dict[str, Weight]
    """Group → weight; the weights need not sum to one, and a group that is not named is left out."""

    @model_validator(mode="after")
    def _some_weight(self) -> "MixtureStage":
        total = sum(self.weights.values())
        if not total > 0:
            raise ValueError("no weight is above zero; give at least one group a weight")
        if total == math.inf:
            raise ValueError("the weights are too large to be added up; lower them")
        return self


class DataSettings(Settings):
    """What training draws from a packed corpus, and how."""

    mixture: tuple[MixtureStage, ...] = ()
    """Stages in the order of their steps, the first from step 0; empty: every sequence once an epoch."""
    workers: int = Field(default=0, ge=0)
    """Threads that prepare batches ahead of training; 0 prepares each when it is asked for."""

    @model_validator(mode="after")
    def _stages_in_order(self) -> "DataSettings":
        steps = [stage.from_step for stage in self.mixture]
        if steps and steps[0] != 0:
            raise ValueError(f"the first stage of the mixture starts at step {steps[0]}; let it start at 0")
        if any(later <= earlier for earlier, later in pairwise(steps)):
            raise ValueError(f"from_step of the mixture's stages is {steps}; let each be higher than the one before")
        return self
