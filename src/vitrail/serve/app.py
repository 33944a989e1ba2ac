"""The application: routes, errors, headers and the engine's life, put together for one model."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Any

from fastapi import FastAPI
from fastapi.staticfiles import StaticFiles
from starlette.responses import Response

from vitrail.api import LoadedModel
from vitrail.explain import Index
from vitrail.serve import concepts, explaining, models, openai_chat, openai_completions, pages, sources
from vitrail.serve.answers import Answers
from vitrail.serve.chat_schemas import ChatChunk
from vitrail.serve.documented import describe
from vitrail.serve.engine import Engine
from vitrail.serve.errors import add_handlers
from vitrail.serve.guard import Guard
from vitrail.serve.meters import Meters
from vitrail.serve.openai_schemas import CompletionAnswer
from vitrail.serve.service import Service
from vitrail.serve.settings import ServeSettings
from vitrail.steer.calibration import FILE_NAME

_ABOUT = """A language model whose every word is a sum of named concepts.

`/v1/completions` and `/v1/chat/completions` are OpenAI's; beside them stand `steer` (concepts up, down, off),
`commits` (the order of denoising) and `explain` (inputs, concepts, training passages of the answer).
All errors have OpenAI's format."""


def create_app(
    model: LoadedModel,
    *,
    index: Index | None = None,
    name: str = "model",
    report: Path | None = None,
    settings: ServeSettings | None = None,
) -> FastAPI:
    """The server of one model, as an ASGI application.

    Args:
        model: the model.
        index: its training passages; None leaves them out.
        name: what clients call it.
        report: a page of figures to serve beside it.
        settings: limits; None takes the defaults.

    Returns:
        the application; its engine starts and ends with it.

    Raises:
        ArtifactError: the index of another model, a model without a manifest, a damaged calibration.
    """
    if index is not None:
        index.require_model(model.model_id)
    settings = settings or ServeSettings()
    engine = Engine(model, max_batch=settings.max_batch, max_waiting=settings.max_waiting)
    service = Service(
        model=model,
        engine=engine,
        settings=settings,
        name=name,
        index=index,
        report=report,
        # Read now, as all of the model is: another one may lie in its directory tomorrow.
        calibration=model.calibration if (model.directory / FILE_NAME).is_file() else None,
        answers=Answers(settings.kept_answers),
        meters=Meters(engine),
    )
    app = _Described(
        title="vitrail",
        version=version("vitrail"),
        description=_ABOUT,
        docs_url=None,  # their pages load scripts from other hosts
        redoc_url=None,
        lifespan=_life,
    )
    app.state.service = service
    app.add_middleware(Guard, settings=settings, meters=service.meters)
    add_handlers(app, settings.retry_after_s)
    for part in (openai_completions, openai_chat, models, explaining, concepts, sources, pages):
        app.include_router(part.router)
    app.mount("/static", _Fresh(directory=pages.PAGE_DIR), name="static")
    return app


class _Fresh(StaticFiles):
    def file_response(self, *args: Any, **kwargs: Any) -> Response:
        """A file that the browser asks about again: another version may be served tomorrow."""
        response = super().file_response(*args, **kwargs)
        response.headers["Cache-Control"] = "no-cache"
        return response


class _Described(FastAPI):
    def openapi(self) -> dict[str, Any]:
        """The OpenAPI document, made once."""
        if self.openapi_schema is None:
            self.openapi_schema = describe(self, [CompletionAnswer, ChatChunk])
        return self.openapi_schema


@asynccontextmanager
async def _life(app: FastAPI) -> AsyncIterator[None]:
    engine: Engine = app.state.service.engine
    engine.start()
    yield
    engine.close()
