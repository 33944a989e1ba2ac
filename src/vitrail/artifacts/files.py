"""Files that are whole or absent: written beside their place, flushed to disk, renamed into it.

JSON is written in one canonical form (sorted keys, UTF-8, a final newline), so that equal values are
equal bytes.
"""

import contextlib
import errno
import hashlib
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from vitrail.errors import ArtifactError, RunFailed

_DISK_FULL = frozenset({errno.ENOSPC, errno.EDQUOT})


def atomic_write_bytes(path: Path, data: bytes) -> None:
    """Write a file that other processes see whole or not at all, even after a crash.

    Args:
        path: where; an existing file is replaced.
        data: its content.

    Raises:
        RunFailed: the disk is full; an existing file is left as it was.
    """
    partial = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        with disk_full_is_clear(path), partial.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise
    sync_dir(path.parent)


def write_json(path: Path, value: Any) -> None:
    """Write a value as canonical JSON, atomically.

    Args:
        path: where.
        value: plain values only; NaN and infinities are refused, since JSON has none.

    Raises:
        RunFailed: the disk is full.
    """
    text = json.dumps(value, ensure_ascii=False, indent=1, sort_keys=True, allow_nan=False)
    atomic_write_bytes(path, (text + "\n").encode())


def read_json(path: Path) -> Any:
    """The value in a JSON file.

    Args:
        path: the file.

    Returns:
        its plain value.

    Raises:
        ArtifactError: missing, unreadable, or not JSON.
    """
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ArtifactError(f"{path}: {error.strerror}; name an existing artifact or build it again") from error
    except ValueError as error:
        raise ArtifactError(f"{path}: damaged JSON ({error}); build the artifact again") from error


@contextlib.contextmanager
def disk_full_is_clear(path: Path) -> Iterator[None]:
    """Turn the system's "no space left" into one line that says what to do.

    Args:
        path: what was being written, for the message.

    Yields:
        nothing.

    Raises:
        RunFailed: the disk (or the quota) is full.
    """
    try:
        yield
    except Exception as error:
        if not is_disk_full(error):
            raise
        raise RunFailed(f"{path}: the disk is full; free some space and run again, finished work is kept") from error


def make_folder(path: Path) -> None:
    """Make a folder and those above it, unless they are there; behind a link to nothing, its target.

    Args:
        path: the folder.

    Raises:
        ArtifactError: a file is in the way, or the place cannot be written to.
    """
    try:
        path.resolve().mkdir(parents=True, exist_ok=True)
    except OSError as error:
        if is_disk_full(error):
            raise
        raise ArtifactError(f"{path}: cannot be made ({error.strerror}); name another place") from error


def is_disk_full(error: Exception) -> bool:
    """Whether a fault means that the disk, or the user's share of it, is full.

    Args:
        error: the system's own, or that of a library which only quotes it (FAISS, safetensors).

    Returns:
        true for "no space left" and "quota exceeded".
    """
    if isinstance(error, OSError) and error.errno in _DISK_FULL:
        return True
    return any(os.strerror(code) in str(error) for code in _DISK_FULL)


def file_sha256(path: Path) -> str:
    """Hash of a file's bytes.

    Args:
        path: the file.

    Returns:
        64 hexadecimal digits.
    """
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def sync_file(path: Path) -> None:
    """Wait until a file's bytes are on the disk.

    Args:
        path: the file.
    """
    with path.open("rb") as file:
        os.fsync(file.fileno())


def sync_dir(path: Path) -> None:
    """Wait until a directory's entries (creations and renames) are on the disk.

    Args:
        path: the directory.
    """
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
