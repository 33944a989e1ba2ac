"""`annotate(batch) -> batch`: a table of texts in, the same table with labels, spans and vectors out (§4.5.1).

A plain class that knows no engine: it pickles to the name of an atlas, and any engine that maps Arrow tables (Ray
Data's `map_batches`, Spark's `mapInArrow`, Dask, Daft, a loop) can map it. It loads the annotator where it is called,
once a process.
"""

import os
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np
import pyarrow as pa
from jaxtyping import Float16
from threadpoolctl import threadpool_limits

from vitrail.artifacts import read_manifest
from vitrail.atlas.annotated.chunk import label_column
from vitrail.atlas.annotator import Annotator
from vitrail.atlas.llm import Endpoint
from vitrail.errors import ArtifactError

TEXT, LABELS, VECTOR = "text", "labels", "vector"


@dataclass(frozen=True)
class BatchAnnotator:
    """Labels batches of texts with the concepts of one atlas.

    Attributes:
        atlas_dir: the atlas, at the same path on every machine.
        atlas_id: its id; an atlas that was rebuilt meanwhile is refused.
        endpoint: server of embeddings, if the atlas was built with one.
    """

    atlas_dir: Path
    atlas_id: str
    endpoint: Endpoint | None = None

    @classmethod
    def of(cls, atlas_dir: Path, endpoint: Endpoint | None = None) -> "BatchAnnotator":
        """The annotator of an atlas as it is now.

        Args:
            atlas_dir: the atlas directory.
            endpoint: server of embeddings, if the atlas was built with one.

        Returns:
            the annotator.

        Raises:
            ArtifactError: no atlas there.
        """
        return cls(atlas_dir.resolve(), read_manifest(atlas_dir, "atlas").id, endpoint)

    def __getstate__(self) -> dict[str, object]:
        """Without the server's key, which is for no file: a worker takes it from its own environment."""
        keyless = self.endpoint and self.endpoint.model_copy(update={"api_key": None})
        return {**self.__dict__, "endpoint": keyless}

    @property
    def width(self) -> int:
        """E, the width of the vectors."""
        return self._annotator.width

    def __call__(self, batch: pa.Table) -> pa.Table:
        """Annotate a batch.

        Args:
            batch: a table with a column `text`.

        Returns:
            the table with two more columns: `labels` (concept_id, score, spans) and `vector` (fp16, E wide).

        Raises:
            ArtifactError: the atlas is damaged, or another one than before.
        """
        with threadpool_limits(1):  # sums in one fixed order; processes share out the cores
            annotation = self._annotator.annotate(batch[TEXT].to_pylist())
        flat = pa.array(annotation.vectors.astype(np.float16).ravel())
        vectors = pa.FixedSizeListArray.from_arrays(flat, annotation.vectors.shape[1])
        return batch.append_column(LABELS, label_column(annotation.labels)).append_column(VECTOR, vectors)

    @property
    def _annotator(self) -> Annotator:
        return _load(self.atlas_dir, self.atlas_id, self.endpoint)


def vectors_of(batch: pa.Table) -> Float16[np.ndarray, "n E"]:
    """The column `vector` as one array.

    Args:
        batch: what a `BatchAnnotator` gave.

    Returns:
        [n E] fp16.
    """
    column = batch[VECTOR].combine_chunks()
    return np.asarray(column.flatten().to_numpy(zero_copy_only=False)).reshape(len(batch), column.type.list_size)


def forget() -> None:
    """Free the annotator that this process holds."""
    _load.cache_clear()


@lru_cache(maxsize=1)
def _load(atlas_dir: Path, atlas_id: str, endpoint: Endpoint | None) -> Annotator:
    if read_manifest(atlas_dir, "atlas").id != atlas_id:
        raise ArtifactError(f"{atlas_dir}: the atlas was built again while it was in use; run again")
    if endpoint and endpoint.api_key is None:
        endpoint = endpoint.with_key(os.environ)
    return Annotator.load(atlas_dir, endpoint)
