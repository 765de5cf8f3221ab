"""What public figures tell is refused before a network of a fleet is charged, not after."""

from __future__ import annotations

from pathlib import Path

from dp_powerflow.fleet.run import plan_fleet, run_fleet
from dp_powerflow.privacy.ledger.book import Ledger
from support.fleet_small import KEYS, on_twins, write_feeders
from support.here import Here

TWO = [f"feeders/{key}.dss" for key in KEYS[:2]]


def test_a_model_that_was_fitted_otherwise_is_found_before_a_network_is_charged(tmp_path: Path) -> None:
    write_feeders(tmp_path)
    assert not run_fleet(on_twins(tmp_path, fleet={"feeders": TWO}), engine=Here()).failed
    before = Ledger.inspect(tmp_path / "state").spends()
    again = on_twins(
        tmp_path,
        fleet={"feeders": TWO, "id": "south", "continues": "north", "output": "south"},
        model={"reuse": "north", "bounds": [0.01, 3.0]},
    )
    assert not plan_fleet(again, engine=Here()).possible
    assert len(run_fleet(again, engine=Here()).failed) == len(TWO)
    assert Ledger.inspect(tmp_path / "state").spends() == before
