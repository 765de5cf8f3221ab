"""The table of limits is made from both workloads, and what it counts is counted."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
ROW = re.compile(r"^(\w+) +([\d.]+) +(\d+) +([\d.]+) +([\d.]+) +(\d+)%  (.+)$", re.MULTILINE)
STAGES = ["draw", "sum", "solve", "round", "compress", "write", "hash"]


@pytest.mark.slow
def test_every_stage_of_both_workloads_has_a_limit_and_what_it_is_limited_by() -> None:
    """No time is checked: only that every stage was run, counted and compared."""
    done = subprocess.run(
        [sys.executable, str(ROOT / "benchmarks" / "limits.py"), "--quick"],
        capture_output=True, text=True, timeout=600, check=False, env=dict(os.environ),
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    peaks, old, new = re.split(r"\n(?:old|new): per released phasor\n", done.stdout)
    assert "GB/s" in peaks
    assert "Gflop/s" in peaks
    for text, more in ((old, ["Jacobian"]), (new, ["powers"])):
        rows = {row[0]: row for row in ROW.findall(text)}
        assert sorted(rows) == sorted([*STAGES, *more])
        for _, moved, _, _, limit, _, reason in rows.values():
            assert float(moved) > 0.0
            assert float(limit) >= 0.0
            assert reason
        assert float(rows["solve"][2]) > 0.0
        assert float(rows["draw"][2]) > 0.0
        assert rows["hash"][6] == "SHA-256"
        assert rows["write"][6] == "disk"
