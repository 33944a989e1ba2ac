"""The run's log: one JSON object a line, cut back to the checkpoint on resume.

No line holds a time, so an interrupted run leaves the same log as one that was not.
"""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from vitrail.errors import CheckpointError


class Log:
    """Appends lines; they are on disk after `flush`."""

    def __init__(self, path: Path, *, is_kept: bool = True) -> None:
        """Open a log that may already have lines.

        Args:
            path: made if missing.
            is_kept: False for a rank that leaves the writing to another.
        """
        self._path, self._is_kept = path, is_kept
        self._path.parent.mkdir(parents=True, exist_ok=True)
        self._path.touch()
        self._waiting: list[str] = []

    def cut(self, num_bytes: int) -> None:
        """Forget everything after the first `num_bytes` bytes.

        Args:
            num_bytes: length that a checkpoint stands for.

        Raises:
            CheckpointError: the log is shorter.
        """
        if self._is_kept:
            if (found := self._path.stat().st_size) < num_bytes:
                raise CheckpointError(
                    f"{self._path}: damaged ({found:,} bytes, the checkpoint counts on {num_bytes:,}); remove "
                    f"{self._path.parent} to start afresh"
                )
            with self._path.open("r+b") as file:
                file.truncate(num_bytes)

    def write(self, values: Mapping[str, Any]) -> None:
        """Add a line.

        Args:
            values: plain values; numbers are rounded to six digits.
        """
        if self._is_kept:
            self._waiting.append(json.dumps(_rounded(dict(values)), allow_nan=False) + "\n")

    def flush(self) -> int:
        """Put the waiting lines on disk.

        Returns:
            length of the log in bytes.
        """
        with self._path.open("ab") as file:
            file.write("".join(self._waiting).encode())
            file.flush()
            os.fsync(file.fileno())
            self._waiting.clear()
            return file.tell()


def _rounded(value: Any) -> Any:
    if isinstance(value, float):
        return float(f"{value:.6g}")
    if isinstance(value, dict):
        return {key: _rounded(inner) for key, inner in value.items()}
    return value
