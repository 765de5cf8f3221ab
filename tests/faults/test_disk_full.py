"""Disks that are full, small, read-only or broken: one true sentence, then the same bits with one charge."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.faults.full import FAULTS
from support.faults.running import short_run


@pytest.mark.slow
def test_a_disk_that_fails_costs_a_true_sentence_and_nothing_else(tmp_path: Path) -> None:
    found = short_run("disks", tmp_path)
    assert found["failures"] == []
    by_fault = found["disks"]["by fault"]
    assert {fault.name for fault in FAULTS} <= set(by_fault)
    assert by_fault["no space"]["noticed"] == by_fault["no space"]["cases"]
    assert by_fault["short write"]["noticed"] == 0
    if found["small disks"] == "mounted":
        assert by_fault["small disk"]["noticed"] > 0
