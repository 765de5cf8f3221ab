"""Short campaigns of kills, failing disks and wrong clocks: the same bits, one charge, true sentences."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from support.faults.shim import FILES, Kind, why_not
from support.faults.strikes import FAULTS

RUN = Path(__file__).with_name("run.py")
pytestmark = pytest.mark.slow


def short_run(part: str, folder: Path) -> dict[str, Any]:
    """The figures of the few cases of one part, in a process of its own; skipped where nothing can strike."""
    reason = why_not()
    if reason is not None:
        pytest.skip(reason)
    out = folder / "figures.json"
    command = [sys.executable, str(RUN), "--short", part, "--out", str(out)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert out.exists(), done.stderr[-3000:]
    found: dict[str, Any] = json.loads(out.read_text())
    assert found["failures"] == []
    return found


def test_a_command_killed_at_any_kind_of_system_call_finishes_to_the_same_bits_with_one_charge(
    tmp_path: Path,
) -> None:
    kills = short_run("kills", tmp_path)["kills"]
    assert kills["resumed"] == kills["cases"] == 24
    assert kills["kills"] > kills["cases"]  # some are killed more than once
    rare = {Kind.TRUNCATE, Kind.RMDIR, Kind.TOUCH}  # which a release may do without
    assert {kind.name.lower() for kind in {*FILES} - rare} <= set(kills["by call"])


def test_a_disk_that_fails_costs_a_true_sentence_and_nothing_else(tmp_path: Path) -> None:
    found = short_run("disks", tmp_path)
    by_fault = found["disks"]["by fault"]
    assert {fault.name for fault in FAULTS} <= set(by_fault)
    assert by_fault["no space"]["noticed"] == by_fault["no space"]["cases"]
    assert by_fault["short write"]["noticed"] == 0
    if found["small disks"] == "mounted":
        assert by_fault["small disk"]["noticed"] > 0


def test_a_clock_that_is_wrong_changes_no_bit_and_gives_no_budget_back(tmp_path: Path) -> None:
    assert short_run("clocks", tmp_path)["clocks"]["cases"] == 2
