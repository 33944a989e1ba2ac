"""The page a demo leaves behind: one self-contained HTML file that opens from disk (§6, §7).

`write_report(out, ReportData(...))` renders everything a stranger should see: an answer read through
its concepts, steering side by side, the measured figures with their aims, the library, and the lineage.
Nothing is loaded from another host; text from the model or the corpus is never markup.
"""

from vitrail.demo.report.data import (
    ConceptCard,
    LineageEntry,
    ReportData,
    ReportMeta,
    SteeringPair,
    TrainingPoint,
)
from vitrail.demo.report.figures import Aim, aims
from vitrail.demo.report.page import write_report

__all__ = [
    "Aim",
    "ConceptCard",
    "LineageEntry",
    "ReportData",
    "ReportMeta",
    "SteeringPair",
    "TrainingPoint",
    "aims",
    "write_report",
]
