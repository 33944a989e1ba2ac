"""`vitrail index build | query`."""

from pathlib import Path

from vitrail.api import load
from vitrail.cli.output import Count, Json, Overrides, described, emit, parse_overrides, working
from vitrail.explain import Index, IndexSettings, build_index


def build(model: Path, annotated: Path, *overrides: Overrides, packed: Path, out: Path, json: Json = False) -> None:
    """Build the training-data index of a model.

    Example: `vitrail index build runs/model runs/annotated --packed runs/packed --out runs/index`

    Args:
        model: a model directory; the index refuses any other model.
        annotated: the annotated corpus it was trained on.
        overrides: settings of the index.
        packed: the packed corpus it was trained on.
        out: directory to make.
        json: print one JSON object.
    """
    settings = IndexSettings.load(overrides=parse_overrides(overrides))
    with working("building the index"):
        manifest = build_index(model, annotated, packed, out, settings)
    emit({"id": manifest.id, "counts": manifest.counts}, json, described(out, manifest.counts))


def query(model: Path, text: str, *, index: Path, limit: Count = 5, json: Json = False) -> None:
    """Find training passages that resemble a text, as the model reads it.

    Example: `vitrail index query runs/demo/model "exports of crude oil" --index runs/demo/index`

    Args:
        model: a model directory.
        text: any text.
        index: the index of this model.
        limit: passages to show.
        json: print one JSON object.
    """
    hits = load(model).similar(text, Index.open(index), limit)
    rows = [
        {
            "chunk_id": hit.chunk.chunk_id,
            "similarity": hit.similarity,
            "title": hit.chunk.title,
            "source": hit.chunk.source,
            "license": hit.chunk.license,
            "text": hit.chunk.text,
        }
        for hit in hits
    ]
    lines = [
        f"{row['similarity']:.3f}  {row['title']} ({row['source']}, {row['license']})\n       {row['text']}"
        for row in rows
    ]
    emit({"hits": rows}, json, "\n".join(lines))
