"""What `fleet --plan` lists of a large fleet: every feeder that is refused, and the first of the others."""

from __future__ import annotations

from dp_powerflow.cli.fleet import _feeder_rows
from dp_powerflow.fleet.run import FeederPlan


def plans(good: int, *, refused: tuple[int, ...] = ()) -> list[FeederPlan]:
    return [
        FeederPlan(f"street {k}", f"feeder-{k:04d}", False, "No | source." if k in refused else None, None)
        for k in range(1, good + 1)
    ]


def test_a_small_fleet_is_listed_in_full() -> None:
    rows = _feeder_rows(plans(3))
    assert rows[2:] == [f"| street {k} | feeder-{k:04d} |  |" for k in (1, 2, 3)]


def test_a_large_fleet_lists_all_that_are_refused_and_twenty_others() -> None:
    rows = _feeder_rows(plans(1000, refused=(500, 900)))
    assert "| street 500 | feeder-0500 | cannot be released: No / source. |" in rows
    assert "| street 900 | feeder-0900 | cannot be released: No / source. |" in rows
    assert len([row for row in rows if row.startswith("| street")]) == 22
    assert rows[-1] == "And 978 more that can be released; --json lists all."
