"""One concept as a person wants to see it: card, neighbours, company, where it is found, examples."""

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from vitrail.artifacts import MANIFEST_NAME, read_manifest
from vitrail.atlas.annotated import AnnotatedCorpus
from vitrail.atlas.concepts.encoder import minilm
from vitrail.atlas.concepts.tag_encoder import TagEncoder
from vitrail.atlas.concepts.vector_cache import VectorCache
from vitrail.atlas.library import Card, ConceptLibrary
from vitrail.atlas.view.columns import By
from vitrail.atlas.view.company import Company
from vitrail.atlas.view.examples import Example, chunks_at, example_of, example_rows
from vitrail.atlas.view.gather import known_cards, where_found
from vitrail.atlas.view.tally import tally
from vitrail.atlas.view.vectors import atlas_of, card_text, centroids, concept_vectors, nearest_rows


@dataclass(frozen=True)
class Neighbour:
    """A concept near another; `cosine` of vectors, or `num_chunks` shared at `lift`, whichever was asked for."""

    concept_id: int
    name: str
    cosine: float | None = None
    num_chunks: int | None = None
    lift: float | None = None


@dataclass(frozen=True)
class Where:
    """A source or domain: how many of its chunks carry a concept."""

    name: str
    carrying: int
    chunks: int


@dataclass(frozen=True)
class Shown:
    """All there is to see of a concept; lists are empty where a directory does not have what they need.

    Attributes:
        card: its card.
        near: concepts with the nearest vectors.
        together: concepts on the same chunks, beyond chance.
        sources: where most of its chunks come from.
        domains: domains of most of its chunks.
        examples: chunks with the highest scores.
    """

    card: Card
    near: tuple[Neighbour, ...] = ()
    together: tuple[Neighbour, ...] = ()
    sources: tuple[Where, ...] = ()
    domains: tuple[Where, ...] = ()
    examples: tuple[Example, ...] = ()

    def plain(self) -> dict[str, Any]:
        """The card's fields and the lists, as plain values for JSON."""
        lists = {key: value for key, value in asdict(self).items() if key != "card"}
        return {**plain_card(self.card), **lists}


def show_concept(place: Path, name: str, num_neighbours: int, num_examples: int) -> Shown:
    """A concept of an atlas, an annotated corpus or a model.

    Args:
        place: its directory. An atlas has neighbours by meaning; an annotated corpus also company, sources,
            domains and examples (one pass over its labels); a model only cards.
        name: name of the concept, or `#ID`.
        num_neighbours: neighbours, sources and domains listed at most.
        num_examples: example chunks at most.

    Returns:
        what there is.

    Raises:
        ConceptNotFound: no such concept; the nearest names are suggested.
        ArtifactError: missing or damaged.
    """
    library = ConceptLibrary.load(place)
    card = library.find(name)
    kind = read_manifest(place).kind if (place / MANIFEST_NAME).is_file() else ""
    if kind == "annotated":
        return _in_corpus(AnnotatedCorpus.open(place), card, num_neighbours, num_examples)
    if kind != "atlas":
        return Shown(card)
    (near,) = nearest_rows(centroids(place, library.num_known), num_neighbours, [card.concept_id])
    return Shown(card, _near(library, near))


def _in_corpus(corpus: AnnotatedCorpus, card: Card, num_neighbours: int, num_examples: int) -> Shown:
    cards, library = known_cards(corpus), corpus.library()
    atlas = atlas_of(corpus.path)
    vectors = concept_vectors(corpus, cards)[0] if atlas is None else centroids(atlas, len(cards))
    met = Company.load(corpus.path, corpus.num_chunks).near(card.concept_id, num_neighbours)
    rows = example_rows(corpus.path, num_examples).get(card.concept_id, [])
    chunks = chunks_at(corpus, rows)

    def where(by: By) -> tuple[Where, ...]:
        found = where_found(tally(corpus, len(cards), by), [card.concept_id], num_neighbours)[0]
        return tuple(Where(*row) for row in found)

    return Shown(
        card=card,
        near=_near(library, nearest_rows(vectors, num_neighbours, [card.concept_id])[0]),
        together=tuple(
            Neighbour(m.concept_id, cards[m.concept_id].name, num_chunks=m.num_chunks, lift=round(m.lift, 2))
            for m in met
        ),
        sources=where("source"),
        domains=where("domain"),
        examples=tuple(example_of(chunks[row], card.concept_id, 3) for row in rows),
    )


def _near(library: ConceptLibrary, found: list[tuple[int, float]]) -> tuple[Neighbour, ...]:
    return tuple(Neighbour(c, library.card("known", c).name, cosine=cosine) for c, cosine in found)


def search_meaning(
    library: ConceptLibrary, query: str, limit: int, cache: Path | None = None
) -> list[tuple[Card, float]]:
    """Concepts whose card means something like a query, by MiniLM.

    Args:
        library: the concepts.
        query: any words.
        limit: how many at most.
        cache: folder in which the cards' vectors are kept for the next search; such vectors depend on no
            companions, are three times slower to make, and may differ in the third decimal.

    Returns:
        (card, cosine), the nearest first.
    Cost: every card is read by MiniLM, about 150 a second on one core.
    """
    texts = [card_text(card) for card in library.cards]
    encoder = minilm()
    vectors = encoder.encode(texts) if cache is None else VectorCache(TagEncoder(), cache).encode(texts)
    cosines = (vectors @ encoder.encode([query])[0]).astype(float).round(4).tolist()
    order = sorted(range(len(cosines)), key=lambda i: (-cosines[i], i))[:limit]
    return [(library.cards[i], cosines[i]) for i in order]


def plain_card(card: Card) -> dict[str, Any]:
    """A card as plain values for JSON.

    Args:
        card: the card.

    Returns:
        its fields, tuples as lists.
    """
    return {key: list(value) if isinstance(value, tuple) else value for key, value in asdict(card).items()}
