"""The campaign as a process of its own, for tests."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from support.faults.shim import why_not

RUN = Path(__file__).parents[2] / "faults" / "run.py"


def short_run(part: str, folder: Path) -> dict[str, Any]:
    """The figures of the few cases of one part; skipped where the library cannot be had."""
    reason = why_not()
    if reason is not None:
        pytest.skip(reason)
    out = folder / "figures.json"
    command = [sys.executable, str(RUN), "--short", part, "--out", str(out)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert out.exists(), done.stderr[-3000:]
    found: dict[str, Any] = json.loads(out.read_text())
    return found
