"""The cases of a campaign, in an order that follows from its seed."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from random import Random

from support.faults.bench import PAGE, Bench
from support.faults.clocks import clocks, tell_wrong_time
from support.faults.full import ENOUGH_BYTES, FAULTS, fail, fill, last_of_ledger, points
from support.faults.kills import case_name, kill, kills_of
from support.faults.results import Line
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
