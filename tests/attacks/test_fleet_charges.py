"""What public figures tell is refused before a network of a fleet is charged, not after."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

from dp_powerflow.fleet.run import plan_fleet, run_fleet
from dp_powerflow.privacy.ledger.book import Ledger
from dp_powerflow.privacy.ledger.records import Spend
from support.fleet_small import KEYS, on_twins, write_feeders, write_meters
from support.here import Here

TWO = [f"feeders/{key}.dss" for key in KEYS[:2]]


def own_models(folder: Path, loads: dict[str, Any], **sections: Any) -> Any:
    fleet = {"models": "per-feeder", "feeders": TWO, "network_epsilon_cap": 9.0, **sections.pop("fleet", {})}
    return on_twins(folder, loads={**loads, "load_points": None, "days": None}, fleet=fleet, **sections)


def charged(folder: Path, fleet: str) -> list[Spend]:
    spends = Ledger.inspect(folder / "state").spends()
    return [spend for spend in spends if spend.release_id.startswith(f"{fleet}_")]


def test_a_class_that_no_load_point_of_a_feeder_has_is_found_before_its_network_is_charged(
    tmp_path: Path,
) -> None:
    write_feeders(tmp_path)
    loads = write_meters(tmp_path)
    with (tmp_path / "services.csv").open(newline="") as file:
        head, *rows = list(csv.reader(file))
    with (tmp_path / "services.csv").open("w", newline="") as file:
        made = [[*r[:2], "commercial" if r[4] == KEYS[0] else r[2], *r[3:]] for r in rows]
        csv.writer(file).writerows([head, *made])
    config = own_models(tmp_path, loads)
    assert not plan_fleet(config, engine=Here()).possible
    [failed] = run_fleet(config, engine=Here()).failed
    assert failed.key == KEYS[0]
    assert "commercial" in (failed.problem or "")
    assert [spend.release_id[-4:] for spend in charged(tmp_path, "north")] == ["0002"]


def test_own_models_that_were_fitted_otherwise_are_found_before_a_network_is_charged(tmp_path: Path) -> None:
    write_feeders(tmp_path)
    loads = write_meters(tmp_path)
    assert not run_fleet(own_models(tmp_path, loads), engine=Here()).failed
    again = own_models(
        tmp_path,
        loads,
        fleet={"id": "south", "continues": "north", "output": "south"},
        model={"reuse": "north", "bounds": [0.01, 3.0]},
    )
    assert not plan_fleet(again, engine=Here()).possible
    assert len(run_fleet(again, engine=Here()).failed) == len(TWO)
    assert charged(tmp_path, "south") == []
