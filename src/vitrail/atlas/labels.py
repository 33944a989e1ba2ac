"""Names of a released model's concepts: `concept_labels.parquet`, or numbers where there is none.

The release numbers all concepts in one row: known ones 0 to C-1, then the discovered ones ("unknown" in the file)
from C on. A library counts each head from 0.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from vitrail.atlas.library import LIBRARY_NAME, Card, ConceptLibrary, Head
from vitrail.errors import ArtifactError, CheckpointError

LABELS_NAME = "concept_labels.parquet"

_HEADS: Mapping[str, Head] = {"known": "known", "unknown": "discovered"}
_COLUMNS = ("concept_id", "head", "concept_name")
_OPTIONAL = ("concept_description", "group_name", "is_tone", "is_alignment", "is_demographic")
_KINDS = {"is_tone": "tone", "is_alignment": "alignment", "is_demographic": "demographic"}


def load_library(place: Path, num_known: int, num_discovered: int) -> ConceptLibrary:
    """The names of a model's concepts, from whichever file has them.

    Args:
        place: a model directory, or a file: `concepts.parquet` of an atlas or `concept_labels.parquet` of the release.
        num_known: C of the model.
        num_discovered: M of the model.

    Returns:
        the library; numbers for names where a directory has no such file.

    Raises:
        ArtifactError: missing, damaged, or (a CheckpointError) of another model.
    """
    file = place
    if not place.exists():
        raise ArtifactError(f"{place}: no such file; name a table of concepts, or leave it out")
    if place.is_dir():
        files = [place / name for name in (LIBRARY_NAME, LABELS_NAME)]
        file = next((path for path in files if path.is_file()), place)
    if file.is_dir():
        return numbered_library(num_known, num_discovered)
    if _has_labels(file):
        return read_labels(file, num_known, num_discovered)
    library = ConceptLibrary.load(file)
    if library.num_known != num_known:
        raise CheckpointError(
            f"{file}: {library.num_known} known concepts, config.json has {num_known}; "
            "copy the library that the model was trained with"
        )
    return library


def numbered_library(num_known: int, num_discovered: int) -> ConceptLibrary:
    """A library for concepts that nobody named: `#12` and `discovered:#5`.

    Args:
        num_known: C.
        num_discovered: M.

    Returns:
        one card a concept.
    """
    return ConceptLibrary([*_numbered("known", num_known), *_numbered("discovered", num_discovered)])


def read_labels(path: Path, num_known: int, num_discovered: int) -> ConceptLibrary:
    """The library of a released model.

    Args:
        path: the Parquet file: `concept_id` (counted over both heads), `head` (known or unknown), `concept_name`,
            and as far as they are there `concept_description`, `group_name`, `is_tone`, `is_alignment`,
            `is_demographic`.
        num_known: C of the model.
        num_discovered: M of the model.

    Returns:
        one card a concept; those without a row are numbered.

    Raises:
        ArtifactError: missing, damaged, or of another model.
    """
    try:
        with pq.ParquetFile(path) as stored:
            there = set(stored.schema_arrow.names)
            if lacking := [name for name in _COLUMNS if name not in there]:
                raise ValueError(f"no column '{lacking[0]}'")
            rows = stored.read([name for name in (*_COLUMNS, *_OPTIONAL) if name in there]).to_pylist()
        named = [_card(row, num_known) for row in rows if row["concept_name"]]
    except (pa.ArrowException, OSError, ValueError, TypeError, KeyError) as error:
        problem = " ".join(str(error).split())
        raise ArtifactError(f"{path}: not a table of concept labels ({problem}); copy the file again") from error
    counts = {"known": num_known, "discovered": num_discovered}
    for card in named:
        if not 0 <= card.concept_id < counts[card.head]:
            number = card.concept_id + (0 if card.head == "known" else num_known)
            raise ArtifactError(
                f"{path}: concept {number} cannot be {card.head} in a model of {num_known} known and "
                f"{num_discovered} discovered ones; name the labels of this model"
            )
    automatic = numbered_library(num_known, num_discovered).cards
    cards = {(card.head, card.concept_id): card for card in [*automatic, *named]}
    if len(named) != len({(card.head, card.concept_id) for card in named}):
        raise ArtifactError(f"{path}: names one concept twice; copy the file again")
    return ConceptLibrary(list(cards.values()))


def _has_labels(file: Path) -> bool:
    try:
        with pq.ParquetFile(file) as stored:
            return "concept_name" in stored.schema_arrow.names
    except (pa.ArrowException, OSError):
        return False  # the reader of libraries says what is wrong


def _numbered(head: Head, count: int) -> list[Card]:
    prefix = "" if head == "known" else f"{head}:"
    return [_bare_card(head, row, f"{prefix}#{row}", "", "content", ()) for row in range(count)]


def _card(row: Mapping[str, Any], num_known: int) -> Card:
    if row["head"] not in _HEADS:
        raise ValueError(f"unknown head '{row['head']}'")
    head = _HEADS[row["head"]]
    concept_id = int(row["concept_id"]) - (0 if head == "known" else num_known)
    group = row.get("group_name")
    kind = next((kind for column, kind in _KINDS.items() if row.get(column)), "content")
    path = () if group in (None, "", "N/A") else (str(group),)
    return _bare_card(head, concept_id, row["concept_name"], row.get("concept_description") or "", kind, path)


def _bare_card(head: Head, concept_id: int, name: str, description: str, kind: str, path: tuple[str, ...]) -> Card:
    return Card(
        concept_id=concept_id,
        head=head,
        name=name,
        description=description,
        kind=kind,
        words=(),
        lift=(),
        path=path,
        num_chunks=0,
        threshold=0.0,
        is_automatic=True,
    )
