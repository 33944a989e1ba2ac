"""Manifests: what an artifact is, what it was made from, and the id that names its content.

The id is a hash over kind, format version, settings, the inputs' ids and the content files. Time, host
and place stay outside it (`provenance.json`), so that equal work has equal ids anywhere. Input paths are
relative to the artifact, so that a tree of artifacts can be moved as a whole.
"""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError

from vitrail.artifacts.files import file_sha256, read_json
from vitrail.errors import ArtifactError

FORMAT_VERSION = 1
"""Version of the artifact formats; raised when a reader of older ones would misread."""

MANIFEST_NAME = "manifest.json"
PROVENANCE_NAME = "provenance.json"


class InputRef(BaseModel):
    """An artifact that another was made from: its id, and its path relative to that other."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    id: str
    path: str


class Manifest(BaseModel):
    """Description of one artifact directory (design §8).

    Attributes:
        kind: what it holds, such as `corpus` or `packed`.
        version: format version.
        id: hash over content and configuration, 64 hexadecimal digits.
        inputs: name → artifact it was made from.
        settings: the resolved configuration, plain values.
        counts: what was counted while it was made, unit in the name.
        files: relative path → sha256, without the manifest and the provenance.
        sizes: relative path → bytes of the same files; empty where an older vitrail wrote the manifest.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    kind: str
    version: int
    id: str
    inputs: dict[str, InputRef]
    settings: dict[str, Any]
    counts: dict[str, int]
    files: dict[str, str]
    sizes: dict[str, int] = {}


def read_manifest(path: Path, kind: str | None = None) -> Manifest:
    """The manifest of an artifact directory.

    Args:
        path: the directory.
        kind: the kind it must have, or None for any.

    Returns:
        the manifest.

    Raises:
        ArtifactError: no directory, no manifest, damaged, of another kind or of a newer format.
    """
    if not path.is_dir():
        raise ArtifactError(f"{path}: no such directory; name {_an(kind)} built by vitrail")
    if not (path / MANIFEST_NAME).is_file():
        raise ArtifactError(f"{path}: not a vitrail artifact ({MANIFEST_NAME} is missing); name {_an(kind)}")
    values = read_json(path / MANIFEST_NAME)
    version = values.get("version") if isinstance(values, dict) else None
    if isinstance(version, int) and version > FORMAT_VERSION:
        raise ArtifactError(f"{path}: format version {version}, this vitrail reads up to {FORMAT_VERSION}; upgrade it")
    try:
        manifest = Manifest.model_validate(values)
    except ValidationError as error:
        fault = error.errors()[0]
        where = ".".join(str(part) for part in fault["loc"])
        raise ArtifactError(f"{path / MANIFEST_NAME}: damaged ('{where}': {fault['msg']}); build it again") from error
    if kind is not None and manifest.kind != kind:
        raise ArtifactError(f"{path}: holds {_an(manifest.kind)}, wanted {_an(kind)}")
    return manifest


def read_whole(path: Path, kind: str | None = None) -> Manifest:
    """The manifest of an artifact directory whose files are all there, in their full length.

    Args:
        path: the directory.
        kind: the kind it must have, or None for any.

    Returns:
        the manifest.

    Raises:
        ArtifactError: as of `read_manifest`, or a file is missing or has another length.
    """
    manifest = read_manifest(path, kind)
    if fault := damage(path, manifest):
        raise ArtifactError(f"{path}/{fault}; build the {manifest.kind} again, with the command that made it")
    return manifest


def read_unchanged(path: Path, kind: str | None = None) -> Manifest:
    """The manifest of an artifact directory whose files have the bytes that they were made with.

    Args:
        path: the directory.
        kind: the kind it must have, or None for any.

    Returns:
        the manifest.

    Raises:
        ArtifactError: as of `read_whole`, or a file has other bytes.

    Cost: every file is read, about a second for a gigabyte.
    """
    manifest = read_whole(path, kind)
    for name, digest in manifest.files.items():
        if file_sha256(path / name) != digest:
            raise ArtifactError(
                f"{path / name}: damaged (not the bytes it was made with); build the {manifest.kind} again, with the "
                "command that made it"
            )
    return manifest


def damage(path: Path, manifest: Manifest) -> str:
    """What is wrong with the files of an artifact, as far as a look at their lengths tells; their bytes are not read.

    Args:
        path: its directory.
        manifest: its manifest.

    Returns:
        the first fault, such as `tokens.npy: damaged or missing (no such file)`; empty where there is none.
    """
    for name in manifest.files:
        file = path / name
        if not file.is_file():
            return f"{name}: damaged or missing (no such file)"
        size = file.stat().st_size
        if size != manifest.sizes.get(name, size):
            return f"{name}: damaged or missing ({size:,} bytes instead of {manifest.sizes[name]:,})"
    return ""


def lineage(path: Path) -> list[tuple[int, Manifest, Path]]:
    """An artifact and everything it was made from, down to the raw text.

    Args:
        path: the artifact directory.

    Returns:
        (depth, manifest, path), the artifact itself first (depth 0), each input below the artifact that
        used it. An input that was moved away or rebuilt since is left out: its id stands in the
        manifest that names it.

    Raises:
        ArtifactError: `path` itself is not an artifact.
    """
    found = [(0, read_manifest(path), path)]
    for ref in found[0][1].inputs.values():
        try:
            below = lineage((path / ref.path).resolve())
        except ArtifactError:
            continue
        if below[0][1].id == ref.id:
            found += [(depth + 1, manifest, place) for depth, manifest, place in below]
    return found


def content_id(value: Mapping[str, Any]) -> str:
    """Hash of plain values, the same wherever and in whatever order they were put together.

    Args:
        value: JSON-serialisable.

    Returns:
        64 hexadecimal digits.
    """
    return hashlib.sha256(canonical(value).encode()).hexdigest()


def canonical(value: Any) -> str:
    """One text per value: JSON with sorted keys and no spaces.

    Args:
        value: JSON-serialisable; NaN is refused.

    Returns:
        the text.
    """
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)


def _an(kind: str | None) -> str:
    if kind is None:
        return "an artifact"
    return f"{'an' if kind[:1] in 'aeiou' else 'a'} '{kind}' artifact"
