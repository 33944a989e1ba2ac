"""POST /v1/explain: why an answer reads as it does, by its id or by repeating it."""

from typing import Annotated, Literal

from fastapi import APIRouter, Body, Request
from pydantic import Field, Tag

from vitrail.explain import Document
from vitrail.generate import Trace
from vitrail.serve.asking import submit
from vitrail.serve.body import JsonRoute
from vitrail.serve.documented import faults
from vitrail.serve.engine import Finished
from vitrail.serve.errors import refused
from vitrail.serve.gathering import while_connected
from vitrail.serve.openai_completions import completion_wanted
from vitrail.serve.openai_schemas import CompletionRequest
from vitrail.serve.schemas import ExplainOptions, one_of
from vitrail.serve.service import Here, Service

router = APIRouter(route_class=JsonRoute, tags=["Explanations"])


class ExplainAnswer(ExplainOptions):
    """Explain an answer that the server still keeps."""

    completion: Annotated[str, Field(max_length=64, examples=["cmpl-0123456789abcdef01234567"])]
    """Its id."""
    index: Annotated[int, Field(ge=0, le=2**31)] = 0
    """Number of the choice."""


class ExplainPrompt(CompletionRequest, ExplainOptions):
    """Write an answer (again, exactly, by its seed) and explain it: one prompt, n = 1.

    `commits`, `explain` and `logprobs` may stand there and change nothing.
    """

    stream: Literal[False] | None = False
    """An explanation comes whole: only false."""


Explained = Annotated[
    Annotated[ExplainAnswer, Tag("a completion")] | Annotated[ExplainPrompt, Tag("a prompt")],
    one_of(
        "a completion",
        "a prompt",
        of=lambda value: "a completion" if isinstance(value, dict) and "completion" in value else "a prompt",
    ),
]


@router.post("/v1/explain", responses=faults(400, 404, 413, 429, 503), summary="Explain an answer")
async def explain_answer(asked: Annotated[Explained, Body()], service: Here, request: Request) -> Document:
    """Inputs, concepts, training passages and certificate of one answer."""
    options = ExplainOptions(**{name: getattr(asked, name) for name in ExplainOptions.model_fields})
    service.check_explain(options)
    if isinstance(asked, ExplainAnswer):
        trace = service.answers.find(asked.completion, asked.index)
    else:
        trace = await while_connected(request, _write(service, asked))
    return await while_connected(request, service.explain(trace, options))


async def _write(service: Service, asked: ExplainPrompt) -> Trace:
    wanted = completion_wanted(service, asked)
    if len(wanted.jobs) > 1:
        raise refused("an explanation is of one answer: send one prompt and n = 1", "n")
    (ticket,) = await submit(service, wanted.jobs)
    try:
        async for event in ticket:
            if isinstance(event, Finished):
                return event.trace
    finally:
        ticket.cancel()
    raise AssertionError("an answer has an end")
