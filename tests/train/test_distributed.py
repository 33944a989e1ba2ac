"""Many processes as one: real `torchrun`, real gloo, the real command."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from safetensors.torch import load_file
from torch import Tensor

CONFIG = """
model: {width: 16, num_layers: 2, num_heads: 2, block: 8, discovered_rank: 4, intermediate_size: 32}
total_tokens: 3072          # 12 steps
batch_size: 4
precision: fp32
checkpoint_every_steps: 4
heldout: {every_steps: 6, sequences: 6, steering_concepts: 2}
steering: {density: [[0.0, 0.5]], recalibrate_steps: 4}
optim: {matrices: adamw, matrix_rate: 0.003}
"""
COMMAND = "from vitrail.cli.main import main; main()"


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("config") / "train.yaml"
    path.write_text(CONFIG)
    return path


def _start(ranks: int, config: Path, packed: Path, out: Path, *flags: str) -> subprocess.Popen[str]:
    launch = [sys.executable]
    if ranks > 1:
        launch = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", str(ranks), "--no-python"]
        launch += ["--master-port", "0", "--rdzv-backend", "c10d", "--rdzv-endpoint", "localhost:0", sys.executable]
    words = ["-c", COMMAND, "train", str(config), "--packed", str(packed), "--out", str(out), *flags]
    return subprocess.Popen(
        launch + words,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )


def _finish(process: subprocess.Popen[str]) -> tuple[int, str]:
    out, err = process.communicate(timeout=120)
    return process.returncode, out + err


def _weights(out: Path) -> dict[str, Tensor]:
    return load_file(out / "model.safetensors")


def _terms(out: Path) -> list[dict[str, float]]:
    lines = (json.loads(line) for line in (out / "log.jsonl").read_text().splitlines())
    return [{key: line[key] for key in ("language", "concept", "loss")} for line in lines if "batch" in line]


def _evaluations(out: Path) -> list[dict[str, float]]:
    lines = (json.loads(line) for line in (out / "log.jsonl").read_text().splitlines())
    return [line["heldout"] for line in lines if "heldout" in line]


def _require_close(one: dict[str, Tensor], other: dict[str, Tensor]) -> None:
    """fp32 sums in another order differ in the last bits; AdamW divides by their roots, which makes more of them."""
    assert one.keys() == other.keys()
    for name, tensor in one.items():
        difference = float((other[name] - tensor).abs().max())
        assert difference < 1e-4, f"{name} differs by {difference}"


def _wait_for(checkpoint: str, work: Path, process: subprocess.Popen[str]) -> None:
    """Until the pointer names a checkpoint."""
    for _ in range(2400):
        for pointer in work.glob(".*.work-*/latest.json"):
            if checkpoint in pointer.read_text():
                return
        if process.poll() is not None:
            pytest.fail(f"ended before {checkpoint}: {_finish(process)}")
        time.sleep(0.05)
    pytest.fail(f"no {checkpoint} within two minutes")


def test_two_processes_are_one_and_a_run_goes_on_with_another_number(
    config: Path, packed_dir: Path, tmp_path: Path
) -> None:
    for ranks in (1, 2):
        code, said = _finish(_start(ranks, config, packed_dir, tmp_path / str(ranks)))
        assert code == 0, said
    one, two = _weights(tmp_path / "1"), _weights(tmp_path / "2")
    _require_close(one, two)
    for first, second in zip(_terms(tmp_path / "1"), _terms(tmp_path / "2"), strict=True):
        assert second == pytest.approx(first, rel=1e-4)
    for first, second in zip(_evaluations(tmp_path / "1"), _evaluations(tmp_path / "2"), strict=True):
        assert {"alignment", "steering_heard", "probe_continuation", "contribution_known"} <= set(first)
        assert second == pytest.approx(first, rel=1e-3, abs=1e-6)

    process = _start(2, config, packed_dir, tmp_path / "killed")
    _wait_for("step-00000004", tmp_path, process)
    # torchrun gives each rank a session of its own: the path of the run is what they share.
    subprocess.run(["pkill", "-9", "-f", str(tmp_path / "killed")], check=True)
    process.communicate()
    assert not (tmp_path / "killed").exists()
    code, said = _finish(_start(1, config, packed_dir, tmp_path / "killed"))
    assert code == 0, said
    resumed = _weights(tmp_path / "killed")
    _require_close(one, resumed)


def test_a_batch_that_ranks_cannot_share_is_one_line(config: Path, packed_dir: Path, tmp_path: Path) -> None:
    code, said = _finish(_start(2, config, packed_dir, tmp_path / "model", "--batch_size", "3"))
    assert code != 0
    assert "batch_size 3 cannot be shared equally by 2 processes" in said
    assert "src/vitrail" not in said, "only torchrun may add a traceback, of its own"
    assert not (tmp_path / "model").exists()


def test_sigterm_saves_and_the_same_command_goes_on(config: Path, packed_dir: Path, tmp_path: Path) -> None:
    flags = ("--total_tokens", "256000", "--checkpoint_every_steps", "null")
    process = _start(1, config, packed_dir, tmp_path / "model", *flags, "--checkpoint_every_s", "0.5")
    _wait_for("step-", tmp_path, process)
    process.send_signal(signal.SIGTERM)
    code, said = _finish(process)
    assert code == 143, said
    assert "stopped by SIGTERM after step" in said
    assert "Traceback" not in said
    (pointer,) = tmp_path.glob(".model.work-*/latest.json")
    step = int(json.loads(pointer.read_text())["checkpoint"].removeprefix("step-"))
    assert f"after step {step:,}," in said
