"""What all requests and answers share: strict bodies, unions that know their branch, steering, errors.

A union of kinds (a text or a list) looks at the value first, so that a fault in it is told of the branch that
was meant. Branches are named by words with a space in them, which messages leave out.
"""

import json
from collections.abc import Callable
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Discriminator, Field, Tag, model_validator
from pydantic_core import PydanticCustomError

from vitrail.errors import nearest
from vitrail.steer import Head, Steer

MAX_ITEMS, MAX_IDS = 4096, 2**17
"""Entries of any list, and of one of token ids: the first fault ends the check, so that none takes seconds."""

MAX_STRENGTH = 100
"""Beyond it the hidden states are nothing but the concept, and far beyond it no numbers any more."""

A_TEXT, A_LIST, A_SWITCH, AN_OBJECT = "a text", "a list", "true or false", "an object"


class Named(BaseModel):
    """Base of what clients send: unknown fields are refused with the nearest name."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, use_attribute_docstrings=True)

    @model_validator(mode="before")
    @classmethod
    def _known_fields(cls, values: Any) -> Any:
        unknown = [key for key in values if key not in cls.model_fields] if isinstance(values, dict) else []
        if unknown:
            name = unknown[0][:60]
            hint = nearest(name, cls.model_fields) or f"; known: {', '.join(cls.model_fields)}"
            fault = {"name": name, "shown": repr(name), "hint": hint}
            raise PydanticCustomError("unknown_field", "unknown field {shown}{hint}", fault)
        return values


class Asked(Named):
    """Base of JSON that clients send: values keep their type, so that `"1"` is no number."""

    model_config = ConfigDict(strict=True)


class Answered(BaseModel):
    """Base of what the server sends."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, use_attribute_docstrings=True)


def kind_of(value: Any) -> str | None:
    """The branch of a union that a value means.

    Args:
        value: plain value, or a model.

    Returns:
        the name of the branch; None for a value of no kind.
    """
    if isinstance(value, bool):
        return A_SWITCH
    if isinstance(value, str):
        return A_TEXT
    if isinstance(value, list):
        return A_LIST
    return AN_OBJECT if isinstance(value, dict | BaseModel) else None


def one_of(*kinds: str, of: Callable[[Any], str | None] = kind_of) -> Discriminator:
    """The discriminator of a union of kinds.

    Args:
        kinds: names of its branches.
        of: finds the branch of a value.

    Returns:
        what stands beside the union.
    """

    def choose(value: Any) -> str | None:
        kind = of(value)
        return kind if kind in kinds else None

    message = "must be " + " or ".join(kinds)
    return Discriminator(choose, custom_error_type="wrong_kind", custom_error_message=message)


def only(*neutral: Any) -> BeforeValidator:
    """A field of OpenAI's that is not supported: only values that change nothing pass.

    Args:
        neutral: those values, beside null.

    Returns:
        what stands beside the type.
    """
    hint = "".join(f" or send {json.dumps(value)}" for value in neutral[:1])

    def check(value: Any) -> Any:
        if value is None or any(type(value) is type(free) and value == free for free in neutral):
            return value
        raise PydanticCustomError("not_supported", "not supported here; leave it out{hint}", {"hint": hint})

    return BeforeValidator(check)


def is_absent(value: Any) -> bool:
    """Whether an optional field of an answer is left out.

    Args:
        value: of the field.

    Returns:
        whether it is None.
    """
    return value is None


class SteerPart(Asked):
    """One concept to turn up, down or off."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"concept": "exports", "strength": 1.0}]})

    concept: Annotated[
        Annotated[str, Field(max_length=256), Tag(A_TEXT)] | Annotated[int, Field(ge=0, le=2**31), Tag("an id")],
        one_of(A_TEXT, "an id", of=lambda value: "an id" if type(value) is int else kind_of(value)),
    ]
    """Name of the concept, or its id."""
    head: Head = "known"
    """Where it belongs: known concepts were named before training, discovered ones by it."""
    strength: Annotated[float, Field(ge=-MAX_STRENGTH, le=MAX_STRENGTH)] | None = None
    """In calibrated units: 1.0 moves the largest logit by the calibration's target on average; negative
    suppresses. 1.0 where it is left out."""
    off: bool = False
    """Suppress the concept completely; `strength` is then left out."""

    def spec(self) -> Steer:
        """The request as the rest of the package reads it.

        Returns:
            one concept of a steering request.
        """
        strength = 1.0 if self.strength is None else float(self.strength)
        return Steer(self.concept, strength, self.head, self.off)

    @model_validator(mode="after")
    def _one_strength(self) -> "SteerPart":
        if self.off and self.strength is not None:
            raise ValueError("has both off and a strength; leave one out")
        return self


SteerRequest = Annotated[
    Annotated[str, Field(max_length=65_536), Tag(A_TEXT)]
    | Annotated[list[SteerPart], Field(max_length=MAX_ITEMS, fail_fast=True), Tag(A_LIST)],
    one_of(A_TEXT, A_LIST),
]


class ExplainOptions(Asked):
    """How much an explanation says."""

    num_steps: Annotated[int, Field(ge=1, le=1024)] = 16
    """Nodes of the integral over inputs; the server allows up to its limit (64 by default)."""
    inputs_per_token: bool = True
    """Also rank the inputs of every single token."""
    top_inputs: Annotated[int, Field(ge=1, le=1000)] = 10
    """Input tokens listed."""
    top_concepts: Annotated[int, Field(ge=1, le=1000)] = 10
    """Concepts listed; the rest is summed apart."""
    top_sources: Annotated[int, Field(ge=1, le=1000)] = 5
    """Training passages listed."""


class ErrorBody(Answered):
    """What went wrong."""

    message: str
    """One line: what, where, how to mend."""
    type: Literal["invalid_request_error", "not_found_error", "overloaded_error", "server_error"]
    """Kind of error."""
    param: str | None
    """The field of the request that is at fault."""
    code: str | None
    """A fixed word for programs."""


class ErrorAnswer(Answered):
    """Every error, whatever its status."""

    error: ErrorBody
    """The error."""


class CommitPart(Answered):
    """Tokens that one denoising step filled in, most confident first."""

    step: int
    """Number of the step, from 0."""
    positions: list[int]
    """Places in the answer, from its first token."""
    tokens: list[str]
    """Their texts; U+FFFD for a part of a character, control tokens by name."""
    ids: list[int]
    """Their ids."""
    probs: list[float]
    """Their probabilities at temperature 1."""
