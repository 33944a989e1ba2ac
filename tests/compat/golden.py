"""Recorded outputs of the public reference: the committed set, and further ones where `VITRAIL_SHARED` names them."""

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

COMMITTED = Path(__file__).parents[1] / "golden" / "a1"
SHARED = os.environ.get("VITRAIL_SHARED")
REASON = "VITRAIL_SHARED names no folder with the further fixture sets"
# Two correct fp32 implementations differ by about 1e-5 (order of summation); this leaves room for that only.
TOLERANCE = 1e-4


def shared(name: str) -> Path:
    """A folder of the further fixtures; skips the test where there are none."""
    if SHARED is None:
        pytest.skip(REASON)
    return Path(SHARED) / "fixtures" / "steerling_ref" / name


def sets() -> list[Path]:
    """The checkpoint sets at hand: the committed copy and every other one in the shared folder."""
    if SHARED is None:
        return [COMMITTED]
    others = (Path(SHARED) / "fixtures" / "steerling_ref").glob("*/forward.npz")
    return [COMMITTED, *sorted(path.parent for path in others if not path.parent.name.startswith("a1_"))]


def arrays(path: Path) -> dict[str, Tensor]:
    """The arrays of a file, whole numbers as int64."""
    with np.load(path) as file:
        found = {name: torch.from_numpy(file[name]) for name in file.files}
    return {name: array.long() if array.dtype == torch.int32 else array for name, array in found.items()}


def records(path: Path) -> Any:
    """The content of a JSON file."""
    return json.loads(path.read_text())


def assert_close(got: Tensor, wanted: Tensor, name: str, tolerance: float = TOLERANCE) -> None:
    assert got.shape == wanted.shape, f"{name}: {tuple(got.shape)} is not {tuple(wanted.shape)}"
    error = float((got.detach() - wanted).abs().max()) if wanted.numel() else 0.0
    assert error <= tolerance, f"{name}: differs by {error}"
