"""POST /v1/sources: training passages that resemble a text, as the model reads it."""

from fastapi import APIRouter, Request

from vitrail.errors import PromptTooLong, VitrailError
from vitrail.explain import Index, sources_part
from vitrail.serve.asking import at_most
from vitrail.serve.body import JsonRoute
from vitrail.serve.documented import faults
from vitrail.serve.errors import refused
from vitrail.serve.gathering import while_connected
from vitrail.serve.library_schemas import SourcesAnswer, SourcesRequest
from vitrail.serve.service import Here, Service

router = APIRouter(route_class=JsonRoute, tags=["Explanations"])


@router.post("/v1/sources", responses=faults(400, 413, 429, 503), summary="Find training passages")
async def find_sources(asked: SourcesRequest, service: Here, request: Request) -> SourcesAnswer:
    """Training passages near a text, with what they share word for word. Similarity is not influence."""
    index = service.index
    if index is None:
        raise refused("this server has no index of training passages; start it with --index DIR", code="no_index")
    at_most(len(asked.text), service.settings.max_prompt_chars, "text", "characters")
    at_most(asked.limit, service.settings.max_ranked, "limit")
    try:
        return await while_connected(request, service.engine.run(lambda: _find(service, index, asked)))
    except PromptTooLong as error:
        raise refused(str(error), "text", "context_length_exceeded") from error
    except VitrailError as error:
        raise refused(str(error), "text") from error


def _find(service: Service, index: Index, asked: SourcesRequest) -> SourcesAnswer:
    hits = service.model.similar(asked.text, index, asked.limit)
    sources = sources_part([hits], [service.model.tokenizer.encode(asked.text)], service.model.tokenizer)
    return SourcesAnswer(note=sources.note, hits=sources.chunks[0].hits)
