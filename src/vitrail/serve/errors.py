"""What goes wrong, said in OpenAI's format: status, type, parameter, code, and one line that helps.

    {"error": {"message": "...", "type": "invalid_request_error", "param": "temperature", "code": null}}

Validation keeps only the first fault. Nothing of the program's inside is shown: an unexpected error gives an
id, which stands in the log beside the traceback.
"""

import json
import logging
import secrets
from collections.abc import Mapping, Sequence
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import HTTPException, RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException as StarletteHTTPException

from vitrail.errors import ArtifactError, ConceptNotFound, NonFiniteLogits, PromptTooLong, RunFailed, VitrailError
from vitrail.serve.engine import Overloaded, Stopping

_TYPES = {404: "not_found_error", 405: "invalid_request_error", 429: "overloaded_error", 503: "overloaded_error"}
_SHOWN_CHARS = 60
_REASONS = {
    "int_parsing": "must be a whole number",
    "int_type": "must be a whole number",
    "int_from_float": "must be a whole number",
    "float_type": "must be a number",
    "string_type": "must be a text",
    "bool_type": "must be true or false",
    "list_type": "must be a list",
    "model_type": "must be an object",
    "model_attributes_type": "must be an object",
    "dict_type": "must be an object",
    "none_required": "must be null",
    "too_short": "must not be empty",
}
_log = logging.getLogger(__name__)


class ApiError(HTTPException):
    """A refusal, with everything that its answer says."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        """Say what is wrong.

        Args:
            status: HTTP status; the type of the error follows from it.
            message: one line: what, where, how to mend.
            param: the field of the request that is at fault.
            code: a fixed word for programs.
            headers: of the answer.
        """
        super().__init__(status, message, dict(headers or {}))
        self.message, self.param, self.code = message, param, code

    @property
    def body(self) -> dict[str, Any]:
        """The answer's JSON."""
        kind = _TYPES.get(self.status_code, "server_error" if self.status_code >= 500 else "invalid_request_error")
        return {"error": {"message": self.message, "type": kind, "param": self.param, "code": self.code}}


def refused(message: str, param: str | None = None, code: str | None = None) -> ApiError:
    """A value that is not accepted.

    Args:
        message: one line.
        param: the field.
        code: a fixed word for programs.

    Returns:
        the error, with status 400.
    """
    return ApiError(400, message, param=param, code=code)


def not_found(message: str, param: str | None = None, code: str | None = None) -> ApiError:
    """Something that does not exist here.

    Args:
        message: one line.
        param: the field.
        code: a fixed word for programs.

    Returns:
        the error, with status 404.
    """
    return ApiError(404, message, param=param, code=code)


def told(error: Exception, retry_after_s: int) -> ApiError:
    """What a client is told of any exception; our own mistakes go to the log, with an id that is told.

    Args:
        error: what was raised.
        retry_after_s: what a refused client is told to wait.

    Returns:
        the error to answer with.
    """
    found = as_api_error(error, retry_after_s)
    if found is None:
        error_id = secrets.token_hex(4)
        _log.error("mistake %s", error_id, exc_info=error)
        found = ApiError(500, f"the server made a mistake; its log has it under {error_id}", code="mistake")
    return found


def as_api_error(error: Exception, retry_after_s: int) -> ApiError | None:
    """What an exception of the project means to a client.

    Args:
        error: what was raised.
        retry_after_s: what a refused client is told to wait.

    Returns:
        the error to answer with; None for a mistake of our own.
    """
    match error:
        case ApiError():
            return error
        case Overloaded():
            wait = {"Retry-After": str(retry_after_s)}
            message = f"the server is busy: too many answers wait; try again in {retry_after_s} s"
            return ApiError(429, message, code="overloaded", headers=wait)
        case Stopping():
            return ApiError(503, "the server is shutting down; try again later", code="stopping")
        case PromptTooLong():
            return refused(str(error), "prompt", "context_length_exceeded")
        case ConceptNotFound():
            return not_found(str(error), "steer", "concept_not_found")
        case NonFiniteLogits():
            return ApiError(500, str(error), code="non_finite_logits")
        case ArtifactError() | RunFailed():  # files of the server: nothing that a client could mend
            return None
        case VitrailError():
            return refused(str(error))
        case RequestValidationError():
            return _from_validation(error.errors())
        case StarletteHTTPException():
            return _from_http(error)
    return None


def answer(error: ApiError) -> JSONResponse:
    """The HTTP answer of an error.

    Args:
        error: what to say.

    Returns:
        the response.
    """
    return JSONResponse(error.body, error.status_code, error.headers)


def add_handlers(app: FastAPI, retry_after_s: int) -> None:
    """Give every fault that a client can cause its answer.

    Args:
        app: the application.
        retry_after_s: what a refused client is told to wait.
    """

    async def handle(_request: Request, error: Exception) -> JSONResponse:
        return answer(told(error, retry_after_s))

    for kind in (StarletteHTTPException, RequestValidationError, VitrailError, Overloaded, Stopping):
        app.add_exception_handler(kind, handle)


def _from_http(error: StarletteHTTPException) -> ApiError:
    headers = dict(error.headers or {})
    match error.status_code:
        case 404:
            return ApiError(404, "no such address; /openapi.json lists them", code="not_found", headers=headers)
        case 405:
            message = "this address does not take that method" + _allowed(headers)
            return ApiError(405, message, code="method_not_allowed", headers=headers)
    return ApiError(error.status_code, str(error.detail), headers=headers)


def _allowed(headers: Mapping[str, str]) -> str:
    allowed = headers.get("Allow") or headers.get("allow")
    return f"; it takes {allowed}" if allowed else ""


def _from_validation(faults: Sequence[Mapping[str, Any]]) -> ApiError:
    fault = faults[0]
    where, *path = fault["loc"]
    field = _dotted(path)
    if fault["type"] == "unknown_field":
        name = ".".join(part for part in (field, fault["ctx"]["name"]) if part)
        return refused(str(fault["msg"]), name, "unknown_field")
    if fault["type"] == "missing" and not field:
        return refused("the request has no body; send a JSON object")
    message = f"{field or 'the request'}: {_reason(fault)}"
    if where == "path":
        return not_found(message, field or None, "not_found")
    return refused(message, field or None)


def _reason(fault: Mapping[str, Any]) -> str:
    if fault["type"] == "missing":
        return "missing; the request needs it"
    if fault["type"] == "not_supported":
        return str(fault["msg"])
    reason = _REASONS.get(fault["type"]) or str(fault["msg"]).removeprefix("Value error, ").replace(
        "Input should", "must"
    )
    reason = reason[:1].lower() + reason[1:]
    value = fault.get("input")
    if isinstance(value, str | int | float | bool | None):
        shown = json.dumps(value, ensure_ascii=False)
        reason += f", not {shown if len(shown) <= _SHOWN_CHARS else shown[:_SHOWN_CHARS] + '…'}"
    return reason


def _dotted(path: Sequence[int | str]) -> str:
    """`("steer", "a list", 0, "strength")` → `steer[0].strength`; words with a space name a branch of a union."""
    text = ""
    for part in path:
        if isinstance(part, int):
            text += f"[{part}]"
        elif " " not in part:
            text += f".{part}" if text else part
    return text
