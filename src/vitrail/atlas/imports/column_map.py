"""The column map: which file and column of an atlas release holds what.

The default, `release.yaml`, is our reading of the FineWeb Atlas release (tables of chunks, concepts, documents, a
reverse index, co-occurrence); the release itself could not be looked at, so its true names may differ. A user's
file overrides single lines. Every column that the map names must be there.
"""

from importlib.resources import files
from pathlib import Path
from typing import Any

import yaml
from pydantic import Field

from vitrail.settings import Settings, read_yaml


class ConceptColumns(Settings):
    """Table of concepts."""

    files: str = Field(min_length=1)
    concept_id: str
    name: str
    description: str | None
    kind: str | None
    words: str | None
    path: str | None
    num_chunks: str | None


class DocumentColumns(Settings):
    """Table of documents."""

    files: str = Field(min_length=1)
    document_id: str
    source: str | None
    domain: str | None
    license: str | None
    title: str | None
    text: str | None


class ChunkColumns(Settings):
    """Table of chunks."""

    files: str = Field(min_length=1)
    chunk_id: str
    document_id: str
    text: str | None
    start: str | None
    stop: str | None
    concepts: str
    scores: str | None
    embedding: str | None


class ReverseColumns(Settings):
    """Table concept → chunks."""

    files: str | None
    concept_id: str
    chunk_ids: str


class PairColumns(Settings):
    """Table of pairs of concepts."""

    files: str | None
    first: str
    second: str
    num_chunks: str


class ColumnMap(Settings):
    """Where a release keeps what; see `release.yaml` for the meaning of each line."""

    concepts: ConceptColumns
    documents: DocumentColumns
    chunks: ChunkColumns
    reverse_index: ReverseColumns
    cooccurrence: PairColumns


def load_map(path: Path | None = None) -> ColumnMap:
    """The default map, with the lines of a user's file over it.

    Args:
        path: YAML file with the groups and lines that differ; None takes the default.

    Returns:
        the map.

    Raises:
        ConfigError: the file is missing, not YAML, or names a group or line that does not exist.
    """
    values: dict[str, Any] = yaml.safe_load((files("vitrail.atlas.imports") / "release.yaml").read_text("utf-8"))
    if path is None:
        return ColumnMap.parse(values, where="release.yaml")
    for group, lines in read_yaml(path).items():
        is_group = isinstance(lines, dict) and isinstance(values.get(group), dict)
        values[group] = {**values[group], **lines} if is_group else lines
    return ColumnMap.parse(values, where=str(path))
