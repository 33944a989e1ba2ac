"""Files that are whole or absent: written beside their place, flushed to disk, renamed into it.

JSON is written in one canonical form (sorted keys, UTF-8, a final newline), so that equal values are
equal bytes.
"""

import contextlib
import errno
import glob
import hashlib
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from vitrail.errors import ArtifactError, RunFailed, VitrailError

_DISK_FULL = frozenset({errno.ENOSPC, errno.EDQUOT})
_READ_ONLY = frozenset({errno.EROFS})


def atomic_write_bytes(path: Path, data: bytes) -> None:
    """Write a file that other processes see whole or not at all, even after a crash.

    Args:
        path: where; an existing file is replaced.
        data: its content.

    Raises:
        RunFailed: the disk is full; an existing file is left as it was.
        ArtifactError: the place cannot be written to.
    """
    partial = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        with write_faults_are_clear(path):
            _write_synced(partial, data)
            partial.replace(path)
    except OSError as error:
        raise ArtifactError(f"{path}: cannot be written ({error.strerror}); name another place") from error
    finally:
        _remove_partials(path)
    sync_dir(path.parent)


def write_json(path: Path, value: Any) -> None:
    """Write a value as canonical JSON, atomically.

    Args:
        path: where.
        value: plain values only; NaN and infinities are refused, since JSON has none.

    Raises:
        RunFailed: the disk is full.
        ArtifactError: the place cannot be written to.
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
    except (ValueError, RecursionError) as error:
        raise ArtifactError(f"{path}: damaged JSON ({error}); build the artifact again") from error


@contextlib.contextmanager
def write_faults_are_clear(path: Path) -> Iterator[None]:
    """Turn the system's "no space left" and "read-only" into one line that says what to do.

    Args:
        path: what was being written, for the message.

    Yields:
        nothing.

    Raises:
        RunFailed: the disk (or the quota) is full.
        ArtifactError: the file system is read-only.
    """
    try:
        yield
    except Exception as error:
        if isinstance(error, _DiskFull | _ReadOnly) and not _belongs(error.path, path.absolute()):
            raise  # another place, as of a cache
        if _is_one_of(error, _DISK_FULL):
            raise _disk_full(path) from error
        if _is_one_of(error, _READ_ONLY):
            raise _read_only(path) from error
        raise


def make_folder(path: Path) -> None:
    """Make a folder and those above it, unless they are there; behind a link to nothing, its target.

    Args:
        path: the folder.

    Raises:
        ArtifactError: a file is in the way, or the place cannot be written to.
        RunFailed: the disk is full.
    """
    try:
        path.resolve().mkdir(parents=True, exist_ok=True)
    except OSError as error:
        if _is_one_of(error, _DISK_FULL):
            raise _disk_full(path) from error
        if _is_one_of(error, _READ_ONLY):
            raise _read_only(path) from error
        raise ArtifactError(f"{path}: cannot be made ({error.strerror}); name another place") from error


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


def _is_one_of(error: Exception, codes: frozenset[int]) -> bool:
    """Whether a fault is one of the system's, or one that tells of it: of a library (FAISS, safetensors), or ours."""
    if isinstance(error, OSError) and error.errno in codes:
        return True
    if isinstance(error, VitrailError) and isinstance(error.__cause__, Exception):
        return _is_one_of(error.__cause__, codes)
    return any(os.strerror(code) in str(error) for code in codes)


def _belongs(place: Path, path: Path) -> bool:
    """Whether a place is a path, above it, below it, or of the hidden ones beside it where it is made."""
    if path.is_relative_to(place):
        return True
    if not place.is_relative_to(path.parent):
        return False
    first = place.relative_to(path.parent).parts[0]
    return first == path.name or first.startswith(f".{path.name}.")


class _DiskFull(RunFailed):
    """No space left; `path` is where."""

    path = Path()


class _ReadOnly(ArtifactError):
    """A place that cannot be written to; `path` is where."""

    path = Path()


def _read_only(path: Path) -> ArtifactError:
    error = _ReadOnly(f"{path}: the file system is read-only; name another place")
    error.path = path.absolute()
    return error


def _disk_full(path: Path) -> RunFailed:
    error = _DiskFull(f"{path}: the disk is full; free some space and run again, finished work is kept")
    error.path = path.absolute()
    return error


def _write_synced(path: Path, data: bytes) -> None:
    with path.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def _remove_partials(path: Path) -> None:
    """Remove this process's unfinished copy of a file, and those of processes that were killed."""
    for partial in path.parent.glob(f".{glob.escape(path.name)}.*.part"):
        process = partial.name.split(".")[-2]
        if process == str(os.getpid()) or not _is_running(process):
            with contextlib.suppress(OSError):
                partial.unlink()


def _is_running(process: str) -> bool:
    try:
        os.kill(int(process), 0)
    except (ProcessLookupError, ValueError):
        return False
    except OSError:
        return True  # another user's
    return True
