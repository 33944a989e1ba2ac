"""Where a run can be watched: TensorBoard event files, Weights & Biases, and a file of speeds.

The run's own log (`log.jsonl`) is part of the model and holds nothing that depends on the machine. What is here lies
beside it: wall time is in it, and a resumed run writes over what came after its checkpoint.
"""

import json
import logging
import os
import platform
import struct
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tensorboardX.proto.event_pb2 import Event, SessionLog
from tensorboardX.proto.summary_pb2 import Summary
from tensorboardX.record_writer import masked_crc32c

from vitrail.artifacts import make_folder
from vitrail.errors import ConfigError
from vitrail.train.speed import Speed

logger = logging.getLogger("vitrail.train")

_EVERY = 10
_FLUSH_S = 10.0


class Tracker:
    """Told the figures of a run; a sink says how it stores named numbers by step."""

    def step(self, step: int, kind: str, values: Mapping[str, float], norms: Mapping[str, float]) -> None:
        """Store terms as `train/…`, or `steering/…` for steering batches, and norms as `gradient_norm/…`.

        Args:
            step: 0, 1, 2, …
            kind: `plain` or `steering`.
            values: mean of every term, nats.
            norms: gradient norms by part.
        """
        prefix = "train" if kind == "plain" else "steering"
        self.write(step, {f"{prefix}/{name}": value for name, value in values.items()})
        self.write(step, {f"gradient_norm/{part}": norm for part, norm in norms.items()})

    def heldout(self, step: int, found: Mapping[str, float]) -> None:
        """Store an evaluation as `heldout/…`.

        Args:
            step: after which step.
            found: figures by name.
        """
        self.write(step, {f"heldout/{name}": value for name, value in found.items()})

    def speed(self, step: int, speed: Speed) -> None:
        """Store the speed as `speed/…`, every tenth step.

        Args:
            step: after which step.
            speed: of the latest steps.
        """
        if step % _EVERY == 0:
            self.write(step, {f"speed/{name}": value for name, value in vars(speed).items() if value is not None})

    def begin(self, first_step: int) -> None:
        """Take note that a run begins or goes on.

        Args:
            first_step: the first step that will be told.
        """

    def write(self, step: int, values: Mapping[str, float]) -> None:
        """Store numbers.

        Args:
            step: where on the axis.
            values: by name.
        """
        raise NotImplementedError

    def close(self) -> None:
        """Write what is left."""


class TensorBoard(Tracker):
    """Event files, and `speed.jsonl` beside them: `tensorboard --logdir FOLDER`.

    Files are open only while something is appended, every few seconds. A place that cannot be written to (a full
    disk) ends the tracking with a warning, never the run.
    """

    def __init__(self, folder: Path) -> None:
        """Name the place.

        Args:
            folder: made if missing.
        """
        self._folder = folder
        self._waiting: dict[str, bytearray] = {}
        self._events = f"events.out.tfevents.{int(time.time())}.{platform.node()}.{os.getpid()}"
        self._flushed_at, self._is_lost = 0.0, False

    def begin(self, first_step: int) -> None:
        """Start an event file; TensorBoard hides what an earlier attempt wrote from this step on.

        Args:
            first_step: the first step that will be told.
        """
        self._add_event(Event(file_version="brain.Event:2"))
        self._add_event(Event(step=first_step, session_log=SessionLog(status=SessionLog.START)))
        self._flush()

    def write(self, step: int, values: Mapping[str, float]) -> None:
        """Add one point to each curve.

        Args:
            step: where on the axis.
            values: by name.
        """
        points = [Summary.Value(tag=name, simple_value=value) for name, value in values.items()]
        self._add_event(Event(step=step, summary=Summary(value=points)))
        if time.monotonic() - self._flushed_at > _FLUSH_S:
            self._flush()

    def speed(self, step: int, speed: Speed) -> None:
        """Store the speed, also as a line of `speed.jsonl`.

        Args:
            step: after which step.
            speed: of the latest steps.
        """
        if step % _EVERY == 0:
            line = json.dumps({"step": step, **vars(speed)}) + "\n"
            self._waiting.setdefault("speed.jsonl", bytearray()).extend(line.encode())
        super().speed(step, speed)

    def close(self) -> None:
        """Write what is left."""
        self._flush()

    def _add_event(self, event: Event) -> None:
        event.wall_time = time.time()
        data = event.SerializeToString()
        size = struct.pack("<Q", len(data))
        record = (size, struct.pack("<I", masked_crc32c(size)), data, struct.pack("<I", masked_crc32c(data)))
        self._waiting.setdefault(self._events, bytearray()).extend(b"".join(record))

    def _flush(self) -> None:
        self._flushed_at = time.monotonic()
        try:
            if not self._is_lost:
                self._folder.mkdir(parents=True, exist_ok=True)
                for name, content in self._waiting.items():
                    with (self._folder / name).open("ab") as file:
                        file.write(content)
        except OSError as error:
            self._is_lost = True
            logger.warning("%s: cannot be written (%s); the run goes on without these curves", self._folder, error)
        self._waiting.clear()


class WeightsAndBiases(Tracker):
    """A run of Weights & Biases; what it sends where is decided by its own environment variables."""

    def __init__(self, project: str, name: str, settings: Mapping[str, Any], folder: Path) -> None:
        """Start the run.

        Args:
            project: of the run.
            name: of the run.
            settings: the resolved configuration.
            folder: for its local files.

        Raises:
            ConfigError: the package is not installed.
        """
        try:
            import wandb
        except ImportError as error:
            raise ConfigError("--wandb needs the package wandb: pip install wandb, or leave the flag out") from error
        make_folder(folder)
        self._run = wandb.init(project=project, name=name, config=dict(settings), dir=str(folder), resume="allow")

    def write(self, step: int, values: Mapping[str, float]) -> None:
        """Add one point to each curve."""
        self._run.log(dict(values), step=step)

    def close(self) -> None:
        """End the run."""
        self._run.finish()
