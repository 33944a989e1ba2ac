"""Finished shards: one folder each, whole or not at all, with a marker that holds the hash of every file.

A shard is written under the name of its process and renamed when its bytes are on the disk. A folder under its final
name is a finished shard, whoever made it, in this run or in one that was killed. What stopped a shard is kept as a
record too, since an engine may only say that it failed.
"""

import os
import shutil
import socket
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from pydantic import BaseModel, ValidationError

from vitrail import errors
from vitrail.artifacts import (
    file_sha256,
    make_folder,
    read_json,
    sync_dir,
    sync_file,
    write_json,
)
from vitrail.errors import ArtifactError, RunFailed, VitrailError

MARKER_NAME = "shard.json"


class Marker(BaseModel):
    """What stands in a finished shard's marker.

    Attributes:
        counts: what was counted, unit in the name.
        files: name → sha256.
    """

    counts: dict[str, int]
    files: dict[str, str]


class Failure(BaseModel):
    """What stopped a shard.

    Attributes:
        kind: class of the error.
        message: its text, one line.
    """

    kind: str
    message: str

    def error(self, where: str) -> VitrailError:
        """The error as it was raised, or a `RunFailed` that quotes what no user can mend.

        Args:
            where: which shard, for the message.

        Returns:
            an exception to raise.
        """
        known = getattr(errors, self.kind, None)
        if isinstance(known, type) and issubclass(known, VitrailError):
            return known(self.message)
        return RunFailed(f"{where} failed ({self.kind}: {self.message}); finished shards are kept: run again")


@dataclass(frozen=True)
class Shelf:
    """Where the shards of one run lie.

    Attributes:
        work: folder of the run, seen by every machine.
    """

    work: Path

    def folder(self, number: int) -> Path:
        """Where a finished shard lies, or will.

        Args:
            number: of the shard.

        Returns:
            the folder.
        """
        return self.work / "shards" / f"{number:05d}"

    def is_finished(self, number: int) -> bool:
        """Whether a shard is there; its bytes are not read.

        Args:
            number: of the shard.

        Returns:
            whether its marker is there.
        """
        return (self.folder(number) / MARKER_NAME).is_file()

    def finished(self, num_shards: int) -> int:
        """How many shards are there.

        Args:
            num_shards: of the run.

        Returns:
            the count.
        """
        return sum(self.is_finished(number) for number in range(num_shards))

    @contextmanager
    def writing(self, number: int) -> Iterator["Writing"]:
        """Write a shard; it is finished when the block ends without an exception, else the failure is recorded.

        Args:
            number: of the shard.

        Yields:
            a folder to fill, and counts.
        """
        final = self.folder(number)
        partial = final.with_name(f".{number:05d}.{socket.gethostname()}.{os.getpid()}.part")
        try:
            make_folder(final.parent)
            shutil.rmtree(partial, ignore_errors=True)
            partial.mkdir()
            writing = Writing(partial)
            yield writing
            _mark(partial, writing.counts)
            shutil.rmtree(final, ignore_errors=True)  # a broken one, or that of a process that was slower to die
            partial.rename(final)
            sync_dir(final.parent)
        except Exception as error:
            shutil.rmtree(partial, ignore_errors=True)
            self._record(number, error)
            raise

    def marker(self, number: int) -> Marker:
        """A finished shard's marker, after its files have been held against it.

        Args:
            number: of the shard.

        Returns:
            the marker.

        Raises:
            ArtifactError: a file is missing or has other bytes than it was written with.

        Cost: all bytes of the shard are read.
        """
        folder = self.folder(number)
        try:
            marker = Marker.model_validate(read_json(folder / MARKER_NAME))
        except ValidationError as error:
            raise ArtifactError(f"{folder / MARKER_NAME}: damaged") from error
        for name, digest in marker.files.items():
            path = folder / name
            if not path.is_file() or file_sha256(path) != digest:
                raise ArtifactError(f"{path}: damaged or missing")
        return marker

    def discard(self, number: int) -> None:
        """Remove a shard, so that it is made again.

        Args:
            number: of the shard.
        """
        shutil.rmtree(self.folder(number), ignore_errors=True)

    def failures(self, num_shards: int) -> Mapping[int, Failure]:
        """What stopped the shards that are not finished, as far as somebody was left to say.

        Args:
            num_shards: of the run.

        Returns:
            shard → failure.
        """
        found = {}
        for number in range(num_shards):
            if self._failure(number).is_file() and not self.is_finished(number):
                found[number] = Failure.model_validate(read_json(self._failure(number)))
        return found

    def begin(self) -> None:
        """Forget failures and half-written shards of earlier attempts."""
        shutil.rmtree(self.work / "failed", ignore_errors=True)
        for partial in (self.work / "shards").glob(".*.part"):
            shutil.rmtree(partial, ignore_errors=True)

    def _failure(self, number: int) -> Path:
        return self.work / "failed" / f"{number:05d}.json"

    def _record(self, number: int, error: Exception) -> None:
        failure = Failure(kind=type(error).__name__, message=" ".join(str(error).split()))
        with suppress(OSError, VitrailError):  # a full disk takes no record either; the error itself goes on
            make_folder(self._failure(number).parent)
            write_json(self._failure(number), failure.model_dump())


@dataclass(frozen=True)
class Writing:
    """A shard while it is being written.

    Attributes:
        folder: its files go here.
        counts: what its marker will count.
    """

    folder: Path
    counts: dict[str, int] = field(default_factory=dict)


def _mark(folder: Path, counts: dict[str, int]) -> None:
    files = sorted(folder.iterdir())
    for path in files:
        sync_file(path)
    marker = Marker(counts=counts, files={path.name: file_sha256(path) for path in files})
    write_json(folder / MARKER_NAME, marker.model_dump())
