"""Strikes at a command: `kill -9` at every system call, failing and full disks, wrong clocks."""

from __future__ import annotations

import errno
import os
import random
import sqlite3
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path

from dp_powerflow.privacy.state import LEDGER_FILE
from support.faults.bench import Bench, Case, Undisturbed
from support.faults.disks import mounted, resized
from support.faults.looking import BITS, DOUBLE, LOST, WORDS, Ended, Snapshot, in_child
from support.faults.results import CLOCKS, DISKS, KILLS, Line
from support.faults.shim import Action, Event, Kind, Strike, Victim
from support.faults.subjects import CONFIG, Subject, command, write_config

AGAIN = 4
"""Of so many cases one is killed a second time, and of so many of those one a third time."""


@dataclass(frozen=True)
class Kill:
    """Where a command is killed: before a call, or when half of its bytes are written."""

    at: int
    action: Action
    victim: Victim

    @property
    def name(self) -> str:
        return f"{self.action.name.lower()}@{self.at}:{self.victim.name.lower()}"


def places(known: Undisturbed, seed: int) -> list[Kill]:
    """All places to kill a command at: one of every kind of call first, then the others, shuffled."""
    rng = random.Random(f"{seed} {known.subject.name}")
    first: dict[object, Kill] = {}
    others: list[Kill] = []
    numbers = list(range(len(known.events)))
    rng.shuffle(numbers)
    for number in numbers:
        kind = known.events[number].kind
        for action in (Action.KILL, Action.KILL_HALF) if kind is Kind.WRITE else (Action.KILL,):
            for victim in known.subject.victims:
                kill = Kill(number, action, victim)
                if (kind, action, victim) in first:
                    others.append(kill)
                else:
                    first[kind, action, victim] = kill
    rng.shuffle(others)
    return [*first.values(), *others]


def kills_of(known: Undisturbed, seed: int) -> Iterator[tuple[Kill, ...]]:
    """Cases in their order: one kill, or two, or three with runs between them."""
    rng = random.Random(f"{seed} again {known.subject.name}")
    for number, kill in enumerate(places(known, seed)):
        more = (number % AGAIN == AGAIN - 1) + (number % AGAIN**2 == AGAIN**2 - 1)
        again = (Kill(rng.randrange(len(known.events)), Action.KILL, kill.victim) for _ in range(more))
        yield (kill, *again)


def case_name(subject: Subject, kills: tuple[Kill, ...]) -> str:
    """Says which command is killed, and where."""
    return f"{subject.name}: {' '.join(kill.name for kill in kills)}"


def kill(bench: Bench, subject: Subject, kills: tuple[Kill, ...]) -> Line:
    """Kill a command one or more times, look at what is left each time, and let it finish."""
    case, hits = bench.case(subject), 0
    for each in kills:
        strike = Strike(each.action, each.at, kinds=subject.kinds, victim=each.victim)
        ended, struck = bench.disturb(case, strike)
        hits += struck
        if struck and not ended.killed and ended.code not in (subject.code, 2):
            case.blame(LOST, f"a killed worker ended the run with code {ended.code}")
        bench.between(case, killed=True)
    bench.finish(case)
    call = case.known.events[kills[0].at].kind.name.lower()
    return Line(KILLS, case_name(subject, kills), subject.name, tuple(case.wrong), call, hits)


UNSPENT = "nothing was spent"
_NEEDS_SPACE = (Kind.CREATE, Kind.WRITE, Kind.LINK, Kind.MKDIR, Kind.RENAME)
_CHANGES = (
    *(Kind.CREATE, Kind.OPEN, Kind.WRITE, Kind.TRUNCATE, Kind.RENAME, Kind.LINK, Kind.UNLINK),
    *(Kind.MKDIR, Kind.RMDIR, Kind.CHMOD, Kind.TOUCH),
)
ENOUGH_BYTES = 256 << 20
_MANY = 100_000


@dataclass(frozen=True)
class Fault:
    """How a disk fails: which calls, with which errno, from one on or once.

    Attributes
    ----------
    noticed : False for what a program has to bear without a word.
    """

    name: str
    kinds: tuple[Kind, ...]
    error: int = 0
    action: Action = Action.FAIL
    noticed: bool = True


FAULTS = (
    Fault("no space", _NEEDS_SPACE, errno.ENOSPC),
    Fault("quota reached", _NEEDS_SPACE, errno.EDQUOT),
    Fault("read-only", _CHANGES, errno.EROFS),
    Fault("broken", (Kind.WRITE, Kind.SYNC), errno.EIO),
    Fault("one error", (Kind.WRITE, Kind.SYNC, Kind.RENAME), errno.EIO, Action.FAIL_ONCE),
    Fault("no space when flushed", (Kind.SYNC,), errno.ENOSPC, Action.FAIL_ONCE),
    Fault("short write", (Kind.WRITE,), action=Action.SHORT, noticed=False),
)


def points(known: Undisturbed, fault: Fault) -> list[Event]:
    """The calls at which a subject can meet a fault."""
    return [event for event in known.events if event.kind in fault.kinds]


def last_of_ledger(known: Undisturbed, fault: Fault) -> int:
    """The last of these calls by which SQLite writes the ledger: something was charged before."""
    of_ledger = [at for at, event in enumerate(points(known, fault)) if LEDGER_FILE in event.name]
    return of_ledger[-1]


def fail(bench: Bench, subject: Subject, fault: Fault, at: int) -> Line:
    """Let a disk fail from a call on, listen to what is said, mend the disk, and let the command finish."""
    case = bench.case(subject)
    strike = Strike(fault.action, at, fault.error, fault.kinds)
    ended, struck = bench.disturb(case, strike)
    found = bench.between(case, killed=Kind.UNLINK in fault.kinds)
    if struck and not fault.noticed and ended.code != subject.code:
        case.blame(LOST, f"a short write ended the command: {' '.join(ended.errors)[-300:]}")
    _listen(case, ended, found)
    bench.finish(case)
    return _line(case, f"{subject.name}: {fault.name} at {at}", fault.name, ended)


def fill(bench: Bench, subject: Subject, size: int, inodes: int) -> Line:
    """The command on a disk of so many bytes and files, 0 for any number, which then grows."""
    options = f"size={size},nr_inodes={inodes or _MANY}"
    with mounted(bench.root / "case", options) as place:
        case = bench.case(subject)
        ended, _ = bench.disturb(case, Strike())
        found = bench.between(case, killed=False)
        _listen(case, ended, found)
        resized(place, f"size={ENOUGH_BYTES},nr_inodes={_MANY}")
        bench.finish(case)
    fault = "disk of few files" if inodes else "small disk"
    return _line(case, f"{subject.name}: {options}", fault, ended)


def _line(case: Case, name: str, fault: str, ended: Ended) -> Line:
    return Line(DISKS, name, fault, tuple(case.wrong), noticed=ended.code != case.known.subject.code)


def _listen(case: Case, ended: Ended, found: Snapshot | None) -> None:
    """One sentence, exit code 2, and what it says of the budget is true."""
    if ended.code == case.known.subject.code:
        return
    if ended.code != 2 or len(ended.errors) != 1:
        said = ended.text.strip().splitlines()[-1:] or ["nothing"]
        case.blame(WORDS, f"code {ended.code}, {len(ended.errors)} sentences: {said[0][-300:]}")
        return
    [sentence] = ended.errors
    before = case.known.reference.before.spends
    if found is not None and UNSPENT in sentence and found.spends != before:
        case.blame(WORDS, f"{sum((found.spends - before).values())} charges, yet: {sentence[-300:]}")


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
