"""What the static page shows, as plain values: a summary loaded at once, and shards loaded when needed.

The summary has one number a concept and column, so that thousands of concepts stay small; cards with examples, and
documents with their chunks, lie in shards of a few dozen.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from pydantic import Field

from vitrail.atlas.annotated import AnnotatedCorpus
from vitrail.atlas.library import Card
from vitrail.atlas.view.company import Company
from vitrail.atlas.view.examples import Place, chunks_at, example_of, example_rows, sample_documents
from vitrail.atlas.view.layout import Layout, Method, lay_out
from vitrail.atlas.view.tally import Tally, log_odds, tally
from vitrail.atlas.view.vectors import atlas_of, centroids, concept_vectors, nearest_rows
from vitrail.errors import ArtifactError
from vitrail.settings import Seed, Settings

CARDS_A_SHARD = 32
DOCUMENTS_A_SHARD = 8
MOST_CHUNKS = 120
"""Chunks shown of one document; a book has thousands."""
MOST_GROUPS = 200
"""Sources or domains listed or compared, those with most chunks."""
NEAR, TOGETHER, TYPICAL, WHERE = 8, 8, 6, 8
MOST_WORDS, SOUGHT_WORDS = 12, 8


class PageSettings(Settings):
    """What the static page shows."""

    title: str = "Atlas"
    """Heading of the page."""
    layout: Method = "auto"
    """How concepts are placed: UMAP (extra `map`), PCA, or UMAP where it is installed."""
    examples: int = Field(default=3, ge=0)
    """Example chunks a concept."""
    documents: int = Field(default=120, ge=0)
    """Documents shown with all their chunks and labels, drawn at random."""
    seed: Seed = 0
    """Seed of the layout and of the sample of documents."""


@dataclass(frozen=True)
class PageData:
    """What the page shows.

    Attributes:
        summary: loaded with the page.
        cards: one entry a concept, by id.
        documents: one entry a sampled document.
    """

    summary: dict[str, Any]
    cards: list[dict[str, Any]]
    documents: list[dict[str, Any]]


def gather(folder: Path, settings: PageSettings) -> PageData:
    """Everything the page shows of an annotated corpus.

    Args:
        folder: the annotated corpus.
        settings: what is wanted.

    Returns:
        plain values.

    Raises:
        ArtifactError: not an annotated corpus, damaged, or its concepts are not numbered from 0.
        ConfigError: UMAP is asked for and not installed.
    """
    corpus = AnnotatedCorpus.open(folder)
    cards = known_cards(corpus)
    atlas = atlas_of(folder)
    if atlas is None:
        vectors, meaning = concept_vectors(corpus, cards)
    else:
        vectors, meaning = centroids(atlas, len(cards)), "centroid of the concept's tags"
    layout = lay_out(vectors, settings.layout, settings.seed)
    sources, domains = tally(corpus, len(cards), "source"), tally(corpus, len(cards), "domain")
    places = sample_documents(corpus, settings.documents, settings.seed)
    summary = _summary(corpus, cards, layout, domains, settings)
    summary["map"]["meaning"] = meaning
    summary["groups"] = {"source": _groups(sources), "domain": _groups(domains)}
    details = _details(corpus, cards, nearest_rows(vectors, NEAR), {"source": sources, "domain": domains}, settings)
    documents = [_document(corpus, place) for place in places]
    summary["documents"] = [{key: document[key] for key in ("title", "domain", "num_chunks")} for document in documents]
    return PageData(summary, details, documents)


def known_cards(corpus: AnnotatedCorpus) -> list[Card]:
    """Cards of the concepts that labels can refer to.

    Args:
        corpus: the annotated corpus.

    Returns:
        known concepts by id, 0..C-1.

    Raises:
        ArtifactError: ids are not consecutive.
    """
    cards = [card for card in corpus.library().cards if card.head == "known"]
    if [card.concept_id for card in cards] != list(range(len(cards))):
        raise ArtifactError(f"{corpus.path}: concept ids are not 0 to {len(cards) - 1}; build the atlas again")
    return cards


def _summary(
    corpus: AnnotatedCorpus, cards: Sequence[Card], layout: Layout, domains: Tally, settings: PageSettings
) -> dict[str, Any]:
    whole = domains.whole()
    paths = sorted({card.path for card in cards})
    place = {path: number for number, path in enumerate(paths)}
    main = domains.carrying.argmax(axis=0).ravel().tolist() if domains.groups else []
    return {
        "title": settings.title,
        "id": corpus.manifest.id,
        "counts": {
            "chunks": corpus.num_chunks,
            "documents": whole.documents,
            "labels": int(whole.carrying.sum()),
            "concepts": len(cards),
            "unlabelled": corpus.manifest.counts.get("unlabelled_chunks"),
        },
        "map": {"method": layout.method, "seed": settings.seed},
        "concepts": {
            "name": [card.name for card in cards],
            "kind": [card.kind for card in cards],
            "path": [place[card.path] for card in cards],
            "domain": main,
            "words": [" ".join(card.words[:SOUGHT_WORDS]) for card in cards],
            "chunks": whole.carrying.tolist(),
            "x": [round(float(x), 4) for x in layout.positions[:, 0]],
            "y": [round(float(y), 4) for y in layout.positions[:, 1]],
        },
        "paths": [list(path) for path in paths],
        "domains": list(domains.groups),
        "shards": {"cards": CARDS_A_SHARD, "documents": DOCUMENTS_A_SHARD},
    }


def _groups(counted: Tally) -> dict[str, Any]:
    """The largest groups, each with the concepts that set it apart from all the others."""
    whole = counted.whole()
    rows = []
    for number, name in enumerate(counted.groups[:MOST_GROUPS]):
        inside = counted.of(number)
        row = {"name": name, "chunks": inside.chunks, "documents": inside.documents, "typical": []}
        if inside.chunks < whole.chunks:
            ratio, low, high = log_odds(inside, whole - inside)
            best = sorted(range(len(low)), key=lambda c: (-round(float(low[c]), 4), c))[:TYPICAL]
            row["typical"] = [
                [c, int(inside.carrying[c]), *(round(float(value[c]), 2) for value in (ratio, low, high))]
                for c in best
                if low[c] > 0
            ]
        rows.append(row)
    return {"rows": rows, "total": len(counted.groups)}


def _details(
    corpus: AnnotatedCorpus,
    cards: Sequence[Card],
    near: list[list[tuple[int, float]]],
    tallies: dict[str, Tally],
    settings: PageSettings,
) -> list[dict[str, Any]]:
    company = Company.load(corpus.path, corpus.num_chunks)
    rows = example_rows(corpus.path, settings.examples)
    chunks = chunks_at(corpus, (row for wanted in rows.values() for row in wanted))
    where = {by: where_found(counted, range(len(cards)), WHERE) for by, counted in tallies.items()}
    return [
        {
            "description": card.description,
            "words": list(card.words[:MOST_WORDS]),
            "lift": [round(value, 1) for value in card.lift[:MOST_WORDS]],
            "built": card.num_chunks,
            "threshold": round(card.threshold, 3),
            "automatic": card.is_automatic,
            "near": [[c, round(cosine, 2)] for c, cosine in near[card.concept_id]],
            "together": [
                [m.concept_id, m.num_chunks, round(m.lift, 1)] for m in company.near(card.concept_id, TOGETHER)
            ],
            "where": {by: found[card.concept_id] for by, found in where.items()},
            "examples": [asdict(example_of(chunks[row], card.concept_id, 2)) for row in rows.get(card.concept_id, [])],
        }
        for card in cards
    ]


def where_found(counted: Tally, concept_ids: Sequence[int], limit: int) -> list[list[tuple[str, int, int]]]:
    """The groups that hold most chunks of each of some concepts.

    Args:
        counted: counts by group.
        concept_ids: the concepts.
        limit: groups a concept at most.

    Returns:
        for each concept (group, chunks with the concept, chunks of the group), most first, ties by name.
    """
    columns = counted.carrying.tocsc()
    found = []
    for concept_id in concept_ids:
        inside = slice(columns.indptr[concept_id], columns.indptr[concept_id + 1])
        pairs = zip(columns.indices[inside].tolist(), columns.data[inside].tolist(), strict=True)
        rows = [(counted.groups[group], count, int(counted.sizes[group, 1])) for group, count in pairs]
        found.append(sorted(rows, key=lambda row: (-row[1], row[0]))[:limit])
    return found


def _document(corpus: AnnotatedCorpus, place: Place) -> dict[str, Any]:
    stop = place.first_row + min(place.num_chunks, MOST_CHUNKS)
    chunks = list(corpus.chunks(place.first_row, stop))
    first = chunks[0]
    return {
        "id": place.document_id,
        "title": first.title or first.source or place.document_id,
        "source": first.source,
        "domain": first.domain,
        "license": first.license,
        "split": first.split,
        "num_chunks": place.num_chunks,
        "chunks": [
            [chunk.text, [[label.concept_id, round(label.score, 2), *map(list, label.spans)] for label in chunk.labels]]
            for chunk in chunks
        ],
    }
