"""Which commands a campaign tries, in which order, and how often each."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain, islice
from pathlib import Path
from random import Random

from support.faults import subjects
from support.faults.bench import PAGE, Bench
from support.faults.results import CLOCKS, DISKS, KILLS, Line
from support.faults.store import Store
from support.faults.strikes import (
    ENOUGH_BYTES,
    FAULTS,
    case_name,
    clocks,
    fail,
    fill,
    kill,
    kills_of,
    last_of_ledger,
    points,
    tell_wrong_time,
)
from support.faults.subjects import Subject

_ROUNDS_OF_CLOCKS = 20


@dataclass(frozen=True)
class Item:
    """One case that is still to be tried, and its name."""

    name: str
    do: Callable[[], Line]


Stream = Callable[[], Iterator[Item]]


@dataclass(frozen=True)
class Cases:
    """Cases of one seed, tried on one bench."""

    bench: Bench
    seed: int

    def kills(self, subject: Subject) -> Iterator[Item]:
        """Every place at which a command can be killed: one of every kind of call first."""
        for kills in kills_of(self.bench.undisturbed(subject), self.seed):
            yield Item(case_name(subject, kills), partial(kill, self.bench, subject, kills))

    def disks(self, subject: Subject) -> Iterator[Item]:
        """Every call at which a disk can fail: with every way to fail, the last charge first."""
        known = self.bench.undisturbed(subject)
        places = [(fault, at) for fault in FAULTS for at in range(len(points(known, fault)))]
        self._random("disks", subject).shuffle(places)
        first = [(fault, last_of_ledger(known, fault)) for fault in FAULTS]
        for fault, at in dict.fromkeys([*first, *places]):
            name = f"{subject.name}: {fault.name} at {at}"
            yield Item(name, partial(fail, self.bench, subject, fault, at))

    def sizes(self, subject: Subject) -> Iterator[Item]:
        """Disks of every number of pages, and of every number of files, up to what the release takes."""
        known = self.bench.undisturbed(subject)
        sizes = [(PAGE * pages, 0) for pages in range(len(known.reference.before.files) + 1, known.pages)]
        sizes += [(ENOUGH_BYTES, number) for number in range(3, known.inodes)]
        self._random("sizes", subject).shuffle(sizes)
        for size, inodes in sizes:
            name = f"{subject.name}: size={size},nr_inodes={inodes}"
            yield Item(name, partial(fill, self.bench, subject, size, inodes))

    def clocks(self, subject: Subject) -> Iterator[Item]:
        """Wrong clocks, each with kills at several calls."""
        rng, calls = self._random("clocks", subject), len(self.bench.undisturbed(subject).events)
        for clock in clocks() * _ROUNDS_OF_CLOCKS:
            at = rng.randrange(calls)
            name = f"{subject.name}: {clock.name}, kill@{at}"
            yield Item(name, partial(tell_wrong_time, self.bench, subject, clock, at))

    def _random(self, what: str, subject: Subject) -> Random:
        return Random(f"{self.seed} {what} {subject.name}")


def in_turn(streams: Sequence[tuple[int, Stream]]) -> Iterator[Item]:
    """Cases of several streams in turn; a stream with the figure k has one in every k-th round."""
    begun: dict[int, Iterator[Item]] = {}
    left, turn = dict(enumerate(streams)), 0
    while left:
        for number, (every, stream) in list(left.items()):
            if turn % every == every - 1 or every == 1:
                item = next(begun.setdefault(number, stream()), None)
                if item is None:
                    del left[number]
                else:
                    yield item
        turn += 1


_EVERY = {
    **{"release of a twin": 1, "release of the true network": 1},
    **{"release to a store": 6, "certify": 30},
}
_OTHERS, _FLEETS, _CLOCKS, _FLEETS_ON_DISKS, _PROCESSES = 2, 8, 12, 24, 60
"""In which rounds a command has a turn: what takes long comes seldom."""
_SHORT = {
    "release of a twin": 14,
    "quality --out": 2,
    "init": 3,
    "ledger --account": 3,
    "plan": 2,
}
"""Cases of `make test`: every kind of call on a release, a few of the other commands."""


def warm_up(root: Path, *, short: bool) -> None:
    """Make releases in this process: what it imports and compiles, its children have."""
    kinds = (subjects.TWIN_RELEASE,) if short else (subjects.TWIN_RELEASE, subjects.TRUE_RELEASE)
    for number, sections in enumerate(kinds):
        folder = root / f"warm-{number}"
        folder.mkdir()
        subjects.released(folder, sections)


def long_items(bench: Bench, seed: int, store: Store | None, *, small_disks: bool) -> Iterator[Item]:
    """Everything, in turn."""
    cases = Cases(bench, seed)
    streams: list[tuple[int, Stream]] = []
    single = [*subjects.releases(), *([subjects.to_store(store)] if store else []), *subjects.commands()]
    streams += [(_EVERY.get(subject.name, _OTHERS), partial(cases.kills, subject)) for subject in single]
    twin, true = subjects.releases()[:2]
    for subject in (twin, true):
        streams += [(_OTHERS, partial(cases.disks, subject)), (_CLOCKS, partial(cases.clocks, subject))]
        if small_disks:
            streams.append((_OTHERS, partial(cases.sizes, subject)))
    streams += [(_FLEETS, partial(cases.kills, subject)) for subject in subjects.fleets()]
    on_disks = subjects.fleets_of_charges()
    streams += [(_FLEETS_ON_DISKS, partial(cases.disks, subject)) for subject in on_disks]
    streams += [(_PROCESSES, partial(cases.kills, subject)) for subject in subjects.processes()]
    return in_turn(streams)


def process_items(bench: Bench, seed: int) -> Iterator[Item]:
    """Kills where workers are other processes, in turn."""
    cases = Cases(bench, seed)
    return in_turn([(1, partial(cases.kills, subject)) for subject in subjects.processes()])


def short_items(bench: Bench, seed: int, part: str, *, small_disks: bool) -> Iterator[Item]:
    """The few cases of `make test`."""
    cases = Cases(bench, seed)
    twin = subjects.releases()[0]
    everything = {subject.name: subject for subject in (*subjects.releases(), *subjects.commands())}
    chosen: dict[str, Callable[[], list[Iterator[Item]]]] = {
        KILLS: lambda: [islice(cases.kills(everything[name]), n) for name, n in _SHORT.items()],
        DISKS: lambda: [islice(cases.disks(twin), 7), islice(cases.sizes(twin), 3 * small_disks)],
        CLOCKS: lambda: [islice(cases.clocks(twin), 2)],
    }
    return chain.from_iterable(chosen[part]())
