"""Clocks that go back or jump: the same bits, a ledger in its order, and no budget regained."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.faults.running import short_run


@pytest.mark.slow
def test_a_clock_that_is_wrong_changes_no_bit_and_gives_no_budget_back(tmp_path: Path) -> None:
    found = short_run("clocks", tmp_path)
    assert found["failures"] == []
    assert found["clocks"]["cases"] == 2
