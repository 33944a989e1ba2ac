"""What OpenAPI says of answers beside the successful JSON: errors, streams, pages."""

from collections.abc import Mapping, Sequence
from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from vitrail.serve.schemas import ErrorAnswer

Responses = dict[int | str, dict[str, Any]]

_FAULTS: Mapping[int, str] = {
    400: "A value that is not accepted, or a body that is not JSON",
    404: "A model, concept or answer that does not exist here",
    413: "A body beyond the limit",
    429: "Too many answers wait; `Retry-After` says when to try again",
    503: "The server is shutting down",
}


def faults(*statuses: int) -> Responses:
    """The errors that an address can answer with.

    Args:
        statuses: of the errors; 500 is always among them.

    Returns:
        what FastAPI calls `responses`.
    """
    described: Responses = {status: {"model": ErrorAnswer, "description": _FAULTS[status]} for status in statuses}
    if 429 in described:
        header = {"description": "Seconds", "schema": {"type": "integer"}}
        described[429]["headers"] = {"Retry-After": header}
    return described | {500: {"model": ErrorAnswer, "description": "A mistake of the server; its log has the id"}}


def event_stream(item: type[BaseModel]) -> dict[str, Any]:
    """An answer that may also come as server-sent events.

    Args:
        item: the JSON in the `data` of an event.

    Returns:
        the entry of `responses`.
    """
    told = [{"$ref": f"#/components/schemas/{model.__name__}"} for model in (item, ErrorAnswer)]
    data = {"type": "string", "contentMediaType": "application/json", "contentSchema": {"anyOf": told}}
    event = {"type": "object", "required": ["data"], "properties": {"data": {"anyOf": [{"const": "[DONE]"}, data]}}}
    return {
        "description": "The answer; with `stream: true` its events, the last of which is `[DONE]`",
        "content": {"text/event-stream": {"itemSchema": event}},
    }


def raw(media_type: str, description: str) -> dict[str, Any]:
    """An answer that is not JSON.

    Args:
        media_type: what it is.
        description: what it holds.

    Returns:
        the entry of `responses`.
    """
    return {"description": description, "content": {media_type: {"schema": {"type": "string"}}}}


def describe(app: FastAPI, streamed: Sequence[type[BaseModel]]) -> dict[str, Any]:
    """The OpenAPI document of the application.

    Args:
        app: the application.
        streamed: models that only the events of streams refer to.

    Returns:
        the document: FastAPI's, with the events of streams, and without the status 422 that is never used.
    """
    document = get_openapi(
        title=app.title, version=app.version, summary=app.summary, description=app.description, routes=app.routes
    )
    _, definitions = models_json_schema(
        [(model, "serialization") for model in streamed], ref_template="#/components/schemas/{model}"
    )
    schemas = document["components"]["schemas"]
    for name, schema in definitions["$defs"].items():
        schemas.setdefault(name, schema)
    for operations in document["paths"].values():
        for operation in operations.values():
            operation["responses"].pop("422", None)
    for name in ("HTTPValidationError", "ValidationError"):
        schemas.pop(name, None)
    return document
