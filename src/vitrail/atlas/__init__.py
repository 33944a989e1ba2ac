"""The atlas: tags, clusters, concepts with cards, annotator, annotated corpus, judge (§4).

The names below are loaded when first used: who reads a library or labels a corpus then waits neither for the tensor
library nor for what clusters and judges.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from vitrail.atlas.annotated import AnnotatedCorpus, Chunk
    from vitrail.atlas.annotated.annotate import annotate_corpus
    from vitrail.atlas.annotator import Annotation, Annotator
    from vitrail.atlas.build import build_atlas
    from vitrail.atlas.concepts.encoder import MiniLM
    from vitrail.atlas.judge import Judge, KeywordScore
    from vitrail.atlas.labels import LABELS_NAME, load_library, numbered_library
    from vitrail.atlas.library import LIBRARY_NAME, Card, ConceptLibrary, Label
    from vitrail.atlas.settings import AtlasSettings

__all__ = [
    "LABELS_NAME",
    "LIBRARY_NAME",
    "AnnotatedCorpus",
    "Annotation",
    "Annotator",
    "AtlasSettings",
    "Card",
    "Chunk",
    "ConceptLibrary",
    "Judge",
    "KeywordScore",
    "Label",
    "MiniLM",
    "annotate_corpus",
    "build_atlas",
    "load_library",
    "numbered_library",
]

_HOMES = {
    "LABELS_NAME": "vitrail.atlas.labels",
    "LIBRARY_NAME": "vitrail.atlas.library",
    "AnnotatedCorpus": "vitrail.atlas.annotated",
    "Annotation": "vitrail.atlas.annotator",
    "Annotator": "vitrail.atlas.annotator",
    "AtlasSettings": "vitrail.atlas.settings",
    "Card": "vitrail.atlas.library",
    "Chunk": "vitrail.atlas.annotated",
    "ConceptLibrary": "vitrail.atlas.library",
    "Judge": "vitrail.atlas.judge",
    "KeywordScore": "vitrail.atlas.judge",
    "Label": "vitrail.atlas.library",
    "MiniLM": "vitrail.atlas.concepts.encoder",
    "annotate_corpus": "vitrail.atlas.annotated.annotate",
    "build_atlas": "vitrail.atlas.build",
    "load_library": "vitrail.atlas.labels",
    "numbered_library": "vitrail.atlas.labels",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'vitrail.atlas' has no attribute '{name}'")
    return getattr(import_module(_HOMES[name]), name)
