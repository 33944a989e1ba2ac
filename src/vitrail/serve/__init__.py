"""The server: OpenAI's API for one model, with explanations and steering beside it, and a page (design §7)."""

from vitrail.serve.app import create_app
from vitrail.serve.running import listen, own_names, serve
from vitrail.serve.settings import ServeSettings

__all__ = ["ServeSettings", "create_app", "listen", "own_names", "serve"]
