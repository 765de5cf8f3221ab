"""Warnings of many feeders in few sentences."""

from __future__ import annotations

from dp_powerflow.fleet.run import Warned


def test_sentences_that_differ_in_figures_are_one_and_nothing_is_dropped() -> None:
    warned = Warned()
    warned.of_all("noise is weak")
    warned.of_feeder("feeder-0003", "21 % are outside 0.9 to 1.1 p.u.", "taps are at 1e-5")
    warned.of_feeder("feeder-0001", "7.5 % are outside 0.9 to 1.1 p.u.")
    warned.of_all("noise is weak", "loads are simulated")
    assert warned.sentences() == (
        "feeder-0001 and 1 more, with figures of their own: 7.5 % are outside 0.9 to 1.1 p.u.",
        "feeder-0003: taps are at 1e-5",
        "noise is weak",
        "loads are simulated",
    )
