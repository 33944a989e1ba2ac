"""Stages: one directory to be made, that appears whole or not at all.

A stage knows what it will be made from (kind, settings, ids of its inputs). If its directory already says
the same and lacks no file, it is done. Otherwise its files go to a hidden directory beside it, which is
flushed, described by a manifest, and renamed into place; a stale one is moved aside first and removed after.
Long stages keep what an interrupted attempt had finished in `Writing.work`, which is theirs as long as nothing
that enters the fingerprint changes. All of that happens under a lock, a hidden file that is gone afterwards.
"""

import contextlib
import fcntl
import glob
import logging
import os
import platform
import shutil
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from vitrail.artifacts.files import file_sha256, make_folder, sync_dir, sync_file, write_faults_are_clear, write_json
from vitrail.artifacts.manifest import (
    FORMAT_VERSION,
    MANIFEST_NAME,
    PROVENANCE_NAME,
    InputRef,
    Manifest,
    canonical,
    content_id,
    damage,
    read_manifest,
)
from vitrail.errors import ArtifactError, RunFailed

_VERSIONED = ("vitrail", "numpy", "torch", "tokenizers", "pyarrow", "faiss-cpu", "scikit-learn")

logger = logging.getLogger("vitrail.artifacts")


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

    def __init__(
        self,
        out: Path,
        kind: str,
        settings: Mapping[str, Any],
        inputs: Mapping[str, Path],
        *,
        later: Sequence[str] = (),
    ) -> None:
        """Look at the place and the inputs; nothing is written.

        Args:
            out: the directory that the artifact has or will have.
            kind: what it holds.
            settings: the resolved configuration, plain JSON values.
            inputs: name → artifact directory it is made from.
            later: names of files that may be put into the finished directory, and are replaced with it.

        Raises:
            ArtifactError: an input is not an artifact, or `out` holds something that must not be replaced.
        """
        self.out = out.resolve()  # behind a link: the link stays, and paths to inputs count from the true place
        self.kind = kind
        self._settings: dict[str, Any] = dict(settings)
        self._inputs = {name: Path(path).resolve() for name, path in sorted(inputs.items())}
        self._input_ids = {name: read_manifest(path).id for name, path in self._inputs.items()}
        self._outside = {MANIFEST_NAME, PROVENANCE_NAME, *later}
        self._found, self._damage = self._look()

    @property
    def fingerprint(self) -> str:
        """Hash of everything that decides the result: kind, version, settings, ids of the inputs."""
        return content_id(self._recipe())

    @property
    def is_done(self) -> bool:
        """Whether the directory was made by the same recipe; otherwise it is missing, stale or damaged."""
        if self._found is None or self._damage:
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
            ArtifactError: the place cannot be written to, or holds a file that is not the artifact's.
            RunFailed: the disk is full, or another process is writing the same artifact, or just did.
        """
        started, was_done = time.monotonic(), self.is_done
        hidden, work = self._beside("new"), self._beside(f"work-{self.fingerprint[:16]}")
        with write_faults_are_clear(self.out), locked(self._beside("lock"), self.out):
            self._tidy()
            self._found, self._damage = self._look()
            if self.is_done and not was_done:
                raise RunFailed(f"{self.out}: another process finished this artifact just now; run again")
            self._require_own()
            if self._damage:
                logger.warning("%s/%s; the %s is built again", self.out, self._damage, self.kind)
            try:
                hidden.mkdir()
                work.mkdir(exist_ok=True)
                writing = Writing(dir=hidden, work=work)
                yield writing
                manifest = self._describe(writing)
                write_json(hidden / MANIFEST_NAME, manifest.model_dump())
                write_json(hidden / PROVENANCE_NAME, _provenance(time.monotonic() - started))
                self._swap(hidden)
                self._found, self._damage = manifest, ""
            except BaseException:
                shutil.rmtree(hidden, ignore_errors=True)
                with contextlib.suppress(OSError):
                    work.rmdir()  # only if nothing in it is worth keeping
                raise
            for scratch in self.out.parent.glob(f".{glob.escape(self.out.name)}.work-*"):
                shutil.rmtree(scratch, ignore_errors=True)

    def _beside(self, what: str) -> Path:
        return self.out.with_name(f".{self.out.name}.{what}")

    def _tidy(self) -> None:
        """Undo what a killed attempt left behind: half-written files, and an old artifact that was moved aside."""
        old, hidden = self._beside("old"), self._beside("new")
        if old.exists() and not self.out.exists():
            old.rename(self.out)
        for leftover in (old, hidden):
            if leftover.exists():
                shutil.rmtree(leftover)

    def _look(self) -> tuple[Manifest | None, str]:
        """What is at the place, and what is wrong with it."""
        found = _replaceable(self.out, self.kind)
        return found, damage(self.out, found) if found else ""

    def _require_own(self) -> None:
        """Refuse to replace a directory into which somebody put a file: it would be lost."""
        own = self._outside | (self._found.files.keys() if self._found else set())
        for path in sorted(self.out.rglob("*")):
            name = path.relative_to(self.out).as_posix()
            if path.is_file() and name not in own and not path.name.startswith("."):
                raise ArtifactError(
                    f"{path}: is no part of the {self.kind}, which is to be replaced; move it, or name another place"
                )

    def _recipe(self) -> dict[str, Any]:
        return _recipe(self.kind, FORMAT_VERSION, self._settings, self._input_ids)

    def _describe(self, writing: Writing) -> Manifest:
        files, sizes = {}, {}
        for path in sorted(writing.dir.rglob("*")):
            name = path.relative_to(writing.dir).as_posix()
            if path.is_file() and name not in (MANIFEST_NAME, PROVENANCE_NAME):
                sync_file(path)
                files[name] = file_sha256(path)
                sizes[name] = path.stat().st_size
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
            sizes=sizes,
        )

    def _swap(self, hidden: Path) -> None:
        for folder in (*(path for path in hidden.rglob("*") if path.is_dir()), hidden):
            sync_dir(folder)
        old = self._beside("old")
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
def locked(lock: Path, out: Path) -> Iterator[None]:
    """Hold the lock of a place; it ends with the process, however that ends.

    Args:
        lock: the lock's file.
        out: what it is for, in messages.

    Yields:
        while nobody else holds it.

    Raises:
        ArtifactError: the place cannot be written to.
        RunFailed: another process holds it.
    """
    make_folder(lock.parent)
    handle = _lock(lock, out)
    try:
        yield
    finally:
        with contextlib.suppress(OSError):
            lock.unlink()
        os.close(handle)


def _lock(lock: Path, out: Path) -> int:
    while True:
        try:
            handle = os.open(lock, os.O_RDONLY | os.O_CREAT, 0o666)
        except PermissionError as error:
            raise ArtifactError(f"{out}: cannot be made ({error.strerror}); name another place") from error
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            os.close(handle)
            raise RunFailed(f"{out}: another process is writing this artifact; wait for it or stop it") from error
        if _is_at(handle, lock):
            return handle
        os.close(handle)  # its last holder removed it before we had it


def _is_at(handle: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(handle), path.stat())
    except FileNotFoundError:
        return False


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
