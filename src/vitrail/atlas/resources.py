"""What a run may use: it changes how long a stage takes, never what comes out."""

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Resources:
    """Means of a run, outside every artifact's id.

    Attributes:
        workers: processes.
        cache: folder in which vectors and answers are kept for later builds; None keeps nothing.
    """

    workers: int = 1
    cache: Path | None = None
