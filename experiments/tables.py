"""Tables of results that grow by one row for each finished run."""

import csv
from collections.abc import Sequence
from pathlib import Path
from typing import Any


def rows_in(path: Path) -> list[dict[str, str]]:
    """The rows that are there already."""
    if not path.exists():
        return []
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def add_row(path: Path, columns: Sequence[str], row: dict[str, Any]) -> None:
    """Add a row; the file is whole or as it was."""
    rows = [*rows_in(path), {name: _short(row.get(name, "")) for name in columns}]
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_suffix(".partial")
    with partial.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, columns, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    partial.replace(path)


def _short(value: Any) -> Any:
    return f"{value:.5g}" if isinstance(value, float) else value
