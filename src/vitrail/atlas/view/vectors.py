"""A vector for each concept, and who lies near whom.

An atlas brings its annotator's centroids. An annotated corpus without its atlas (an imported release, a corpus that
was moved) gives the mean vector of each concept's labelled chunks, minus the mean of all chunks: without that, all
concepts of one corpus look alike. Where chunks have no vectors, MiniLM reads the cards.

Letters: C concepts, E width of the vectors, R chunks of a slab.
"""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from jaxtyping import Float32
from safetensors import SafetensorError, safe_open
from scipy.sparse import csr_array

from vitrail.artifacts import MANIFEST_NAME, read_manifest
from vitrail.atlas.annotated import AnnotatedCorpus
from vitrail.atlas.annotator.storing import WEIGHTS_NAME
from vitrail.atlas.concepts.encoder import minilm
from vitrail.atlas.concepts.geometry import unit
from vitrail.atlas.library import Card
from vitrail.atlas.view.columns import slabs
from vitrail.errors import ArtifactError

SLAB_CONCEPTS = 512


def chunk_means(corpus: AnnotatedCorpus, num_concepts: int) -> Float32[np.ndarray, "C E"]:
    """Unit vector of each concept: the mean of its chunks minus the mean of all chunks (C).

    Args:
        corpus: the annotated corpus; its vectors may have width 0.
        num_concepts: C.

    Returns:
        [C E] fp32; a row of zeros for a concept on no chunk.

    Raises:
        ArtifactError: damaged.
    """
    vectors = corpus.embeddings()
    sums = np.zeros((num_concepts, vectors.shape[1]))
    counts, total = np.zeros(num_concepts), np.zeros(vectors.shape[1])
    for slab in slabs(corpus):
        num_rows = int(slab.sizes.sum())
        rows = np.asarray(vectors[slab.first_row : slab.first_row + num_rows]).astype(np.float32)
        ones = np.ones(len(slab.label_rows), np.float32)
        carries = csr_array((ones, (slab.label_concepts, slab.label_rows)), shape=(num_concepts, num_rows))
        sums += carries @ rows
        counts += carries.sum(1)
        total += rows.sum(0, dtype=np.float64)
    means = sums / np.maximum(counts, 1)[:, None] - total / max(corpus.num_chunks, 1)
    means[counts == 0] = 0
    return unit(means.astype(np.float32))


def concept_vectors(corpus: AnnotatedCorpus, cards: Sequence[Card]) -> tuple[Float32[np.ndarray, "C E"], str]:
    """Vectors of the concepts of an annotated corpus, and what they are.

    Args:
        corpus: the annotated corpus.
        cards: its known concepts, by id.

    Returns:
        [C E] unit vectors, and a phrase such as "mean vector of the labelled chunks".

    Raises:
        ArtifactError: damaged.
    """
    if corpus.embeddings().shape[1]:
        return chunk_means(corpus, len(cards)), "mean vector of the labelled chunks"
    return card_vectors(cards), "MiniLM vector of the card"


def card_vectors(cards: Sequence[Card]) -> Float32[np.ndarray, "C E"]:
    """What MiniLM makes of each card's name, description and words.

    Args:
        cards: C cards.

    Returns:
        [C 384] unit vectors.
    """
    return minilm().encode([card_text(card) for card in cards])


def card_text(card: Card) -> str:
    """A card as one line of text for an encoder.

    Args:
        card: the card.

    Returns:
        name, description and the eight most characteristic words.
    """
    return f"{card.name}. {card.description} {', '.join(card.words[:8])}"


def atlas_of(place: Path) -> Path | None:
    """The atlas behind a directory: itself, or the one that an annotated corpus was made with.

    Args:
        place: an artifact directory.

    Returns:
        its path, or None where it is not there any more, or another one stands in its place.
    """
    if not (place / MANIFEST_NAME).is_file():
        return None
    manifest = read_manifest(place)
    if manifest.kind == "atlas":
        return place
    reference = manifest.inputs.get("atlas")
    if reference is None or not (place / reference.path / MANIFEST_NAME).is_file():
        return None
    found = place / reference.path
    return found if read_manifest(found).id == reference.id else None


def centroids(atlas: Path, num_concepts: int) -> Float32[np.ndarray, "C E"]:
    """The annotator's unit vector of each concept.

    Args:
        atlas: the atlas directory.
        num_concepts: C of its library.

    Returns:
        [C E] fp32.

    Raises:
        ArtifactError: missing, damaged, or of another number of concepts.
    """
    path = atlas / WEIGHTS_NAME
    try:
        with safe_open(path, "np") as weights:
            found = weights.get_tensor("centroids")
    except (OSError, SafetensorError) as error:
        problem = " ".join(str(error).split())
        raise ArtifactError(f"{path}: damaged annotator ({problem}); build the atlas again") from error
    if len(found) != num_concepts:
        raise ArtifactError(
            f"{path}: {len(found)} centroids for {num_concepts} concepts in the library; build the atlas again"
        )
    return unit(found.astype(np.float32))


def nearest_rows(
    vectors: Float32[np.ndarray, "C E"], count: int, rows: Sequence[int] | None = None
) -> list[list[tuple[int, float]]]:
    """The nearest other rows of each row, by cosine; no C × C matrix is held.

    Args:
        vectors: unit rows; rows of zeros have no neighbours.
        count: neighbours at most.
        rows: whose neighbours; None takes all.

    Returns:
        for each of these rows (id, cosine rounded to 4 places), nearest first, ties by id.
    """
    found: list[list[tuple[int, float]]] = []
    is_there = np.abs(vectors).sum(1) > 0
    place = max(len(vectors) - count, 0)
    wanted = np.arange(len(vectors)) if rows is None else np.array(rows, np.int64)
    for first in range(0, len(wanted), SLAB_CONCEPTS):
        slab = wanted[first : first + SLAB_CONCEPTS]
        cosines = np.round(vectors[slab] @ vectors.T, 4)
        cosines[:, ~is_there] = -2
        cosines[np.arange(len(slab)), slab] = -2
        least = np.partition(cosines, place, axis=1)[:, place] if place < len(vectors) else np.full(len(slab), 3.0)
        for row, low in enumerate(least):
            is_near = (cosines[row] >= low) & (cosines[row] > -2) & is_there[slab[row]]
            near = np.flatnonzero(is_near).tolist()
            pairs = sorted(((round(float(cosines[row, c]), 4), c) for c in near), key=lambda pair: (-pair[0], pair[1]))
            found.append([(c, cosine) for cosine, c in pairs[:count]])
    return found
