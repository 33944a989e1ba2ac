"""Which shard holds which sequences: global numbers of sequences, and of those of one group.

`shards.parquet` has one row for each split, shard and group, in this order: `split`, `shard`, `group`, `sequences`.
Sequences are numbered through in the same order, so a group's are a few stretches, found by a binary search.
"""

from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from jaxtyping import Int64

from vitrail.errors import ArtifactError
from vitrail.packed.documents import PACKED_SPLITS

INDEX_NAME = "shards.parquet"
_SCHEMA = pa.schema([("split", pa.string()), ("shard", pa.int32()), ("group", pa.string()), ("sequences", pa.int64())])


def write_index(folder: Path, shards: Sequence[Mapping[str, Mapping[str, int]]]) -> None:
    """Write what each shard holds.

    Args:
        folder: of the artifact.
        shards: split → group → sequences, of each shard.
    """
    rows = [
        {"split": split, "shard": number, "group": group, "sequences": count}
        for split in PACKED_SPLITS
        for number, shard in enumerate(shards)
        for group, count in sorted(shard[split].items())
    ]
    pq.write_table(pa.Table.from_pylist(rows, schema=_SCHEMA), folder / INDEX_NAME, compression="zstd")


class SplitIndex:
    """Numbers of the sequences of one split."""

    def __init__(
        self, shard: Int64[np.ndarray, " E"], group: Sequence[str], sequences: Int64[np.ndarray, " E"]
    ) -> None:
        """Hold E stretches of sequences.

        Args:
            shard: of each stretch; ascending.
            group: of each.
            sequences: how many each has.
        """
        self._shard, self._group, self._sequences = shard, list(group), sequences
        self._stops = np.cumsum(sequences)
        self._starts = self._stops - sequences
        first = np.searchsorted(shard, shard)  # the first stretch of the same shard
        self._shard_starts = self._starts[first]

    @property
    def num_sequences(self) -> int:
        """S."""
        return int(self._sequences.sum())

    @cached_property
    def groups(self) -> dict[str, int]:
        """Sequences of each group, by name."""
        return {name: int(self._sequences[stretches].sum()) for name, stretches in self._stretches.items()}

    def locate(self, rows: Int64[np.ndarray, " n"]) -> tuple[Int64[np.ndarray, " n"], Int64[np.ndarray, " n"]]:
        """Where sequences lie.

        Args:
            rows: global numbers.

        Returns:
            shard of each, and place in it.
        """
        stretch = np.searchsorted(self._stops, rows, side="right")
        return self._shard[stretch], rows - self._shard_starts[stretch]

    def groups_of(self, rows: Int64[np.ndarray, " n"]) -> list[str]:
        """Groups of sequences.

        Args:
            rows: global numbers.

        Returns:
            the name of each one's group.
        """
        return [self._group[stretch] for stretch in np.searchsorted(self._stops, rows, side="right").tolist()]

    def rows_of(self, group: str, places: Int64[np.ndarray, " n"]) -> Int64[np.ndarray, " n"]:
        """Global numbers of sequences of a group.

        Args:
            group: its name.
            places: 0, 1, … within the group.

        Returns:
            the number of each.
        """
        stretches = self._stretches[group]
        stops = self._group_stops[group]
        at = np.searchsorted(stops, places, side="right")
        before = stops[at] - self._sequences[stretches][at]
        rows: Int64[np.ndarray, " n"] = self._starts[stretches][at] + places - before
        return rows

    @cached_property
    def _stretches(self) -> dict[str, np.ndarray]:
        found: dict[str, list[int]] = {}
        for number, name in enumerate(self._group):
            found.setdefault(name, []).append(number)
        return {name: np.array(found[name]) for name in sorted(found)}

    @cached_property
    def _group_stops(self) -> dict[str, np.ndarray]:
        return {name: np.cumsum(self._sequences[stretches]) for name, stretches in self._stretches.items()}


def read_index(folder: Path) -> dict[str, SplitIndex]:
    """Read what each shard holds.

    Args:
        folder: of the artifact.

    Returns:
        split → numbers of its sequences.

    Raises:
        ArtifactError: missing or damaged.
    """
    path = folder / INDEX_NAME
    try:
        with pq.ParquetFile(path) as file:
            table = file.read(_SCHEMA.names)
    except (OSError, pa.ArrowException) as error:
        raise ArtifactError(f"{path}: damaged or missing ({error}); pack the corpus again") from error
    split = np.array(table["split"].to_pylist(), dtype=object)
    found = {}
    for name in PACKED_SPLITS:
        rows = np.flatnonzero(split == name)
        part = table.take(rows)
        found[name] = SplitIndex(
            part["shard"].to_numpy().astype(np.int64), part["group"].to_pylist(), part["sequences"].to_numpy()
        )
    return found
