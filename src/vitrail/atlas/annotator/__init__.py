"""The annotator: an encoder of chunks, evidence and heads for concepts (§4.2.3)."""

from vitrail.atlas.annotator.annotator import TAGS_NAME, Annotation, Annotator
from vitrail.atlas.annotator.detector import Detector

__all__ = ["TAGS_NAME", "Annotation", "Annotator", "Detector"]
