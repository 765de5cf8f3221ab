"""Short campaigns of kills, failing disks and wrong clocks: the same bits, one charge, true sentences."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from support.faults.shim import FILES, Kind, why_not
from support.faults.strikes import CLOCKS, DISKS, FAULTS, KILLS
from support.made import once

RUN = Path(__file__).with_name("run.py")
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[dict[str, Any]]]:
    """A few cases, in a process of its own, by part; skipped where nothing can strike."""
    reason = why_not()
    if reason is not None:
        pytest.skip(reason)

    def run(folder: Path) -> None:
        command = [sys.executable, str(RUN), "--short", "--out", str(folder / "cases.jsonl")]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert (folder / "cases.jsonl").exists(), done.stderr[-3000:]

    text = (once(tmp_path_factory, "faults", run) / "cases.jsonl").read_text()
    lines = [json.loads(line) for line in text.splitlines()]
    assert [line for line in lines if line["wrong"]] == []
    return {part: [line for line in lines if line["part"] == part] for part in (KILLS, DISKS, CLOCKS)}


def test_a_command_killed_at_any_kind_of_system_call_finishes_to_the_same_bits_with_one_charge(
    found: dict[str, list[dict[str, Any]]],
) -> None:
    kills = found[KILLS]
    assert len(kills) == 24
    assert sum(line["kills"] for line in kills) > len(kills)  # some are killed more than once
    rare = {Kind.TRUNCATE, Kind.RMDIR, Kind.TOUCH}  # which a release may do without
    assert {kind.name.lower() for kind in {*FILES} - rare} <= {line["call"] for line in kills}


def test_a_disk_that_fails_costs_a_true_sentence_and_nothing_else(
    found: dict[str, list[dict[str, Any]]],
) -> None:
    noticed = {line["group"]: line["noticed"] for line in found[DISKS]}
    assert {fault.name for fault in FAULTS} <= set(noticed)
    assert noticed["no space"]
    assert not noticed["short write"]


def test_a_clock_that_is_wrong_changes_no_bit_and_gives_no_budget_back(
    found: dict[str, list[dict[str, Any]]],
) -> None:
    assert len(found[CLOCKS]) == 2
