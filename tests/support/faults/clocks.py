"""Clocks that are wrong, go back, or jump between two runs: the same bits, and no budget regained."""

from __future__ import annotations

import os
import sqlite3
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path

from dp_powerflow.privacy.state import LEDGER_FILE
from support.faults.bench import Bench, Case
from support.faults.children import in_child
from support.faults.looking import BITS, DOUBLE, LOST, WORDS
from support.faults.results import CLOCKS, Line
from support.faults.shim import Action, Strike
from support.faults.subjects import CONFIG, Subject, command, write_config

DAY, YEAR = 86_400, 31_557_600
CLOSE = 3_600
"""Seconds that a case takes at most."""
ANOTHER = "another.toml"


@dataclass(frozen=True)
class Clock:
    """How wrong a clock is when a run is killed, when it resumes, and when others look.

    Attributes
    ----------
    first, then, later : seconds that it is ahead.
    zone : of the machine, as the variable TZ says it.
    """

    name: str
    first: int
    then: int
    later: int
    zone: str = "UTC0"


def _seconds_to(moment: str) -> int:
    return int(datetime.fromisoformat(moment).timestamp() - time.time())


def clocks() -> tuple[Clock, ...]:
    """Back and ahead by hours to decades, the ends of 32 bits, and the hours that summer time repeats."""
    central = "CET-1CEST,M3.5.0,M10.5.0/3"
    fold, gap = _seconds_to("2026-10-25T00:30:00+00:00"), _seconds_to("2026-03-29T00:59:50+00:00")
    end = _seconds_to("2038-01-19T03:14:00+00:00")
    return (
        Clock("a day back at the resume", 0, -DAY, 0),
        Clock("ten years back at the resume", 0, -10 * YEAR, 0),
        Clock("ten years ahead, then right again", 10 * YEAR, 0, 0),
        Clock("a year ahead with every run", 0, YEAR, 2 * YEAR),
        Clock("a year back with every run", 0, -YEAR, -2 * YEAR),
        Clock("before 1970, as far as the machine can tell", 0, _seconds_to("1970-01-01T00:00:10+00:00"), 0),
        Clock("over the end of 32 bits", end, end + 60, end + DAY),
        Clock("hour that comes twice", fold, fold + 3600, fold + 1800, central),
        Clock("hour that is left out", gap, gap + 30, gap + 60, central),
        Clock("a second back", 0, -1, -2),
    )


def tell_wrong_time(bench: Bench, subject: Subject, clock: Clock, at: int) -> Line:
    """Kill a release at a call, resume it with another clock, then look at it and try to spend too much."""
    zoned = replace(subject, run=_zoned(subject.run, clock.zone))
    case = bench.case(subject)
    try:
        bench.shim.set_clock(clock.first)
        case.known = replace(case.known, subject=zoned)
        bench.disturb(case, Strike(Action.KILL, at, kinds=subject.kinds))
        bench.between(case, killed=True)
        bench.shim.set_clock(clock.then)
        bench.finish(case)
        bench.shim.set_clock(0)
        _check_times(case, clock)
        bench.shim.set_clock(clock.later)
        _look(bench, case)
        _spend_too_much(bench, case)
    finally:
        bench.shim.set_clock(0)
    name = f"{subject.name}: {clock.name}, kill@{at}"
    return Line(CLOCKS, name, clock.name, tuple(case.wrong), kills=1)


def _zoned(run: Callable[[Path], object], zone: str) -> Callable[[Path], object]:
    def in_zone(folder: Path) -> None:
        os.environ["TZ"] = zone
        time.tzset()
        run(folder)

    return in_zone


def _check_times(case: Case, clock: Clock) -> None:
    """That entries have the time of the wrong clocks: otherwise nothing was tried."""
    with sqlite3.connect(case.folder / "state" / LEDGER_FILE) as connection:
        times = [datetime.fromisoformat(at) for (at,) in connection.execute("SELECT at FROM entry")]
    told = [time.time() + ahead for ahead in (clock.first, clock.then)]
    if not all(min(abs(at.timestamp() - now) for now in told) < CLOSE for at in times):
        case.blame(WORDS, "the entries of the ledger do not have the time of the clock")


def _look(bench: Bench, case: Case) -> None:
    """`verify`, `ledger` and a second run see nothing wrong, and change nothing."""
    before = case.look()
    commands = (("verify", "out"), ("verify", "out", "--private", "state"), ("ledger", "state"))
    for arguments in (*commands, ("release", CONFIG)):
        run = command(*arguments)
        ended = in_child(lambda run=run: run(case.folder), bench.root / "log")  # type: ignore[misc]
        if ended.code != 0:
            case.blame(LOST, f"{' '.join(arguments)}: code {ended.code}: {ended.text.strip()[-300:]}")
    if case.look() != before:
        case.blame(BITS, "looking at a release changed it")


def _spend_too_much(bench: Bench, case: Case) -> None:
    """Another release with a fit of its own is above the cap, whatever the year is."""
    another = {"days": 4, "id": "another", "output": "out-another"}
    write_config(case.folder, {"release": another}, ANOTHER)
    run = command("release", ANOTHER)
    ended = in_child(lambda: run(case.folder), bench.root / "log")
    found = case.look()
    if ended.code != 2 or "cap" not in ended.text:
        case.blame(WORDS, f"a charge above the cap ended with code {ended.code}: {ended.text.strip()[-300:]}")
    if found is not None and found.spends != case.known.reference.after.spends:
        case.blame(DOUBLE, "a charge above the cap was made")
