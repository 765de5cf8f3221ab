"""Strikes at a command, in their order: kills at every system call, failing and full disks, wrong clocks."""

from __future__ import annotations

import errno
import os
import random
import sqlite3
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial
from itertools import chain, count, islice
from pathlib import Path

from dp_powerflow.privacy.state import LEDGER_FILE
from support.faults import subjects
from support.faults.bench import Bench, Case, Line, Undisturbed
from support.faults.looking import Ended, Snapshot
from support.faults.shim import Action, Event, Kind, Strike
from support.faults.subjects import CONFIG, Subject, command, write_config
from support.stores import Store

Item = tuple[str, Callable[[str], Line]]
"""The name of a case that is still to be tried, and what tries it."""
KILLS, DISKS, CLOCKS = "kills", "disks", "clocks"
AGAIN = 4
"""Of so many cases one is killed a second time, and of so many of those one a third time."""


def places(known: Undisturbed, seed: int) -> list[Strike]:
    """All places to kill a command at, before a call or when half of its bytes are written.

    One of every kind of call comes first, then the others, shuffled.
    """
    rng, subject = random.Random(f"{seed} {known.subject.name}"), known.subject
    kills = [
        Strike(action, number, kinds=subject.kinds, victim=victim)
        for number, event in enumerate(known.events)
        for action in ((Action.KILL, Action.KILL_HALF) if event.kind is Kind.WRITE else (Action.KILL,))
        for victim in subject.victims
    ]
    rng.shuffle(kills)
    first = {(known.events[kill.at].kind, kill.action, kill.victim): kill for kill in reversed(kills)}
    return list(dict.fromkeys([*first.values(), *kills]))


def kills(bench: Bench, seed: int, subject: Subject) -> Iterator[Item]:
    """Every place at which a command can be killed, some with a second or third kill in the runs after."""
    known = bench.undisturbed(subject)
    rng = random.Random(f"{seed} again {subject.name}")
    for number, first in enumerate(places(known, seed)):
        more = (number % AGAIN == AGAIN - 1) + (number % AGAIN**2 == AGAIN**2 - 1)
        again = [replace(first, action=Action.KILL, at=rng.randrange(len(known.events))) for _ in range(more)]
        each = [f"{k.action.name.lower()}@{k.at}:{k.victim.name.lower()}" for k in (first, *again)]
        yield f"{subject.name}: {' '.join(each)}", partial(kill, bench, subject, (first, *again))


def kill(bench: Bench, subject: Subject, strikes: tuple[Strike, ...], name: str) -> Line:
    """Kill a command one or more times, look at what is left each time, and let it finish."""
    case, hits = bench.case(subject), 0
    for strike in strikes:
        ended, struck = bench.disturb(case, strike)
        hits += struck
        went_on = struck and not ended.killed and ended.code not in (subject.code, 2)
        case.expect(not went_on, f"a killed worker ended the run with code {ended.code}")
        case.between(killed=True)
    bench.finish(case)
    call = case.known.events[strikes[0].at].kind.name.lower()
    return Line(KILLS, name, subject.name, tuple(case.wrong), call, hits)


UNSPENT = "nothing was spent"
_NEEDS_SPACE = (Kind.CREATE, Kind.WRITE, Kind.LINK, Kind.MKDIR, Kind.RENAME)
_CHANGES = (
    *(Kind.CREATE, Kind.OPEN, Kind.WRITE, Kind.TRUNCATE, Kind.RENAME, Kind.LINK, Kind.UNLINK),
    *(Kind.MKDIR, Kind.RMDIR, Kind.CHMOD, Kind.TOUCH),
)


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


def disks(bench: Bench, seed: int, subject: Subject) -> Iterator[Item]:
    """Every call at which a disk can fail: with every way to fail, the last charge first."""
    known = bench.undisturbed(subject)
    places = [(fault, at) for fault in FAULTS for at in range(len(points(known, fault)))]
    random.Random(f"{seed} disks {subject.name}").shuffle(places)
    first = [(fault, last_of_ledger(known, fault)) for fault in FAULTS]
    for fault, at in dict.fromkeys([*first, *places]):
        yield f"{subject.name}: {fault.name} at {at}", partial(fail, bench, subject, fault, at)


def fail(bench: Bench, subject: Subject, fault: Fault, at: int, name: str) -> Line:
    """Let a disk fail from a call on, listen to what is said, repair the disk, and let the command finish."""
    case = bench.case(subject)
    ended, struck = bench.disturb(case, Strike(fault.action, at, fault.error, fault.kinds))
    found = case.between(killed=Kind.UNLINK in fault.kinds)
    borne = fault.noticed or not struck or ended.code == subject.code
    case.expect(borne, f"a short write ended the command: {ended.last}")
    _listen(case, ended, found)
    bench.finish(case)
    return Line(DISKS, name, fault.name, tuple(case.wrong), noticed=ended.code != subject.code)


def _listen(case: Case, ended: Ended, found: Snapshot | None) -> None:
    """One sentence, exit code 2, and what it says of the budget is true."""
    if ended.code == case.known.subject.code:
        return
    one = ended.code == 2 and len(ended.errors) == 1
    case.expect(one, f"code {ended.code}, {len(ended.errors)} sentences: {ended.last}")
    unspent = found is None or found.spends == case.known.before.spends
    case.expect(unspent or UNSPENT not in " ".join(ended.errors), f"something was charged, yet: {ended.last}")


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


def wrong_clocks() -> tuple[Clock, ...]:
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


