"""The atlas: tags, clusters, concepts with cards, annotator, annotated corpus, judge (§4)."""

from vitrail.atlas.annotated import AnnotatedCorpus, Chunk, annotate_corpus
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
