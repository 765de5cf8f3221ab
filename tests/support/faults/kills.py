"""`kill -9` at every system call on a file, and the run that follows."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass

from support.faults.bench import Bench, Undisturbed
from support.faults.looking import LOST
from support.faults.results import KILLS, Line
from support.faults.shim import Action, Kind, Strike, Victim
from support.faults.subjects import Subject

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
