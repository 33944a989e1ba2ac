"""Request bodies: strict JSON in UTF-8, refused in one clear line otherwise."""

import json
from collections.abc import Callable, Coroutine
from typing import Any, NoReturn

from fastapi import Request, Response
from fastapi.routing import APIRoute

from vitrail.serve.errors import ApiError, refused

_MAX_KEYS = 256


class JsonRequest(Request):
    """A request whose JSON is read strictly: no NaN, no huge numbers, no half characters, no key twice."""

    async def json(self) -> Any:
        """The body's value.

        Returns:
            plain values.

        Raises:
            ApiError: it is not JSON, or not text.
        """
        if not hasattr(self, "_json"):
            self._json = parse_json(await self.body())
        return self._json


class JsonRoute(APIRoute):
    """A route that reads its body as `JsonRequest` does."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """The handler that FastAPI calls.

        Returns:
            it, with a stricter reader before it.
        """
        handle = super().get_route_handler()

        async def strict(request: Request) -> Response:
            if request.method == "POST":
                _require_json(request)
            return await handle(JsonRequest(request.scope, request.receive))

        return strict


def parse_json(body: bytes) -> Any:
    """Read JSON, refusing what Python would let pass.

    Args:
        body: bytes of the request.

    Returns:
        plain values: finite numbers, and text that UTF-8 can carry.

    Raises:
        ApiError: in one line, what is wrong and where.
    """
    try:
        text = body.decode("utf-8")
        value = json.loads(text, parse_constant=_refuse_constant, parse_float=_finite, object_pairs_hook=_object)
        if "\\u" in text:
            json.dumps(value, ensure_ascii=False).encode("utf-8")
    except UnicodeDecodeError as error:
        raise refused(f"the body is not UTF-8 (byte {error.start}); send JSON in UTF-8") from None
    except json.JSONDecodeError as error:
        raise refused(f"the body is not JSON: {error.msg.lower()} (character {error.pos})") from None
    except UnicodeEncodeError:
        raise refused("the body holds half a character (a lone surrogate such as \\ud800); retype the text") from None
    except RecursionError:
        raise refused("the body is nested too deeply") from None
    except ValueError:  # Python's limit on the digits of a whole number
        raise refused("the body holds a number with too many digits") from None
    return value


def _require_json(request: Request) -> None:
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json":
        named = f"'{kind}'" if kind else "missing"
        raise ApiError(400, f"Content-Type is {named[:80]}; send JSON with Content-Type: application/json")


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    if len(pairs) > _MAX_KEYS:
        raise refused(f"the body holds an object with {len(pairs)} keys; no request needs more than {_MAX_KEYS}")
    value = dict(pairs)
    if len(value) < len(pairs):
        twice = next(key for place, (key, _) in enumerate(pairs) if key in dict(pairs[:place]))
        raise refused(f"the body names the key {json.dumps(twice[:60])} twice; leave one out")
    return value


def _refuse_constant(name: str) -> NoReturn:
    raise refused(f"the body holds {name}, which is not JSON; send finite numbers")


def _finite(digits: str) -> float:
    value = float(digits)
    if value in (float("inf"), float("-inf")):
        raise refused("the body holds a number that is too large; send finite numbers")
    return value
