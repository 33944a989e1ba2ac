"""Compiled = eager, and one compilation serves all layers, lengths and prefixes."""

import subprocess
import sys
from pathlib import Path


def test_compiled_layers_equal_eager_ones() -> None:
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-m", "tests.model.compiled"],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        timeout=500,
    )
    assert done.returncode == 0, done.stderr[-2000:]
