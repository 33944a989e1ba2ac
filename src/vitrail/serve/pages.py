"""What is not the API itself: health, counts, the page, the report."""

from pathlib import Path
from typing import Literal

from fastapi import APIRouter, Response
from fastapi.responses import FileResponse, PlainTextResponse

from vitrail.serve.documented import faults, raw
from vitrail.serve.errors import not_found
from vitrail.serve.schemas import Answered
from vitrail.serve.service import Here

PAGE_DIR = Path(__file__).parent / "page"

router = APIRouter()


class Health(Answered):
    """Whether the server answers."""

    status: Literal["ok"] = "ok"
    """Always `ok`."""


@router.get("/health", responses=faults(503), tags=["Server"], summary="Health")
async def health() -> Health:
    """Whether the server answers."""
    return Health()


@router.get(
    "/metrics",
    response_class=PlainTextResponse,
    responses={200: raw("text/plain", "Counts"), **faults()},
    tags=["Server"],
    summary="Counts for Prometheus",
)
async def metrics(service: Here) -> Response:
    """Requests, times, tokens, what waits."""
    return PlainTextResponse(service.meters.text(), media_type="text/plain; version=0.0.4")


@router.get(
    "/",
    response_class=Response,
    responses={200: raw("text/html", "The page"), **faults(404)},
    tags=["Server"],
    summary="The page",
)
async def page() -> Response:
    """The page that people look at."""
    return _file(PAGE_DIR / "index.html")


@router.get(
    "/report.html",
    response_class=Response,
    responses={200: raw("text/html", "The report"), **faults(404)},
    tags=["Server"],
    summary="The report",
)
async def report(service: Here) -> Response:
    """Figures of the model, where the server has them."""
    if service.report is None:
        raise not_found("this server has no report", code="not_found")
    return _file(service.report)


def _file(path: Path) -> Response:
    if not path.is_file():
        raise not_found(f"{path.name} is not there", code="not_found")
    return FileResponse(path, media_type="text/html", headers={"Cache-Control": "no-cache"})
