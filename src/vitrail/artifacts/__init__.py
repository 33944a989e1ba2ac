"""Artifacts: directories that appear whole or not at all, with a manifest and a lineage (design §8)."""

from vitrail.artifacts.files import (
    atomic_write_bytes,
    file_sha256,
    make_folder,
    read_json,
    sync_dir,
    sync_file,
    write_faults_are_clear,
    write_json,
)
from vitrail.artifacts.folder import new_folder
from vitrail.artifacts.manifest import (
    FORMAT_VERSION,
    MANIFEST_NAME,
    InputRef,
    Manifest,
    content_id,
    damage,
    lineage,
    read_manifest,
    read_unchanged,
    read_whole,
)
from vitrail.artifacts.stage import Stage, Writing

__all__ = [
    "FORMAT_VERSION",
    "MANIFEST_NAME",
    "InputRef",
    "Manifest",
    "Stage",
    "Writing",
    "atomic_write_bytes",
    "content_id",
    "damage",
    "file_sha256",
    "lineage",
    "make_folder",
    "new_folder",
    "read_json",
    "read_manifest",
    "read_unchanged",
    "read_whole",
    "sync_dir",
    "sync_file",
    "write_faults_are_clear",
    "write_json",
]
