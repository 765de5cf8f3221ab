"""Events of a fleet, and what a callback for progress hears of them."""

from __future__ import annotations

from dp_powerflow.fleet.names import FeederEvent, counted


def test_a_callback_hears_how_many_feeders_have_ended_and_of_how_many() -> None:
    heard: list[tuple[int, int]] = []
    hear = counted(lambda done, total: heard.append((done, total)))
    hear(FeederEvent("old", "released"))
    for name in ("a", "b"):
        hear(FeederEvent(name, "waiting"))
    for event in (
        FeederEvent("a", "solving"),
        FeederEvent("a", "released"),
        FeederEvent("b", "failed"),
        FeederEvent("b", "failed"),
        FeederEvent("b", "waiting"),
        FeederEvent("b", "released"),
    ):
        hear(event)
    assert heard == [(1, 1), (2, 3), (3, 3), (2, 3), (3, 3)]
