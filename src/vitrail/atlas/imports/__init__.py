"""Reading what exists: a user's own labels, and atlas releases."""

from vitrail.atlas.imports.checks import check_lines
from vitrail.atlas.imports.column_map import ColumnMap, load_map
from vitrail.atlas.imports.labels import LabelColumns, OwnLabels, read_labels
from vitrail.atlas.imports.release import REPORT_NAME, import_release

__all__ = [
    "REPORT_NAME",
    "ColumnMap",
    "LabelColumns",
    "OwnLabels",
    "check_lines",
    "import_release",
    "load_map",
    "read_labels",
]
