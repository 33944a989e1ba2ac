"""One chat server over HTTP, through the `openai` client, which repeats what is worth repeating.

Its client waits ever longer between repeats and minds `Retry-After`. What is left is sorted into three: faults that
no further question will be spared (a wrong key, no such model), a request that the server does not take, and a
server that gave nothing.
"""

import importlib
from collections.abc import Mapping
from typing import Any

from vitrail.atlas.llm.endpoint import Endpoint
from vitrail.atlas.llm.journal import Reply
from vitrail.errors import ConfigError

_HOPELESS = (401, 403, 404, 405)


class Rejected(Exception):
    """The server does not take this request."""


class Unanswered(Exception):
    """No reply after all repeats."""


class Client:
    """Asks one server; to be used within one event loop."""

    def __init__(self, endpoint: Endpoint):
        """Prepare the client; nothing is sent.

        Args:
            endpoint: the server, with its key.

        Raises:
            ConfigError: the package `openai` is not installed.
        """
        try:
            self._openai = importlib.import_module("openai")
        except ModuleNotFoundError as error:
            raise ConfigError(
                "asking a language model needs the package openai; run: pip install 'vitrail[llm]'"
            ) from error
        self._url = endpoint.url
        key = endpoint.api_key.get_secret_value() if endpoint.api_key else "none"
        self._client = self._openai.AsyncOpenAI(
            base_url=endpoint.url, api_key=key, timeout=endpoint.timeout_s, max_retries=endpoint.max_retries
        )

    async def complete(self, request: Mapping[str, Any]) -> Reply:
        """The answer to a request.

        Args:
            request: fields of `/v1/chat/completions`.

        Returns:
            the reply, whatever it says.

        Raises:
            ConfigError: wrong key, or no such address or model.
            Rejected: the server does not take this request.
            Unanswered: no reply after all repeats.
        """
        openai = self._openai
        try:
            answer = await self._client.chat.completions.create(**_known(request), extra_body=_others(request))
        except openai.APIStatusError as error:
            message = _said(error)
            if error.status_code in _HOPELESS:
                raise ConfigError(
                    f"{self._url}: the server answers {error.status_code} ({message}); "
                    "check the address, the key and the name of the model"
                ) from error
            if error.status_code < 500 and error.status_code not in (408, 409, 429):
                raise Rejected(f"{error.status_code}: {message}") from error
            raise Unanswered(f"{error.status_code}: {message}") from error
        except openai.APIError as error:
            raise Unanswered(_said(error)) from error
        except ValueError as error:  # a body that is no JSON at all
            raise Unanswered(f"the body is no JSON ({_short(error)})") from error
        choices = getattr(answer, "choices", None)
        if not choices:  # a proxy's page, or a body of another kind: no answer of the model
            raise Unanswered("the body has no choices")
        return _reply(choices[0], getattr(answer, "usage", None))

    async def close(self) -> None:
        """Close the connections."""
        await self._client.close()


_PLAIN = ("model", "messages", "temperature", "seed", "max_tokens", "response_format")


def _known(request: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in request.items() if name in _PLAIN}


def _others(request: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in request.items() if name not in _PLAIN}


def _reply(choice: Any, usage: Any) -> Reply:
    """The parts of a completion that matter; a server may leave out nearly anything."""
    message = getattr(choice, "message", None)
    return Reply(
        text=_text(message, "content"),
        finish=_text(choice, "finish_reason"),
        refusal=_text(message, "refusal"),
        tokens_in=_count(usage, "prompt_tokens"),
        tokens_out=_count(usage, "completion_tokens"),
    )


def _text(message: Any, field: str) -> str:
    value = getattr(message, field, None)
    return value if isinstance(value, str) else ""


def _count(usage: Any, field: str) -> int:
    value = getattr(usage, field, None)
    return value if isinstance(value, int) and value > 0 else 0


def _said(error: Exception) -> str:
    cause = error.__cause__
    text = _short(error)
    return f"{text} {_short(cause)}" if cause is not None and _short(cause) not in text else text


def _short(error: BaseException) -> str:
    return " ".join(str(error).split())[:200]
