"""The annotator: an encoder of chunks, evidence and heads for concepts (§4.2.3).

Here is what labels; fitting is in `fit`, which needs more.
"""

from vitrail.atlas.annotator.annotator import Annotation, Annotator
from vitrail.atlas.annotator.detector import Detector
from vitrail.atlas.annotator.encoders import ChunkEncoder, MiniLMEncoder, TagsEncoder
from vitrail.atlas.annotator.endpoint import EndpointEncoder
from vitrail.atlas.annotator.heads import Heads
from vitrail.atlas.annotator.storing import TAGS_NAME, make_encoder

__all__ = [
    "TAGS_NAME",
    "Annotation",
    "Annotator",
    "ChunkEncoder",
    "Detector",
    "EndpointEncoder",
    "Heads",
    "MiniLMEncoder",
    "TagsEncoder",
    "make_encoder",
]
