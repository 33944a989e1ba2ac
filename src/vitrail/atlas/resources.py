"""What a run may use: it changes how long a stage takes, never what comes out."""

import logging
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from vitrail.atlas.llm import Endpoint

logger = logging.getLogger("vitrail.atlas")


@dataclass(frozen=True)
class Resources:
    """Means of a run, outside every artifact's id.

    Attributes:
        workers: processes.
        cache: folder in which vectors and answers are kept for later builds; None keeps them until the stage is done.
        endpoint: server of a language model, or of embeddings.
        say: takes lines for a person to read: estimates, progress, counts of faults.
    """

    workers: int = 1
    cache: Path | None = None
    endpoint: Endpoint | None = None
    say: Callable[[str], None] = logger.info
