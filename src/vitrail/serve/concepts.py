"""GET /v1/concepts: search the library, and open a concept."""

from dataclasses import asdict
from typing import Annotated

from fastapi import APIRouter, Query

from vitrail.atlas import Card
from vitrail.errors import ConceptNotFound
from vitrail.serve.asking import at_most
from vitrail.serve.documented import faults
from vitrail.serve.errors import not_found
from vitrail.serve.geometry import neighbours, top_tokens
from vitrail.serve.library_schemas import (
    ConceptCard,
    ConceptDetail,
    ConceptList,
    ConceptQuery,
    ConceptScale,
    Passage,
)
from vitrail.serve.service import Here, Service
from vitrail.steer import Head

NUM_TOKENS, NUM_NEIGHBOURS = 12, 8

router = APIRouter(tags=["Concepts"])


# Plain functions: FastAPI runs them in a thread, since a search over a large library takes a while.
@router.get("/v1/concepts", responses=faults(400), summary="Search concepts")
def list_concepts(asked: Annotated[ConceptQuery, Query()], service: Here) -> ConceptList:
    """Concepts that fit a query, best first; without a query all of them."""
    at_most(len(asked.query), service.settings.max_query_chars, "query", "characters")
    at_most(asked.limit, service.settings.max_page, "limit")
    library = service.model.library
    found = library.search(asked.query, len(library.cards)) if asked.query.strip() else library.cards
    cards = [card for card in found if asked.head in (None, card.head)]
    page = cards[asked.offset : asked.offset + asked.limit]
    return ConceptList(total=len(cards), data=[_card(card) for card in page])


@router.get("/v1/concepts/{head}/{concept_id}", responses=faults(404), summary="Open a concept")
def get_concept(head: Head, concept_id: int, service: Here) -> ConceptDetail:
    """A concept's card, the tokens that it raises, its neighbours, training passages, and strength 1.0."""
    model = service.model
    try:
        card = model.library.card(head, concept_id)
    except ConceptNotFound as error:
        raise not_found(str(error), "concept_id", "concept_not_found") from error
    return ConceptDetail(
        card=_card(card),
        top_tokens=top_tokens(model, head, concept_id, NUM_TOKENS),
        neighbours=neighbours(model, head, concept_id, NUM_NEIGHBOURS),
        examples=_examples(service, head, concept_id),
        scale=_scale(service, head, concept_id),
    )


def _card(card: Card) -> ConceptCard:
    lists = {name: list(getattr(card, name)) for name in ("words", "lift", "path")}
    return ConceptCard(**{**asdict(card), **lists})


def _examples(service: Service, head: Head, concept_id: int) -> list[Passage]:
    if service.examples is None or head == "discovered":
        return []
    return [
        Passage(
            chunk_id=chunk.chunk_id,
            document_id=chunk.document_id,
            title=chunk.title,
            source=chunk.source,
            license=chunk.license,
            text=chunk.text,
            score=score,
            spans=[span for label in chunk.labels if label.concept_id == concept_id for span in label.spans],
        )
        for chunk, score in service.examples.of(concept_id)
    ]


def _scale(service: Service, head: Head, concept_id: int) -> ConceptScale | None:
    calibration = service.calibration
    if calibration is None:
        return None
    found = (calibration.known if head == "known" else calibration.discovered).get(concept_id)
    return None if found is None else ConceptScale(scale=found.scale, change=found.change)
