"""An atlas of a user's own labels."""

from pathlib import Path

from vitrail.artifacts import Manifest
from vitrail.atlas.build import atlas_of_own
from vitrail.atlas.imports.labels import LabelColumns, read_labels
from vitrail.atlas.resources import Resources
from vitrail.atlas.settings import AtlasSettings


def import_labels(
    path: Path, out: Path, columns: LabelColumns, settings: AtlasSettings, resources: Resources | None = None
) -> Manifest:
    """Make an atlas (kind `atlas`) whose concepts are those of a table of labels.

    Args:
        path: CSV, TSV, JSONL or Parquet of concept and text.
        out: directory to be made.
        columns: what its columns are called.
        settings: of the atlas.
        resources: the server of embeddings, where an encoder asks one.

    Returns:
        the manifest.

    Raises:
        CorpusError: the table cannot be read, or has too little text.
        ArtifactError: `out` is something else.
        RunFailed: the disk is full.
    """
    labels = read_labels(path, columns)
    return atlas_of_own(labels.concepts, labels.texts, settings, out, resources)
