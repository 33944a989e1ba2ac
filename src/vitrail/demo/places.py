"""Where a demo keeps its artifacts, and its journal of times and memory."""

import resource
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TypedDict

from vitrail.artifacts import read_json, read_manifest, write_json
from vitrail.errors import ArtifactError

STAGES = (
    *("corpus", "atlas", "annotated", "tokenizer", "packed"),
    *("base", "control", "model", "calibration", "index"),
    *("measures", "steering", "answers"),
)
"""Stages in order. All but `calibration` are artifact directories of that name."""


@dataclass(frozen=True)
class Places:
    """The directories of one demo.

    Attributes:
        out: the demo's own directory.
        corpus: the corpus artifact; elsewhere where the user brought one.
    """

    out: Path
    corpus: Path

    def of(self, stage: str) -> Path:
        """The artifact directory of a stage.

        Args:
            stage: one of `STAGES`.

        Returns:
            its directory.
        """
        return self.corpus if stage == "corpus" else self.out / stage


class Spent(TypedDict):
    """What one stage cost."""

    wall_s: float
    peak_rss_bytes: int


class Journal:
    """What each stage cost when it was made, kept over reruns beside the artifacts."""

    def __init__(self, path: Path) -> None:
        """Read what an earlier run noted.

        Args:
            path: the file.

        Raises:
            ArtifactError: it holds something else.
        """
        self._path = path
        self.stages: dict[str, Spent] = read_json(path) if path.is_file() else {}
        if not (isinstance(self.stages, dict) and all(map(_is_spent, self.stages.values()))):
            raise ArtifactError(f"{path}: not a journal of stages; delete it, only the times of old stages are lost")

    def note(self, stage: str, wall_s: float) -> None:
        """Keep the cost of a stage that was just made.

        Args:
            stage: its name.
            wall_s: its wall time.
        """
        self.stages[stage] = {"wall_s": round(wall_s, 2), "peak_rss_bytes": peak_rss_bytes()}
        write_json(self._path, self.stages)

    @property
    def wall_s(self) -> float:
        """Seconds of all stages together."""
        return round(sum(spent["wall_s"] for spent in self.stages.values()), 1)

    @property
    def peak_rss_bytes(self) -> int:
        """Largest resident memory that any stage met."""
        return max((spent["peak_rss_bytes"] for spent in self.stages.values()), default=peak_rss_bytes())


def _is_spent(value: object) -> bool:
    return isinstance(value, dict) and value.keys() == Spent.__annotations__.keys()


def peak_rss_bytes() -> int:
    """Largest resident memory of this process so far, or of a finished child where that was larger."""
    unit = 1 if sys.platform == "darwin" else 1024
    peaks = (resource.getrusage(who).ru_maxrss for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return unit * max(peaks)


def made_from(places: Places, *stages: str) -> dict[str, Path]:
    """The inputs of an artifact, for its manifest.

    Args:
        places: the demo's directories.
        stages: names of the stages it reads.

    Returns:
        name → directory.
    """
    return {stage: places.of(stage) for stage in stages}


def counts_in_words(path: Path) -> str:
    """What an artifact counts, in a few words.

    Args:
        path: its directory.

    Returns:
        text such as `1,204 documents, 8,120,334 text bytes`.
    """
    counts = read_manifest(path).counts
    shown = [f"{count:,} {unit.removeprefix('num_').replace('_', ' ')}" for unit, count in counts.items() if count]
    return ", ".join(shown[:4])
