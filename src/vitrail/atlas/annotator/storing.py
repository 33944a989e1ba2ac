"""The annotator on disk: `annotator.safetensors`, `marks.parquet`, and the tags of `tags.parquet`.

Arrays by name: tag vectors and rarities, the detector's centroids and scales, member weights (CSR), one head for
each kind, thresholds. The file's metadata names the format and the encoder of chunks. No code is read from it.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from jaxtyping import Float32
from safetensors import safe_open
from safetensors.numpy import load_file
from safetensors.numpy import save as to_bytes
from scipy.sparse import csr_array

from vitrail.atlas.annotator.detector import Detector
from vitrail.atlas.annotator.encoders import ChunkEncoder, MiniLMEncoder, TagsEncoder
from vitrail.atlas.annotator.endpoint import PREFIX, EndpointEncoder
from vitrail.atlas.annotator.heads import Heads
from vitrail.atlas.annotator.marks import Phrase
from vitrail.atlas.annotator.scoring import Scoring
from vitrail.atlas.llm.endpoint import Endpoint
from vitrail.errors import ArtifactError, ConfigError

WEIGHTS_NAME = "annotator.safetensors"
MARKS_NAME = "marks.parquet"
TAGS_NAME = "tags.parquet"
FORMAT = 2

_MARKS = pa.schema([("phrase", pa.string()), ("concept_id", pa.int32()), ("weight", pa.float32())])


@dataclass(frozen=True)
class Stored:
    """All parts of an annotator but the encoder itself.

    Attributes:
        encoder: its name.
        tags: n known tags.
        rarity: [n].
        tag_vectors: [n T].
        detector: of C concepts.
        scoring: of C concepts.
        phrases: that mark own concepts.
        max_labels: labels a chunk can carry.
    """

    encoder: str
    tags: tuple[str, ...]
    rarity: Float32[np.ndarray, " n"]
    tag_vectors: Float32[np.ndarray, "n T"]
    detector: Detector
    scoring: Scoring
    phrases: Sequence[Phrase]
    max_labels: int


def save(parts: Stored, folder: Path) -> None:
    """Write an annotator; the tag table is not written.

    Args:
        parts: of the annotator.
        folder: the atlas directory.
    """
    members = parts.scoring.members
    arrays = {
        "tag_vectors": parts.tag_vectors,
        "tag_rarity": parts.rarity,
        "centroids": parts.detector.centroids,
        "cosine_mean": parts.detector.mean,
        "cosine_scale": parts.detector.scale,
        "members.indptr": members.indptr.astype(np.int64),
        "members.indices": members.indices.astype(np.int64),
        "members.data": members.data.astype(np.float32),
        "thresholds": parts.scoring.thresholds,
        "unseen": parts.scoring.unseen,
        "max_labels": np.array([parts.max_labels], np.int64),
        **parts.scoring.heads.arrays(),
    }
    contiguous = {name: np.ascontiguousarray(array) for name, array in arrays.items()}
    # One entry alone: several would be written in no fixed order, and the same atlas would have many hashes.
    metadata = {"annotator": json.dumps({"format": FORMAT, "encoder": parts.encoder}, sort_keys=True)}
    (folder / WEIGHTS_NAME).write_bytes(to_bytes(contiguous, metadata))
    rows = [{"phrase": p.text, "concept_id": p.concept_id, "weight": p.weight} for p in parts.phrases]
    pq.write_table(pa.Table.from_pylist(rows, schema=_MARKS), folder / MARKS_NAME, compression="zstd")


def load(folder: Path) -> Stored:
    """Read an annotator.

    Args:
        folder: the atlas directory.

    Returns:
        its parts.

    Raises:
        ArtifactError: a file is missing or damaged, or comes from another version.
    """
    try:
        with safe_open(folder / WEIGHTS_NAME, framework="numpy") as file:
            metadata = json.loads((file.metadata() or {}).get("annotator", "{}"))
        if metadata.get("format") != FORMAT:
            raise ArtifactError(
                f"{folder / WEIGHTS_NAME}: an annotator of format {metadata.get('format', 1)}, wanted {FORMAT}; "
                "build the atlas again with this version"
            )
        return _parts(folder, metadata["encoder"])
    except ArtifactError:
        raise
    except Exception as error:  # safetensors and pyarrow raise many kinds for damaged bytes
        problem = " ".join(str(error).split())
        raise ArtifactError(f"{folder}: damaged annotator ({problem}); build the atlas again") from error


def _parts(folder: Path, encoder: str) -> Stored:
    tags = tuple(pq.read_table(folder / TAGS_NAME, columns=["tag"])["tag"].to_pylist())
    marks = pq.read_table(folder / MARKS_NAME).cast(_MARKS).to_pylist()
    w = load_file(folder / WEIGHTS_NAME)
    heads = Heads.from_arrays(w)
    shape = (len(tags), len(w["thresholds"]))
    members = csr_array((w["members.data"], w["members.indices"], w["members.indptr"]), shape=shape)
    members.check_format()
    if (
        not len(heads.biases) == len(w["unseen"]) == len(w["centroids"]) == shape[1]
        or len(w["tag_vectors"]) != shape[0]
    ):
        raise ValueError("its tables disagree on the number of concepts or tags")
    return Stored(
        encoder,
        tags,
        w["tag_rarity"],
        w["tag_vectors"],
        Detector(w["centroids"], w["cosine_mean"], w["cosine_scale"], members),
        Scoring(members, heads, w["thresholds"], w["unseen"]),
        [Phrase(mark["phrase"], mark["concept_id"], mark["weight"]) for mark in marks],
        int(w["max_labels"][0]),
    )


def make_encoder(name: str, tag_vectors: Float32[np.ndarray, "n T"], endpoint: Endpoint | None = None) -> ChunkEncoder:
    """The encoder of chunks of a name.

    Args:
        name: "tags", "minilm", or "endpoint:MODEL".
        tag_vectors: [n T] unit rows.
        endpoint: the server of embeddings, where one is needed.

    Returns:
        the encoder.

    Raises:
        ArtifactError: MiniLM is not installed.
        ConfigError: a server's encoder without its address, or an unknown one.
        RunFailed: the server does not answer.
    """
    if name == "tags":
        return TagsEncoder(tag_vectors)
    if name == "minilm":
        return MiniLMEncoder()
    if not name.startswith(PREFIX):
        raise ConfigError(f"unknown encoder '{name}'; the encoders are tags, minilm, {PREFIX}MODEL")
    if endpoint is None:
        raise ConfigError(
            f"encoder '{name}' asks a server, and none is named; give its address (--endpoint.url http://HOST/v1)"
        )
    return EndpointEncoder(endpoint, name.removeprefix(PREFIX))


def check_encoder(stored: Stored, encoder: ChunkEncoder, folder: Path) -> None:
    """Refuse an encoder that the heads were not fitted with.

    Args:
        stored: the annotator.
        encoder: the one to be used.
        folder: named in the message.

    Raises:
        ConfigError: another name or width.
    """
    width = stored.scoring.heads.weights.shape[1]
    if (encoder.name, encoder.width) != (stored.encoder, width):
        raise ConfigError(
            f"{folder}: the atlas was built with encoder '{stored.encoder}' of width {width}, not with "
            f"'{encoder.name}' of width {encoder.width}; use that one, or build the atlas again"
        )
