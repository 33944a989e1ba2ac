"""`vitrail atlas build | annotate | search | show`."""

from pathlib import Path
from typing import Any

from vitrail.atlas import AtlasSettings, Card, ConceptLibrary, annotate_corpus, build_atlas
from vitrail.cli.output import Count, Json, Overrides, described, emit, parse_overrides, working


def build(corpus: Path, *overrides: Overrides, out: Path, json: Json = False) -> None:
    """Find the concepts of a corpus: tags, clusters, cards, annotator.

    Example: `vitrail atlas build runs/corpus --out runs/atlas --num_concepts 256`

    Args:
        corpus: a corpus directory.
        overrides: settings of the atlas.
        out: directory to make.
        json: print one JSON object.
    """
    settings = AtlasSettings.load(overrides=parse_overrides(overrides))
    with working("building the atlas"):
        manifest = build_atlas(corpus, out, settings)
    emit({"id": manifest.id, "counts": manifest.counts}, json, described(out, manifest.counts))


def annotate(corpus: Path, *, atlas: Path, out: Path, json: Json = False) -> None:
    """Label every chunk of a corpus with the concepts of an atlas.

    Example: `vitrail atlas annotate runs/corpus --atlas runs/atlas --out runs/annotated`

    Args:
        corpus: a corpus directory.
        atlas: an atlas directory.
        out: directory to make.
        json: print one JSON object.
    """
    with working("annotating chunks"):
        manifest = annotate_corpus(corpus, atlas, out)
    emit({"id": manifest.id, "counts": manifest.counts}, json, described(out, manifest.counts))


def search(library: Path, query: str, *, limit: Count = 10, json: Json = False) -> None:
    """Find concepts by words of their name, description or characteristic words.

    Example: `vitrail atlas search runs/atlas "trade"`

    Args:
        library: an atlas or model directory.
        query: words to look for.
        limit: how many at most.
        json: print one JSON object.
    """
    cards = ConceptLibrary.load(library).search(query, limit)
    text = "\n".join(f"#{card.concept_id:<5} {card.name}: {card.description}" for card in cards)
    emit({"concepts": [_plain(card) for card in cards]}, json, text or f"no concept matches '{query}'")


def show(library: Path, name: str, *, json: Json = False) -> None:
    """Show one concept's card.

    Example: `vitrail atlas show runs/atlas "exports"`

    Args:
        library: an atlas or model directory.
        name: name of the concept, or `#ID`.
        json: print one JSON object.
    """
    card = ConceptLibrary.load(library).find(name)
    lines = [
        f"{card.name}  (#{card.concept_id}, {card.head}, {card.kind})",
        card.description,
        "words:  " + ", ".join(card.words),
        f"chunks: {card.num_chunks:,}",
    ]
    emit(_plain(card), json, "\n".join(lines))


def _plain(card: Card) -> dict[str, Any]:
    return {
        "concept_id": card.concept_id,
        "head": card.head,
        "name": card.name,
        "description": card.description,
        "kind": card.kind,
        "words": list(card.words),
        "lift": list(card.lift),
        "path": list(card.path),
        "num_chunks": card.num_chunks,
        "threshold": card.threshold,
        "is_automatic": card.is_automatic,
    }
