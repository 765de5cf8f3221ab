"""What `fleet --plan` lists of a large fleet: every feeder that is refused, and the first of the others."""

from __future__ import annotations

from types import SimpleNamespace
from typing import cast

from dp_powerflow.cli.fleet import render_fleet_plan
from dp_powerflow.fleet.run import FeederPlan, FleetPlan


def rows(good: int, *, refused: tuple[int, ...] = ()) -> list[str]:
    """The lines about the feeders of a fleet."""
    problems = dict.fromkeys(refused, ("No | source.", "feeder-without-source"))
    feeders = tuple(
        FeederPlan(f"street {k}", f"feeder-{k:04d}", False, problem, None, code)
        for k in range(1, good + 1)
        for problem, code in [problems.get(k, (None, None))]
    )
    config = SimpleNamespace(
        fleet=SimpleNamespace(id="f", days=3, models="one"),
        model=SimpleNamespace(epsilon=1.0),
        network=SimpleNamespace(mode="twin-network"),
    )
    cap = SimpleNamespace(unit="load-point")
    cost = SimpleNamespace(delta=1e-5, loads_cap=cap, warnings=(), notes=(), estimator=None, predicted=())
    loads = SimpleNamespace(
        already_charged=True, affordable=True, after=SimpleNamespace(left={"epsilon": 1.0})
    )
    planned = SimpleNamespace(config=config, cost=cost, loads=loads, feeders=feeders, ingest=None)
    lines = render_fleet_plan(cast(FleetPlan, planned)).lines
    return lines[lines.index("|---|---|---|") + 1 :]


def test_a_small_fleet_is_listed_in_full() -> None:
    assert rows(3) == [f"| street {k} | feeder-{k:04d} |  |" for k in (1, 2, 3)]


def test_a_large_fleet_lists_all_that_are_refused_and_twenty_others() -> None:
    found = rows(1000, refused=(500, 900))
    assert "| street 500 | feeder-0500 | cannot be released: No / source. |" in found
    assert "| street 900 | feeder-0900 | cannot be released: No / source. |" in found
    assert len([row for row in found if row.startswith("| street")]) == 22
    assert "And 978 more that can be released; --json lists all." in found
    assert found[-3:] == [
        "**2 feeders cannot be released**, all else could:",
        "",
        "- `feeder-without-source`: 2 (street 500, street 900)",
    ]
