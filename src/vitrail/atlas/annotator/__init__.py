"""The annotator: an encoder of chunks, evidence and heads for concepts (§4.2.3)."""

from vitrail.atlas.annotator.annotator import Annotation, Annotator
from vitrail.atlas.annotator.detector import Detector
from vitrail.atlas.annotator.encoders import ChunkEncoder, MiniLMEncoder, TagsEncoder
from vitrail.atlas.annotator.endpoint import EndpointEncoder
from vitrail.atlas.annotator.fit import Evidence, FittedAnnotator, fit_annotator
from vitrail.atlas.annotator.heads import Heads
from vitrail.atlas.annotator.storing import TAGS_NAME, make_encoder

__all__ = [
    "TAGS_NAME",
    "Annotation",
    "Annotator",
    "ChunkEncoder",
    "Detector",
    "EndpointEncoder",
    "Evidence",
    "FittedAnnotator",
    "Heads",
    "MiniLMEncoder",
    "TagsEncoder",
    "fit_annotator",
    "make_encoder",
]
