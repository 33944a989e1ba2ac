"""What surrounds every request: host check, size of the body, security headers, an id, counts, and a last net.

Plain ASGI, so that streams pass through untouched.
"""

import secrets
import time
from collections.abc import Mapping

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from vitrail.serve.errors import ApiError, answer, told
from vitrail.serve.meters import Meters
from vitrail.serve.settings import ServeSettings

PAGE_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
REPORT_POLICY = (
    "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data:; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
"""The report is one file that carries its own style and script."""

_HEADERS: Mapping[str, str] = {
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}


class Guard:
    """The outermost layer of the application."""

    def __init__(self, app: ASGIApp, settings: ServeSettings, meters: Meters) -> None:
        """Stand around an application.

        Args:
            app: the application.
            settings: limits.
            meters: counts.
        """
        self._app, self._settings, self._meters = app, settings, meters

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request.

        Args:
            scope: of the request.
            receive: gives its body.
            send: takes the answer.
        """
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        if scope["method"] == "HEAD":
            scope = {**scope, "method": "GET"}  # the server beneath, whose scope is as it was, leaves the body out
        exchange = _Exchange(scope, receive, send, self._settings.max_body_bytes)
        try:
            self._check(Headers(scope=scope))
            await self._app(scope, exchange.receive, exchange.send)
        except Exception as error:
            if exchange.status:
                raise  # half an answer cannot be taken back; the connection breaks
            await answer(told(error, self._settings.retry_after_s))(scope, receive, exchange.send)
        finally:
            path = getattr(scope.get("route"), "path", "other")
            self._meters.count_request(path, exchange.status, time.monotonic() - exchange.started)

    def _check(self, headers: Headers) -> None:
        allowed = self._settings.allowed_hosts
        host = headers.get("host", "")
        if allowed and _without_port(host).lower() not in allowed:
            raise ApiError(
                400,
                f"Host '{host[:80]}' is not served here; this server answers to {', '.join(allowed)}",
                code="wrong_host",
            )
        length = headers.get("content-length", "0")
        if not length.isdecimal():
            raise ApiError(400, "Content-Length is not a number")
        if len(length) > 18 or int(length) > self._settings.max_body_bytes:
            raise _too_large(self._settings.max_body_bytes)


class _Exchange:
    """One request: counts the bytes of its body, adds headers to its answer."""

    def __init__(self, scope: Scope, receive: Receive, send: Send, limit: int) -> None:
        self.status = 0
        self.started = time.monotonic()
        self._id = secrets.token_hex(8)
        self._policy = REPORT_POLICY if scope["path"] == "/report.html" else PAGE_POLICY
        self._receive, self._send, self._limit, self._size = receive, send, limit, 0

    async def receive(self) -> Message:
        message = await self._receive()
        if message["type"] == "http.request":
            self._size += len(message.get("body", b""))
            if self._size > self._limit:
                raise _too_large(self._limit)
        return message

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            headers = MutableHeaders(scope=message)
            headers["Content-Security-Policy"] = self._policy
            headers["X-Request-Id"] = self._id
            for name, value in _HEADERS.items():
                headers[name] = value
        await self._send(message)


def _too_large(limit: int) -> ApiError:
    # The rest of the body is not read, so the connection is of no use afterwards.
    message = f"the body is larger than the {limit} bytes that this server allows"
    return ApiError(413, message, code="body_too_large", headers={"Connection": "close"})


def _without_port(host: str) -> str:
    name, colon, port = host.rpartition(":")
    return name if colon and port.isdecimal() else host
