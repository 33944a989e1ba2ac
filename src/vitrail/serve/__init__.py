"""The server: OpenAI's API for one model, with explanations and steering beside it, and a page (design §7)."""

from vitrail.serve.app import create_app
from vitrail.serve.running import is_loopback, listen, serve
from vitrail.serve.settings import ServeSettings

__all__ = ["ServeSettings", "create_app", "is_loopback", "listen", "serve"]
