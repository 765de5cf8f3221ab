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
from support.made import once

RUN = Path(__file__).with_name("run.py")
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The figures of a few cases, in a process of its own; skipped where nothing can strike."""
    reason = why_not()
    if reason is not None:
        pytest.skip(reason)

    def run(folder: Path) -> None:
        command = [sys.executable, str(RUN), "--short", "--out", str(folder / "figures.json")]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert (folder / "figures.json").exists(), done.stderr[-3000:]

    figures: dict[str, Any] = json.loads((once(tmp_path_factory, "faults", run) / "figures.json").read_text())
    assert figures["failures"] == []
    return figures


def test_a_command_killed_at_any_kind_of_system_call_finishes_to_the_same_bits_with_one_charge(
    found: dict[str, Any],
) -> None:
    kills = found["kills"]
    assert kills["resumed"] == kills["cases"] == 24
    assert kills["kills"] > kills["cases"]  # some are killed more than once
    rare = {Kind.TRUNCATE, Kind.RMDIR, Kind.TOUCH}  # which a release may do without
    assert {kind.name.lower() for kind in {*FILES} - rare} <= set(kills["by call"])


def test_a_disk_that_fails_costs_a_true_sentence_and_nothing_else(found: dict[str, Any]) -> None:
    by_fault = found["disks"]["by group"]
    assert {fault.name for fault in FAULTS} <= set(by_fault)
    assert by_fault["no space"]["noticed"] == by_fault["no space"]["cases"]
    assert by_fault["short write"]["noticed"] == 0


def test_a_clock_that_is_wrong_changes_no_bit_and_gives_no_budget_back(found: dict[str, Any]) -> None:
    assert found["clocks"]["cases"] == 2
