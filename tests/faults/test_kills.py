"""`kill -9` at every kind of system call: the next run ends with the same bits and one charge."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.faults.running import short_run
from support.faults.shim import FILES, Kind


@pytest.mark.slow
def test_a_command_killed_at_any_kind_of_system_call_finishes_to_the_same_bits_with_one_charge(
    tmp_path: Path,
) -> None:
    found = short_run("kills", tmp_path)
    assert found["failures"] == []
    kills = found["kills"]
    assert kills["resumed"] == kills["cases"] == 24
    assert kills["kills"] > kills["cases"]  # some are killed more than once
    rare = {Kind.TRUNCATE, Kind.RMDIR, Kind.TOUCH}  # which a release may do without
    assert {kind.name.lower() for kind in {*FILES} - rare} <= set(kills["by call"])
