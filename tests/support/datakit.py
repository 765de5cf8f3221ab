"""The real `gridfm_datakit validate`."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest


def datakit_validate() -> Callable[[Path], tuple[int, str]]:
    """Exit code and what is printed, for a directory; skips where gridfm-datakit is not installed."""
    python = os.environ.get("GRIDFM_DATAKIT_PYTHON")
    if python is None and importlib.util.find_spec("gridfm_datakit") is not None:
        python = sys.executable
    command = shutil.which("gridfm_datakit")
    if python is None and command is None:
        pytest.skip("gridfm-datakit is not here: set GRIDFM_DATAKIT_PYTHON to a Python that has it")
    start = [python, "-m", "gridfm_datakit.cli"] if python else [str(command)]

    def run(directory: Path) -> tuple[int, str]:
        done = subprocess.run(
            [*start, "validate", str(directory), "--n-partitions", "0"],
            capture_output=True,
            text=True,
            check=False,
        )
        return done.returncode, done.stdout

    return run
