"""The published concept labels: search, groups and label texts.

One table for both heads: known concepts have their own ids, discovered ones continue after them. A lookup
goes by id alone, so a label's prefix tells the head of the row, not the head that was asked for.
"""

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq

from vitrail.errors import ArtifactError, ConceptNotFound

PATH_VARIABLE = "STEERLING_CONCEPTS_PATH"
_LEGACY_ID = "concept_idx"
_FLAGS = ("is_steerable", "is_tone", "is_alignment", "is_demographic")
_CSV = pyarrow.csv.ConvertOptions(null_values=[""])
"""`N/A` is a group name that occurs, not an absent value."""
_NAME_POINTS, _DESCRIPTION_POINTS = 3, 1

Head = Literal["known", "unknown"]
Kind = Literal["known", "discovered"]


@dataclass(frozen=True)
class ConceptRecord:
    """One row of the labels.

    Attributes:
        concept_id: global id.
        name: short text.
        description: longer text.
        head: `known` or `unknown`, as in the file.
        group_id: group for steering, or None.
        group_name: its name, or None.
        is_steerable: whether searches show it by default.
        is_tone: whether it is one of tone.
        is_alignment: whether it is relevant to alignment.
        is_demographic: whether it refers to a demographic group.
    """

    concept_id: int
    name: str
    description: str
    head: str
    group_id: int | None
    group_name: str | None
    is_steerable: bool
    is_tone: bool
    is_alignment: bool
    is_demographic: bool


class ConceptCatalog:
    """The rows of a label file, in its order."""

    def __init__(self, records: Sequence[ConceptRecord]) -> None:
        """Hold records.

        Args:
            records: in the order of the file.
        """
        self.records = tuple(records)
        self._by_id = {record.concept_id: record for record in records}

    @classmethod
    def load(cls, path: str | Path | None = None) -> "ConceptCatalog":
        """Read a label file.

        Args:
            path: `concept_labels.parquet`, or a CSV of the older form (`concept_idx`); None takes the
                environment variable STEERLING_CONCEPTS_PATH.

        Returns:
            the catalog.

        Raises:
            ArtifactError: no path, or a file that is missing, damaged or lacks a column.
        """
        path = path or os.environ.get(PATH_VARIABLE)
        if not path:
            raise ArtifactError(f"no concept labels: give a path, or set {PATH_VARIABLE} to a concept_labels.parquet")
        table = _read(Path(path))
        try:
            return cls([_record(row) for row in table.to_pylist()])
        except (KeyError, TypeError, ValueError) as error:
            raise ArtifactError(
                f"{path}: not a table of concept labels ({error}); see concept_labels.parquet"
            ) from error

    def __len__(self) -> int:
        return len(self.records)

    def get(self, concept_id: int) -> ConceptRecord:
        """One row.

        Args:
            concept_id: global id.

        Returns:
            the row.

        Raises:
            ConceptNotFound: no such id.
        """
        if concept_id not in self._by_id:
            raise ConceptNotFound(f"concept labels: no concept {concept_id} among {len(self)}")
        return self._by_id[concept_id]

    def search(
        self, query: str, *, limit: int = 10, head: Head | None = "known", steerable_only: bool = True
    ) -> list[ConceptRecord]:
        """Concepts whose name or description holds the words of a query.

        Args:
            query: words, compared whole and without case; a match in the name counts three times.
            limit: how many at most.
            head: rows of one head, or None for both.
            steerable_only: leave out rows that are not steerable.

        Returns:
            best first, ties in the order of the file; rows without a match are left out.
        """
        terms = [re.compile(rf"\b{re.escape(term)}\b") for term in query.lower().split()]
        wanted = [
            record
            for record in self.records
            if (head is None or record.head == head) and (record.is_steerable or not steerable_only)
        ]
        scores = {record.concept_id: _score(record, terms) for record in wanted}
        found = [record for record in wanted if scores[record.concept_id]]
        return sorted(found, key=lambda record: -scores[record.concept_id])[:limit]

    def group(self, concept_id: int) -> list[ConceptRecord]:
        """A concept and those of its group.

        Args:
            concept_id: global id.

        Returns:
            itself first, then the other rows of the group; only itself where it has no group.

        Raises:
            ConceptNotFound: no such id.
        """
        record = self.get(concept_id)
        if record.group_id is None:
            return [record]
        return [record, *(other for other in self.records if other is not record and other.group_id == record.group_id)]

    def label(self, concept_id: int, kind: Kind) -> str:
        """A concept as shown to a reader.

        Args:
            concept_id: global id.
            kind: head that was asked for; it tells the prefix only where there is no row.

        Returns:
            such as `Known: Cat breeds` or `Discovered: #99`.
        """
        record = self._by_id.get(concept_id)
        if record is None:
            return f"{kind.capitalize()}: #{concept_id}"
        return f"{'Known' if record.head == 'known' else 'Discovered'}: {record.name}"


def _read(path: Path) -> pa.Table:
    try:
        return pyarrow.csv.read_csv(path, convert_options=_CSV) if path.suffix == ".csv" else pq.read_table(path)
    except (OSError, pa.ArrowInvalid) as error:
        raise ArtifactError(f"{path}: cannot read concept labels ({error})") from error


def _record(row: dict[str, Any]) -> ConceptRecord:
    group = row["public_group_id"]
    return ConceptRecord(
        concept_id=int(row["concept_id"] if "concept_id" in row else row[_LEGACY_ID]),
        name=row["concept_name"] or "",
        description=row["concept_description"] or "",
        head=row["head"],
        # Written through floats, where an absent group may be a null or a NaN.
        group_id=None if group is None or group != group else int(group),
        group_name=row["group_name"] or None,
        **{flag: bool(row[flag]) for flag in _FLAGS},
    )


def _score(record: ConceptRecord, terms: Sequence[re.Pattern[str]]) -> int:
    name, description = record.name.lower(), record.description.lower()
    return sum(
        _NAME_POINTS * len(term.findall(name)) + _DESCRIPTION_POINTS * len(term.findall(description)) for term in terms
    )
