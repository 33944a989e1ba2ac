"""Run the application on a port until the process is told to stop."""

import asyncio
import errno
import ipaddress
import logging
import os
import signal
import socket
import threading
from collections.abc import Callable

import uvicorn
from fastapi import FastAPI

from vitrail.errors import ConfigError
from vitrail.serve.settings import LOOPBACK_NAMES

GRACE_S = 2
"""Seconds that open connections get to end, once the engine has stopped."""

EXIT_S = 3.5
"""Seconds after which a shutdown ends the process, whatever still computes: there is nothing to be saved."""


def listen(host: str, port: int) -> socket.socket:
    """Take a port; clients that connect wait until `serve` answers them.

    Args:
        host: name or address of this machine.
        port: 0 takes a free one.

    Returns:
        the listening socket.

    Raises:
        ConfigError: the address cannot be bound.
    """
    name = host.strip("[]")
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(name, port, type=socket.SOCK_STREAM)[0]
        listener = socket.socket(family, kind, protocol)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen()
    except (OSError, UnicodeError) as error:
        reason = _reason(error)
        raise ConfigError(f"cannot listen on {host}:{port}: {reason}; try another --host or --port") from error
    return listener


def serve(app: FastAPI, listener: socket.socket, on_listening: Callable[[str], None]) -> None:
    """Serve until SIGINT or SIGTERM; only from the main thread, which signals go to.

    Args:
        app: of `create_app`.
        listener: of `listen`; closed at the end.
        on_listening: called with the address once the server answers.
    """
    url = _url(listener)
    config = uvicorn.Config(
        app, log_config=None, access_log=False, server_header=False, timeout_graceful_shutdown=GRACE_S, ws="none"
    )
    logging.getLogger("uvicorn").setLevel(logging.WARNING)
    server = _Server(config, app, lambda: on_listening(url))
    # uvicorn raises a signal again once it is done; both are then the ordinary end.
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        asyncio.run(server.serve(sockets=[listener]))
    except KeyboardInterrupt:
        pass
    finally:
        server.last_resort.cancel()
        signal.signal(signal.SIGTERM, before)
        listener.close()


def own_names(host: str, listener: socket.socket) -> tuple[str, ...]:
    """Host names that belong to a listener which only this machine can reach.

    Args:
        host: what `listen` was given.
        listener: what it gave.

    Returns:
        the names, as they stand in a Host header; none where other machines can reach it, too.
    """
    address = listener.getsockname()[0]
    if not ipaddress.ip_address(address).is_loopback:
        return ()
    given = (name.strip("[]").lower() for name in (host, address))
    return tuple(dict.fromkeys([*LOOPBACK_NAMES, *(f"[{name}]" if ":" in name else name for name in given)]))


class _Server(uvicorn.Server):
    """Says when it listens, and stops the engine first, so that open streams end."""

    def __init__(self, config: uvicorn.Config, app: FastAPI, on_listening: Callable[[], None]) -> None:
        super().__init__(config)
        self._served, self._on_listening = app, on_listening
        self.last_resort = threading.Timer(EXIT_S, os._exit, (0,))
        self.last_resort.daemon = True

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start, then tell the address."""
        await super().startup(sockets)
        if self.started:
            self._on_listening()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Stop the engine, then the connections."""
        self.last_resort.start()
        await asyncio.to_thread(self._served.state.service.engine.close)
        await super().shutdown(sockets)


def _reason(error: OSError | UnicodeError) -> str:
    if isinstance(error, UnicodeError):
        return "it is no name of a host"
    return "it is in use" if error.errno == errno.EADDRINUSE else str(error.strerror or error).lower()


def _url(listener: socket.socket) -> str:
    name, port = listener.getsockname()[:2]
    return f"http://[{name}]:{port}" if ":" in name else f"http://{name}:{port}"
