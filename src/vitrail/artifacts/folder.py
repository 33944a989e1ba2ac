"""A directory that is no artifact of ours (a checkpoint for others), and yet appears whole or not at all."""

import contextlib
import shutil
from collections.abc import Iterator
from pathlib import Path

from vitrail.artifacts.files import sync_dir, sync_file, write_faults_are_clear
from vitrail.artifacts.stage import locked
from vitrail.errors import ArtifactError


@contextlib.contextmanager
def new_folder(out: Path) -> Iterator[Path]:
    """Fill a directory; it takes its place when the block ends without an exception.

    Args:
        out: the directory; must not exist, or be empty.

    Yields:
        a hidden directory beside it, where the files go.

    Raises:
        ArtifactError: something is there already, or the place cannot be written to.
        RunFailed: the disk is full, or another process is writing there.
    """
    out = out.resolve()
    if out.exists() and not (out.is_dir() and not any(out.iterdir())):
        raise ArtifactError(f"{out}: is there already; name a new directory, or empty this one")
    hidden = out.with_name(f".{out.name}.new")
    with write_faults_are_clear(out), locked(out.with_name(f".{out.name}.lock"), out):
        shutil.rmtree(hidden, ignore_errors=True)  # of a killed attempt
        hidden.mkdir()
        try:
            yield hidden
            for path in hidden.rglob("*"):
                sync_dir(path) if path.is_dir() else sync_file(path)
            sync_dir(hidden)
            hidden.replace(out)
            sync_dir(out.parent)
        except BaseException:
            shutil.rmtree(hidden, ignore_errors=True)
            raise
