"""Stages: one directory to be made, that appears whole or not at all.

A stage knows what it will be made from (kind, settings, ids of its inputs). If its directory already says
the same, it is done. Otherwise its files go to a hidden directory beside it, which is flushed, described
by a manifest, and renamed into place; a stale one is moved aside first and removed after. Long stages
keep what an interrupted attempt had finished in `Writing.work`, which is theirs as long as nothing that
enters the fingerprint changes.
"""

import contextlib
import fcntl
import os
import platform
import shutil
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from vitrail.artifacts.files import disk_full_is_clear, file_sha256, make_folder, sync_dir, sync_file, write_json
from vitrail.artifacts.manifest import (
    FORMAT_VERSION,
    MANIFEST_NAME,
    PROVENANCE_NAME,
    InputRef,
    Manifest,
    canonical,
    content_id,
    read_manifest,
)
from vitrail.errors import ArtifactError, RunFailed

_OUTSIDE_ID = frozenset({MANIFEST_NAME, PROVENANCE_NAME})
_VERSIONED = ("vitrail", "numpy", "torch", "tokenizers", "pyarrow", "faiss-cpu", "scikit-learn")


@dataclass(frozen=True)
class Writing:
    """An artifact while it is being written.

    Attributes:
        dir: content files go here.
        work: scratch that survives an interruption, for stages that resume; deleted on success.
        counts: what the manifest will count, unit in the name.
    """

    dir: Path
    work: Path
    counts: dict[str, int] = field(default_factory=dict)


class Stage:
    """One artifact directory, already there or still to be written (design §8)."""

    def __init__(self, out: Path, kind: str, settings: Mapping[str, Any], inputs: Mapping[str, Path]) -> None:
        """Look at the place and the inputs; nothing is written.

        Args:
            out: the directory that the artifact has or will have.
            kind: what it holds.
            settings: the resolved configuration, plain JSON values.
            inputs: name → artifact directory it is made from.

        Raises:
            ArtifactError: an input is not an artifact, or `out` holds something that must not be replaced.
        """
        self.out = out.resolve()  # behind a link: the link stays, and paths to inputs count from the true place
        self.kind = kind
        self._settings: dict[str, Any] = dict(settings)
        self._inputs = {name: Path(path).resolve() for name, path in sorted(inputs.items())}
        self._input_ids = {name: read_manifest(path).id for name, path in self._inputs.items()}
        self._found = _replaceable(self.out, kind)

    @property
    def fingerprint(self) -> str:
        """Hash of everything that decides the result: kind, version, settings, ids of the inputs."""
        return content_id(self._recipe())

    @property
    def is_done(self) -> bool:
        """Whether the directory was made by the same recipe; otherwise it is missing or stale."""
        if self._found is None:
            return False
        found = self._found
        ids = {name: ref.id for name, ref in found.inputs.items()}
        made_by = _recipe(found.kind, found.version, found.settings, ids)
        return canonical(made_by) == canonical(self._recipe())

    @contextlib.contextmanager
    def write(self) -> Iterator[Writing]:
        """Write the artifact; it takes its place when the block ends without an exception.

        Yields:
            the places to write to.

        Raises:
            ArtifactError: the place cannot be written to.
            RunFailed: the disk is full, or another process is writing the same artifact.
        """
        started = time.monotonic()
        hidden = self.out.with_name(f".{self.out.name}.new")
        work = self.out.with_name(f".{self.out.name}.work-{self.fingerprint[:16]}")
        with disk_full_is_clear(self.out), _locked(hidden):
            try:
                _empty(hidden)
                work.mkdir(exist_ok=True)
                writing = Writing(dir=hidden, work=work)
                yield writing
                manifest = self._describe(writing)
                write_json(hidden / MANIFEST_NAME, manifest.model_dump())
                write_json(hidden / PROVENANCE_NAME, _provenance(time.monotonic() - started))
                self._swap(hidden)
                self._found = manifest
            except BaseException:
                shutil.rmtree(hidden, ignore_errors=True)
                with contextlib.suppress(OSError):
                    work.rmdir()  # only if nothing in it is worth keeping
                raise
        for scratch in self.out.parent.glob(f".{self.out.name}.work-*"):
            shutil.rmtree(scratch, ignore_errors=True)

    def _recipe(self) -> dict[str, Any]:
        return _recipe(self.kind, FORMAT_VERSION, self._settings, self._input_ids)

    def _describe(self, writing: Writing) -> Manifest:
        files = {}
        for path in sorted(writing.dir.rglob("*")):
            name = path.relative_to(writing.dir).as_posix()
            if path.is_file() and name not in _OUTSIDE_ID:
                sync_file(path)
                files[name] = file_sha256(path)
        refs = {
            name: InputRef(id=self._input_ids[name], path=Path(os.path.relpath(path, self.out)).as_posix())
            for name, path in self._inputs.items()
        }
        return Manifest(
            kind=self.kind,
            version=FORMAT_VERSION,
            id=content_id({**self._recipe(), "files": files}),
            inputs=refs,
            settings=self._settings,
            counts=dict(writing.counts),
            files=files,
        )

    def _swap(self, hidden: Path) -> None:
        for folder in (*(path for path in hidden.rglob("*") if path.is_dir()), hidden):
            sync_dir(folder)
        old = self.out.with_name(f".{self.out.name}.old")
        shutil.rmtree(old, ignore_errors=True)
        if self.out.exists():
            self.out.rename(old)
        hidden.rename(self.out)
        sync_dir(self.out.parent)
        shutil.rmtree(old, ignore_errors=True)


def _recipe(kind: str, version: int, settings: Mapping[str, Any], input_ids: Mapping[str, str]) -> dict[str, Any]:
    return {"kind": kind, "version": version, "settings": dict(settings), "inputs": dict(input_ids)}


def _replaceable(out: Path, kind: str) -> Manifest | None:
    """The artifact of this kind at `out`; None where nothing is; anything else must not be overwritten."""
    if not out.exists():
        return None
    if not out.is_dir():
        raise ArtifactError(f"{out}: is a file; name a directory for the {kind}")
    if not any(out.iterdir()):
        return None
    try:
        return read_manifest(out, kind)
    except ArtifactError as error:
        raise ArtifactError(f"{error}; nothing was overwritten: name another directory, or empty this one") from error


@contextlib.contextmanager
def _locked(folder: Path) -> Iterator[None]:
    make_folder(folder)
    handle = os.open(folder, os.O_RDONLY)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise RunFailed(f"{folder}: another process is writing this artifact; wait for it or stop it") from error
        if not _is_at(handle, folder):  # a writer that finishes renames the folder, and the lock goes with it
            raise RunFailed(f"{folder}: another process finished this artifact just now; run again")
        yield
    finally:
        os.close(handle)


def _is_at(handle: int, folder: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(handle), folder.stat())
    except FileNotFoundError:
        return False


def _empty(folder: Path) -> None:
    for entry in folder.iterdir():
        if entry.is_dir() and not entry.is_symlink():
            shutil.rmtree(entry)
        else:
            entry.unlink()


def _provenance(wall_s: float) -> dict[str, Any]:
    return {
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        "wall_s": round(wall_s, 3),
        "host": platform.node(),
        "platform": platform.platform(),
        "arguments": [word.encode("utf-8", "replace").decode() for word in sys.argv],
        "versions": {"python": platform.python_version(), **_versions()},
    }


def _versions() -> dict[str, str]:
    found = {}
    for name in _VERSIONED:
        with contextlib.suppress(PackageNotFoundError):
            found[name] = version(name)
    return found