def clocks(bench: Bench, seed: int, subject: Subject) -> Iterator[Item]:
    """Wrong clocks, each with kills at several calls."""
    rng, calls = random.Random(f"{seed} clocks {subject.name}"), len(bench.undisturbed(subject).events)
    for clock in wrong_clocks() * 20:
        at = rng.randrange(calls)
        name = f"{subject.name}: {clock.name}, kill@{at}"
        yield name, partial(tell_wrong_time, bench, subject, clock, at)


def tell_wrong_time(bench: Bench, subject: Subject, clock: Clock, at: int, name: str) -> Line:
    """Kill a release at a call, resume it with another clock, then look at it and try to spend too much."""

    def in_zone(folder: Path) -> None:
        os.environ["TZ"] = clock.zone
        time.tzset()
        subject.run(folder)

    case = bench.case(subject)
    case.known = replace(case.known, subject=replace(subject, run=in_zone))
    try:
        bench.shim.set_clock(clock.first)
        bench.disturb(case, Strike(Action.KILL, at, kinds=subject.kinds))
        case.between(killed=True)
        bench.shim.set_clock(clock.then)
        bench.finish(case)
        bench.shim.set_clock(0)
        _check_times(case, clock)
        bench.shim.set_clock(clock.later)
        _look_and_spend(bench, case)
    finally:
        bench.shim.set_clock(0)
    return Line(CLOCKS, name, clock.name, tuple(case.wrong), kills=1)


def _check_times(case: Case, clock: Clock) -> None:
    """That entries have the time of the wrong clocks: otherwise nothing was tried."""
    with sqlite3.connect(case.folder / "state" / LEDGER_FILE) as connection:
        times = [datetime.fromisoformat(at) for (at,) in connection.execute("SELECT at FROM entry")]
    told = [time.time() + ahead for ahead in (clock.first, clock.then)]
    all_told = all(min(abs(at.timestamp() - now) for now in told) < CLOSE for at in times)
    case.expect(all_told, "the entries of the ledger do not have the time of the clock")


def _look_and_spend(bench: Bench, case: Case) -> None:
    """Commands see nothing wrong and change nothing; a release with a fit of its own is above the cap."""
    write_config(case.folder, {"release": {"days": 4, "id": "another", "output": "out-another"}}, ANOTHER)
    before = case.look()
    verify = ("verify", "out")
    for arguments in (verify, (*verify, "--private", "state"), ("ledger", "state"), ("release", CONFIG)):
        ended = bench.run(case, command(*arguments))
        case.expect(ended.code == 0, f"{' '.join(arguments)}: code {ended.code}: {ended.last}")
    case.expect(case.look() == before, "looking at a release changed it")
    ended = bench.run(case, command("release", ANOTHER))
    refused = ended.code == 2 and "cap" in ended.text
    case.expect(refused, f"a charge above the cap ended with code {ended.code}: {ended.last}")
    found = case.look()
    same = found is None or found.spends == case.known.after.spends
    case.expect(same, "a charge above the cap was made")


# --------------------------------------------------------------------------------------------------- order
def in_turn(streams: Sequence[tuple[int, Iterator[Item]]]) -> Iterator[Item]:
    """Cases of several streams in turn; a stream with the figure k has one in every k-th round."""
    left = list(streams)
    for turn in count(1):
        if not left:
            return
        for every, stream in list(left):
            item = next(stream, None) if turn % every == 0 else None
            if item is not None:
                yield item
            elif turn % every == 0:
                left.remove((every, stream))


_EVERY = {"release of a twin": 1, "release of the true network": 1, "release to a store": 6, "certify": 30}
_OTHERS, _FLEETS, _CLOCKS, _PROCESSES = 2, 8, 12, 60
"""In which rounds a command has a turn: what takes long comes seldom."""
_SHORT = {"release of a twin": 14, "quality --out": 2, "init": 3, "ledger --account": 3, "plan": 2}
"""Cases of `make test`: every kind of call on a release, a few of the other commands."""


def warm_up(root: Path, *, short: bool) -> None:
    """Make releases in this process: what it imports and compiles, its children have."""
    kinds = (subjects.TWIN_RELEASE,) if short else (subjects.TWIN_RELEASE, subjects.TRUE_RELEASE)
    for number, sections in enumerate(kinds):
        folder = root / f"warm-{number}"
        folder.mkdir()
        subjects.released(folder, sections)


def long_items(bench: Bench, seed: int, store: Store | None) -> Iterator[Item]:
    """Everything, in turn."""
    to_store = [subjects.to_store(store)] if store else []
    releases, commands = subjects.releases(), subjects.commands()
    every = [(subject, _EVERY.get(subject.name, _OTHERS)) for subject in (*releases, *to_store, *commands)]
    every += [(subject, _FLEETS) for subject in subjects.fleets()]
    every += [(subject, _PROCESSES) for subject in subjects.processes()]
    streams = [(often, kills(bench, seed, subject)) for subject, often in every]
    for subject in releases[:2]:
        streams += [(_OTHERS, disks(bench, seed, subject)), (_CLOCKS, clocks(bench, seed, subject))]
    return in_turn(streams)


def short_items(bench: Bench, seed: int) -> Iterator[Item]:
    """The few cases of `make test`."""
    twin, *others = (*subjects.releases(), *subjects.commands())
    everything = {subject.name: subject for subject in (twin, *others)}
    killed = [islice(kills(bench, seed, everything[name]), n) for name, n in _SHORT.items()]
    return chain(*killed, islice(disks(bench, seed, twin), 7), islice(clocks(bench, seed, twin), 2))
