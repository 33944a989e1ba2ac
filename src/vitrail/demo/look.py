"""Serves a finished demo on this machine alone, so that its report has an address to open."""

from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path


class _Quiet(SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the name is the base class's
        """Say nothing about requests: the terminal belongs to the tour."""


def report_server(out: Path) -> ThreadingHTTPServer:
    """A server of the demo's folder on a free port of the loopback address.

    Args:
        out: the demo's directory.

    Returns:
        the server, not yet serving; `report_address` names its page.
    """
    return ThreadingHTTPServer(("127.0.0.1", 0), partial(_Quiet, directory=str(out)))


def report_address(server: ThreadingHTTPServer) -> str:
    """Where the report is.

    Args:
        server: of `report_server`.

    Returns:
        its address.
    """
    return f"http://127.0.0.1:{server.server_port}/report.html"
