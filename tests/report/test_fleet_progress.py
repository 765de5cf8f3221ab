"""Progress of a fleet: count, rate, time left, who is under way; failures only where INTERNAL is said."""

from __future__ import annotations

import threading
from io import StringIO

import pytest
from rich.console import Console

from dp_powerflow.fleet.names import ENDS, STATES, UNDER_WAY, FeederEvent
from dp_powerflow.report import fleet_progress as shown
from dp_powerflow.report.fleet_progress import FleetCount, FleetProgress, ToldFailures, in_time
from report.test_progress import Clock


def names(count: int) -> list[str]:
    return [f"feeder-{k:04d}" for k in range(1, count + 1)]


def lines_of(output: StringIO) -> list[str]:
    return output.getvalue().splitlines()


def test_states_are_waiting_under_way_or_ends() -> None:
    assert ("waiting", UNDER_WAY[0], "checked", "paid", UNDER_WAY[1], *ENDS) == STATES


def test_a_line_says_count_rate_time_left_and_who_is_under_way() -> None:
    clock = Clock()
    count = FleetCount(clock)
    for name in names(10):
        count.hear(FeederEvent(name, "waiting"))
    assert count.line("fleet") == "fleet: 0 of 10 (0%); 10 waiting"
    for name in names(4):
        count.hear(FeederEvent(name, "checking"))
    clock.now += 90.0  # checks are no measure of what making takes
    count.hear(FeederEvent("feeder-0001", "solving"))
    clock.now += 30.0
    count.hear(FeederEvent("feeder-0001", "released"))
    count.hear(FeederEvent("feeder-0002", "failed"))
    count.hear(FeederEvent("feeder-0003", "paid"))
    count.hear(FeederEvent("feeder-0004", "solving"))
    assert count.line("fleet") == (
        "fleet: 2 of 10 (20%), 4 a minute, 2 min left; 6 waiting, 1 paid, 1 being solved, 1 released; "
        "INTERNAL: 1 failed; feeder-0004"
    )


def test_feeders_that_were_there_before_count_as_done_and_not_for_the_rate() -> None:
    clock = Clock()
    count = FleetCount(clock)
    for name in names(90):
        count.hear(FeederEvent(name, "released"))
    assert (count.done, count.per_minute, count.seconds_left) == (90, None, None)
    for name in ("a", "b"):
        count.hear(FeederEvent(name, "waiting"))
        count.hear(FeederEvent(name, "solving"))
    clock.now += 60.0
    count.hear(FeederEvent("a", "released"))
    assert (count.done, count.total) == (91, 92)
    assert count.per_minute == pytest.approx(1.0)
    assert count.seconds_left == pytest.approx(60.0)


def test_a_failed_feeder_may_wait_again_and_is_done_once() -> None:
    count = FleetCount(Clock())
    for state in ("waiting", "checking", "failed", "waiting", "checking", "released"):
        count.hear(FeederEvent("a", state))
    assert (count.done, count.total) == (1, 1)
    assert count.states() == "1 released"


def test_of_many_feeders_under_way_four_are_named() -> None:
    count = FleetCount(Clock())
    for name in names(64):
        count.hear(FeederEvent(name, "solving"))
    assert count.states().endswith("; feeder-0001, feeder-0002, feeder-0003, feeder-0004 and 60 more")


@pytest.mark.parametrize(
    ("seconds", "said"),
    [(0.2, "0 s"), (89.4, "89 s"), (90.0, "2 min"), (5000.0, "83 min"), (7500.0, "2 h 05 min")],
)
def test_time_is_said_as_people_do(seconds: float, said: str) -> None:
    assert in_time(seconds) == said


def test_piped_there_is_a_line_per_stage_and_then_rarer_and_rarer_ones() -> None:
    clock, output = Clock(), StringIO()
    progress = FleetProgress(Console(file=output), clock)
    progress.describe("reading the meter data")
    progress.describe("reading the meter data")
    clock.now += 12.0
    progress.look()
    progress.describe("fitting the load model")
    assert lines_of(output) == [
        "reading the meter data",
        "reading the meter data: 12 s",
        "fitting the load model",
    ]
    for name in names(2000):
        progress.on_event(FeederEvent(name, "waiting"))
    for name in names(2000):
        clock.now += 1.8
        progress.on_event(FeederEvent(name, "solving"))
        progress.describe("making the releases")  # no line: feeders are under way
        clock.now += 1.8
        progress.on_event(FeederEvent(name, "released"))
    written = lines_of(output)[3:]
    assert len(written) < 200  # of two hours
    assert written[0].startswith("making the releases: 3 of 2,000 (0%), 20 a minute, 1 h 40 min left")
    assert "17 a minute" in written[-1]
    assert all("failed" not in line for line in written)


def test_piped_a_run_is_not_silent_while_nothing_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("LINE_EVERY", "LOOK_EVERY"):
        monkeypatch.setattr(shown, name, 0.001)
    seen = threading.Event()

    class Watched(StringIO):
        def write(self, text: str) -> int:
            seen.set()
            return super().write(text)

    output = Watched()
    with FleetProgress(Console(file=output)):
        assert seen.wait(30.0)
    assert output.getvalue().startswith("fleet: 0 s\n")


def test_a_bar_appears_on_a_terminal_past_two_seconds_and_is_gone_at_the_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    brief = StringIO()
    with FleetProgress(Console(file=brief, force_terminal=True)) as progress:
        progress.on_event(FeederEvent("a", "waiting"))
    assert brief.getvalue() == ""
    monkeypatch.setattr(shown, "SHOWN_AFTER", 0.0)
    appeared = threading.Event()

    class Watched(StringIO):
        def write(self, text: str) -> int:
            if "1/2" in text and "; b" in text:
                appeared.set()
            return super().write(text)

    long = Watched()
    with FleetProgress(Console(file=long, force_terminal=True, width=100)) as progress:
        progress.describe("making the releases")
        progress.on_event(FeederEvent("a", "solving"))
        progress.on_event(FeederEvent("a", "released"))
        progress.on_event(FeederEvent("b", "solving"))
        assert appeared.wait(30.0)
    assert "making the releases" in long.getvalue()
    assert long.getvalue().endswith("\x1b[2K")  # the last line is wiped


@pytest.mark.parametrize("width", [40, 80, 200])
def test_the_bar_is_two_lines_at_any_width(width: int) -> None:
    output = StringIO()
    console = Console(file=output, width=width, force_terminal=True, color_system=None)
    progress = FleetProgress(console, Clock())
    for name in names(5000):
        progress.on_event(FeederEvent(name, "waiting"))
    for name in names(40):
        progress.on_event(FeederEvent(name, "solving"))
    console.print(progress.shown())
    assert len(lines_of(output)) == 2
    assert "4,960 waiting" in output.getvalue()


def test_twenty_failures_are_told_and_the_rest_counted() -> None:
    written: list[str] = []
    told = ToldFailures(written.append)
    for name in names(25):
        told.tell(name, f"street {name}", "it has no source.")
    told.rest("fleet-internal.html")
    assert written[0] == "INTERNAL: feeder-0001 (street feeder-0001) failed: it has no source."
    assert len(written) == 22
    assert written[-2] == "INTERNAL: more feeders fail; they are counted, and all are listed at the end"
    assert written[-1] == "INTERNAL: 5 more failed; all are listed in fleet-internal.html"


def test_few_failures_need_no_more_words() -> None:
    written: list[str] = []
    told = ToldFailures(written.append)
    told.tell("a", "b", "c")
    told.rest("fleet-internal.html")
    assert len(written) == 1
