"""Curves: real event files, read back record by record; a place that is lost does not cost the run."""

import json
import logging
import struct
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tensorboardX.proto.event_pb2 import Event
from tensorboardX.record_writer import masked_crc32c

from vitrail.errors import ConfigError
from vitrail.train.speed import Speed
from vitrail.train.tracking import TensorBoard, WeightsAndBiases


def _events(folder: Path) -> Iterator[Event]:
    (path,) = folder.glob("events.out.tfevents.*")
    data = path.read_bytes()
    while data:
        (size,) = struct.unpack("<Q", data[:8])
        assert struct.unpack("<I", data[8:12])[0] == masked_crc32c(data[:8])
        content, data = data[12 : 12 + size], data[12 + size :]
        assert struct.unpack("<I", data[:4])[0] == masked_crc32c(content)
        data = data[4:]
        yield Event.FromString(content)


def test_every_figure_is_a_point_of_a_curve(tmp_path: Path) -> None:
    board = TensorBoard(tmp_path / "logs" / "model")
    board.begin(7)
    board.step(7, "steering", {"loss": 2.5}, {"known": 0.25})
    board.heldout(7, {"accuracy": 0.125})
    board.speed(10, Speed(1000.0, 0.5, 2**30))
    board.speed(11, Speed(1000.0, None, 2**30))
    board.close()
    events = list(_events(tmp_path / "logs" / "model"))
    assert events[0].file_version == "brain.Event:2"
    assert (events[1].step, events[1].session_log.status) == (7, 1), "later points of an earlier attempt are hidden"
    points = {value.tag: (event.step, value.simple_value) for event in events for value in event.summary.value}
    assert points == {
        "steering/loss": (7, 2.5),
        "gradient_norm/known": (7, 0.25),
        "heldout/accuracy": (7, 0.125),
        "speed/tokens_per_s": (10, 1000.0),
        "speed/mfu": (10, 0.5),
        "speed/memory_bytes": (10, 2.0**30),
    }
    (line,) = (tmp_path / "logs" / "model" / "speed.jsonl").read_text().splitlines()
    assert json.loads(line) == {"step": 10, "tokens_per_s": 1000.0, "mfu": 0.5, "memory_bytes": 2**30}


def test_a_lost_place_is_said_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "logs").write_text("a file is in the way")
    board = TensorBoard(tmp_path / "logs" / "model")
    with caplog.at_level(logging.WARNING):
        board.begin(0)
        board.step(0, "plain", {"loss": 1.0}, {})
        board.close()
    assert [record.getMessage().split(":")[0] for record in caplog.records] == [str(tmp_path / "logs" / "model")]


def test_weights_and_biases_without_its_package_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(ConfigError, match="pip install wandb"):
        WeightsAndBiases("project", "run", {}, tmp_path)
