"""What the server says of its model."""

from typing import Literal

from pydantic import Field

from vitrail.explain import Recall
from vitrail.serve.schemas import Answered


class CalibrationFacts(Answered):
    """What strength 1.0 means."""

    layer: int
    """Injected after this block and all later ones."""
    target: float
    """Logits by which strength 1.0 moves the largest one, on average."""


class IndexFacts(Answered):
    """The index of training passages."""

    num_passages: int
    """Passages in it."""
    recall: Recall | None
    """How often a passage's own states lead back to it."""


class Limits(Answered):
    """The largest that a request may ask for."""

    max_prompt_chars: int
    """Characters of a prompt."""
    max_new_tokens: int
    """Tokens of an answer; prompt and answer share the context."""
    max_stop: int
    """Stop texts."""
    max_stop_chars: int
    """Characters of a stop text."""
    max_n: int
    """Answers to each prompt."""
    max_prompts: int
    """Prompts of a request."""
    max_choices: int
    """Prompts times n."""
    max_messages: int
    """Messages of a conversation."""
    max_body_bytes: int
    """Bytes of a request."""
    max_steers: int
    """Concepts steered at once."""
    max_query_chars: int
    """Characters of a search for concepts."""
    max_page: int
    """Concepts in one answer."""
    max_explain_steps: int
    """Nodes of the integral over inputs."""
    max_ranked: int
    """Inputs, concepts or sources that an explanation lists."""
    kept_answers: int
    """Requests whose answers can be explained by their id."""


class ModelFacts(Answered):
    """The model behind the name."""

    model_id: str
    """Content hash of the weights."""
    context_tokens: int
    """Tokens of prompt and answer together."""
    block_tokens: int
    """Tokens of a diffusion block."""
    vocab_size: int
    """Token ids."""
    parameters: int
    """Parameters of the network."""
    num_known: int
    """Concepts named before training."""
    num_discovered: int
    """Concepts that training added."""
    dtype: str
    """Arithmetic of the weights."""
    calibration: CalibrationFacts | None
    """What strength 1.0 means; null where the model cannot be steered yet."""
    index: IndexFacts | None
    """Training passages, where the server has them."""
    report: bool
    """Whether /report.html is there."""
    limits: Limits
    """The largest that a request may ask for."""
    prompts: list[str]
    """Beginnings of held-out passages, to try."""


class Model(Answered):
    """A model."""

    id: str
    """Its name."""
    object: Literal["model"] = "model"
    """Always `model`."""
    created: int
    """When the server began, in seconds since 1970."""
    owned_by: Literal["vitrail"] = "vitrail"
    """Always `vitrail`."""
    vitrail: ModelFacts
    """Facts and limits."""


class ModelList(Answered):
    """The models of the server: one."""

    object: Literal["list"] = "list"
    """Always `list`."""
    data: list[Model] = Field()
    """The models."""
