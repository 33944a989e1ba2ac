"""Explain an answer: which inputs, which concepts, which training text (design §5, §6.1)."""

from vitrail.explain.bm25 import bm25_scores
from vitrail.explain.certificate import certify
from vitrail.explain.concepts import Decomposition, HeadShare, decompose_tokens
from vitrail.explain.document import Certificate, Document, Overlap, SourceHit
from vitrail.explain.explanation import ExplainSettings, Explanation, chunk_spans, explain
from vitrail.explain.index import IndexSettings, build_index
from vitrail.explain.inputs import InputScores, integrated_gradients, score_inputs
from vitrail.explain.parts import sources_part
from vitrail.explain.render import render
from vitrail.explain.snapshots import Snapshot, snapshots_of, target_hidden
from vitrail.explain.sources import Hit, Index, Recall, best_overlap, span_means
from vitrail.explain.transducer import Transducer, fit_transducer

__all__ = [
    "Certificate",
    "Decomposition",
    "Document",
    "ExplainSettings",
    "Explanation",
    "HeadShare",
    "Hit",
    "Index",
    "IndexSettings",
    "InputScores",
    "Overlap",
    "Recall",
    "Snapshot",
    "SourceHit",
    "Transducer",
    "best_overlap",
    "bm25_scores",
    "build_index",
    "certify",
    "chunk_spans",
    "decompose_tokens",
    "explain",
    "fit_transducer",
    "integrated_gradients",
    "render",
    "score_inputs",
    "snapshots_of",
    "sources_part",
    "span_means",
    "target_hidden",
]
