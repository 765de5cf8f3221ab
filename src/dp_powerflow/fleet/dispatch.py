"""Hands the feeders of a fleet to workers, and answers what their conversations ask.

Feeders are examined in the order of their public names, and charged in this order, whoever is examined
sooner: an account gets the next number, and the noise of a twin is bound to it. So the released bytes do not
depend on workers. What is charged together is whatever has been examined when the workers have nothing else
to do, at most `BATCH` feeders or `BATCH_NODES` nodes: so many stay open in the memory of the workers. Of
those that are paid, the largest is made first.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any, Protocol

from dp_powerflow._parallel import Answer, Crew
from dp_powerflow.fleet.attempts import Again
from dp_powerflow.fleet.events import FeederEvent, FeederState, OnEvent
from dp_powerflow.fleet.feeders import FleetFeeder
from dp_powerflow.fleet.worker import Refused, Stage, Step
from dp_powerflow.pipeline.conversation import Ask, Drawn, Examined, Made, Paid, Solved

BATCH, BATCH_NODES = 64, 40_000
LARGE_WORK = 2_000_000
"""Node-days from which a feeder is worth the days of several workers: half a minute of one of them."""
DRAWS_PER_NODE = 20
"""Customers that are drawn in the time in which a node is solved and written, about."""
AHEAD = 4
"""Requests under way per worker: a worker that finds nothing of its own takes over what another has begun."""
MOST_LOSSES = 2
"""Workers that one feeder may end before it counts as failed."""
LOST = (
    "its worker ended unexpectedly, perhaps for want of memory or because the feeder crashes OpenDSS; run "
    "the fleet again to resume"
)


@dataclass(eq=False, repr=False)
class Progressing:
    """PRIVATE. One feeder on its way.

    Attributes
    ----------
    answers : to all that its conversation has asked.
    examined : what the checks found; None before.
    where : the worker that had it last.
    seconds : that workers took for it.
    again : whether another attempt took its place.
    made, problem : how it ended; both None on the way.
    """

    feeder: FleetFeeder
    number: int
    answers: list[Any] = field(default_factory=list)
    examined: Examined | None = None
    paid: Paid | None = None
    where: str | None = None
    losses: int = 0
    seconds: float = 0.0
    again: bool = False
    made: Made | None = None
    problem: str | None = None

    @property
    def ended(self) -> bool:
        """Whether it is made, failed, or begun again as another attempt."""
        return self.made is not None or self.problem is not None or self.again

    @property
    def work(self) -> int:
        """What making it takes, about, in node-days; to draw a customer takes less than to solve a node."""
        if self.examined is None:
            return 0
        return (self.examined.nodes + self.examined.draws // DRAWS_PER_NODE) * self.feeder.config.release.days


class Owner(Protocol):
    """PRIVATE. The data owner's side of a fleet."""

    def step(self, feeder: FleetFeeder) -> Step:
        """What a worker needs to begin with a feeder."""

    def keep(self, stage: Stage) -> None:
        """Keep files in the private state."""

    def keep_defect(self, feeder: FleetFeeder, details: str) -> str:
        """Keep what is known of a defect; a sentence for the data owner."""

    def usable(self) -> None:
        """A feeder has passed all checks."""

    def pay(self, examined: Sequence[tuple[FleetFeeder, Examined]]) -> Sequence[Paid | Refused | Again]:
        """Charge feeders that have passed all checks, or say which attempts to examine instead."""

    def charge(self, feeder: FleetFeeder, examined: Examined) -> Paid | Refused:
        """Charge the network of a feeder that is solved."""

    def finish(self, way: Progressing) -> None:
        """Publish a feeder that is made, or report one that failed."""


@dataclass(eq=False)
class _Left:
    """How much there is still to be made.

    Attributes
    ----------
    feeders, examined : how many, and of how many of them the size is known.
    work : of the latter.
    """

    feeders: int
    examined: int = 0
    work: int = 0

    def add(self, way: Progressing) -> None:
        """The size of a feeder is known now."""
        self.examined += 1
        self.work += way.work

    def take(self, way: Progressing) -> None:
        """A feeder is at its end."""
        self.feeders -= 1
        self.forget(way)

    def forget(self, way: Progressing) -> None:
        """The size of a feeder no longer counts."""
        if way.examined is not None:
            self.examined -= 1
            self.work -= way.work

    def is_large(self, way: Progressing, workers: int) -> bool:
        """Whether a feeder is more than the share of one worker, if the unknown ones are like the others."""
        expected = self.work * self.feeders / max(1, self.examined)
        return way.work * workers > expected


class Dispatcher:
    """PRIVATE. One run of a crew over feeders.

    Parameters
    ----------
    feeders : in the order in which they are charged.
    on_event : hears where every feeder is.

    Attributes
    ----------
    ways : all feeders, in this order.
    large : feeders that are paid and were not given to a worker: their days are for several.
    """

    def __init__(self, owner: Owner, feeders: Sequence[FleetFeeder], on_event: OnEvent) -> None:
        self._owner, self._on_event = owner, on_event
        self.ways = [Progressing(feeder, number) for number, feeder in enumerate(feeders)]
        self.large: list[Progressing] = []
        self._to_examine = deque(self.ways)
        self._all_examined = False
        self._charged = 0  # so many were charged, or failed before
        self._paid: list[Progressing] = []
        self._under_way: set[int] = set()
        self._left = _Left(len(self.ways))
        self._splits, self._workers = False, 1

    def told(self, number: int, told: Any) -> None:
        """A worker says how many parts of a feeder are done."""
        done, total = told
        self._event(self.ways[number], "solving", done, total)

    def unpaid(self) -> list[Progressing]:
        """Feeders that workers have begun, and that are neither paid for nor at their end."""
        waiting = {way.number for way in self._to_examine}
        begun = (way for way in self.ways if way.number not in waiting)
        return [way for way in begun if way.paid is None and not way.ended]

    def examine_all(self, crew: Crew) -> None:
        """Examine all feeders and go no further."""
        ways = iter(self.ways)
        for way in islice(ways, crew.at_once + 1):
            self._look_at(crew, way)
        for answer in crew.answers():
            way, stage = self._looked_at(answer)
            way.problem = self._problem_of(way, answer) if stage is None else stage.problem
            if stage is not None and isinstance(stage.said, Examined):
                way.examined = stage.said
            self._event(way, "failed" if way.problem is not None else "released")
            for following in islice(ways, 1):
                self._look_at(crew, following)

    def run(self, crew: Crew, *, splits: bool = False) -> None:
        """Make all feeders, or find out why they cannot be made.

        Parameters
        ----------
        splits : leave the days of a feeder that is larger than a worker's share to several workers.
        """
        self._splits, self._workers = splits, crew.at_once
        self._fill(crew)
        for answer in crew.answers():
            self._take(crew, self.ways[answer.number], answer)
            self._fill(crew)
        for way in self.ways:  # none is left without a word, whatever the crew did
            if not way.ended and way not in self.large:
                self._fail(way, LOST)

    def _look_at(self, crew: Crew, way: Progressing) -> None:
        """Have a feeder examined, and nothing prepared for it where the corpus will be."""
        self._event(way, "checking")
        self._submit(crew, way, only_looks=True)

    def _looked_at(self, answer: Answer) -> tuple[Progressing, Stage | None]:
        self._under_way.discard(answer.number)
        return self.ways[answer.number], answer.value

    def _fill(self, crew: Crew) -> None:
        """Give every worker something to do, and some more: what it has begun itself, so that none waits."""
        while len(self._under_way) < AHEAD * crew.at_once:
            way = self._next()
            if way is None:
                return
            if self._splits and way.work >= LARGE_WORK and self._left.is_large(way, crew.at_once):
                self.large.append(way)
            else:
                self._submit(crew, way)

    def _next(self) -> Progressing | None:
        """What to do next: make what is paid, the largest first; else examine; charge what is due."""
        if self._is_due():
            self._charge()
        if self._paid:
            self._paid.sort(key=lambda way: way.work)
            return self._paid.pop()
        way = self._to_examine.popleft() if self._to_examine else None
        self._all_examined = way is None
        if way is not None:
            self._event(way, "checking")
        elif self._is_due():
            return self._next()
        return way

    def _waiting(self) -> list[Progressing]:
        """Feeders that can be charged next: examined, with none before them that is not."""
        found = []
        for way in self.ways[self._charged :]:
            if way.examined is None and way.problem is None:
                break
            found.append(way)
        return found

    def _is_due(self) -> bool:
        waiting = self._waiting()
        nodes = sum(way.examined.nodes for way in waiting if way.examined is not None)
        full = len(waiting) >= BATCH or nodes >= BATCH_NODES
        all_known = self._all_examined and self._charged + len(waiting) == len(self.ways)
        idle = self._all_examined and not self._paid and len(self._under_way) < self._workers
        return bool(waiting) and (full or all_known or idle)

    def _charge(self) -> None:
        waiting = self._waiting()[:BATCH]
        self._charged += len(waiting)
        good = [(way, way.examined) for way in waiting if way.problem is None and way.examined is not None]
        if not good:
            return
        answers = self._owner.pay([(way.feeder, examined) for way, examined in good])
        for (way, _), answer in zip(good, answers, strict=True):
            if isinstance(answer, Again):
                self._begin_again(way, answer.feeder)
                continue
            self._event(way, "paid")
            self._answer(way, answer)
            self._paid.append(way)

    def _begin_again(self, way: Progressing, feeder: FleetFeeder) -> None:
        """Another attempt at a feeder, after all others: it is examined as if it had never been."""
        way.again = True
        self._left.forget(way)
        following = Progressing(feeder, len(self.ways))
        self.ways.append(following)
        self._to_examine.append(following)
        self._all_examined = False

    def _answer(self, way: Progressing, answer: Any) -> None:
        way.answers.append(answer)
        if isinstance(answer, Paid):
            way.paid = answer

    def _submit(self, crew: Crew, way: Progressing, *, only_looks: bool = False) -> None:
        base = self._owner.step(way.feeder)
        wide = bool(way.answers) and self._left.is_large(way, crew.at_once)
        self._under_way.add(way.number)
        step = replace(base, answers=tuple(way.answers), wide=wide, only_looks=only_looks)
        crew.submit(way.number, step, near=way.where)

    def _take(self, crew: Crew, way: Progressing, answer: Answer) -> None:
        self._under_way.discard(way.number)
        way.seconds += 0.0 if answer.value is None else answer.value.seconds
        way.where = answer.where or way.where
        if answer.lost:
            way.losses, way.where = way.losses + 1, None
            if way.losses < MOST_LOSSES:
                self._submit(crew, way)
                return
        if answer.value is None:
            self._fail(way, self._problem_of(way, answer))
        else:
            self._go_on(crew, way, answer.value)

    def _problem_of(self, way: Progressing, answer: Answer) -> str:
        """Why there is no answer, in a sentence."""
        if answer.defect is not None:
            return self._owner.keep_defect(way.feeder, answer.defect)
        return answer.problem or LOST

    def _go_on(self, crew: Crew, way: Progressing, stage: Stage) -> None:
        """Keep what a worker has made for the private state, and answer what it asks."""
        self._owner.keep(stage)
        said: Ask | Made | None = stage.said
        if said is None:
            self._fail(way, stage.problem or LOST)
        elif isinstance(said, Made):
            way.made = said
            self._end(way)
        elif isinstance(said, Examined):
            way.examined = said
            self._left.add(way)
            self._owner.usable()
        elif isinstance(said, Drawn):
            self._event(way, "solving")
            self._answer(way, None)
            self._submit(crew, way)
        elif isinstance(said, Solved):
            assert way.examined is not None
            self._answer(way, self._owner.charge(way.feeder, way.examined))
            self._submit(crew, way)

    def _fail(self, way: Progressing, problem: str) -> None:
        way.problem = problem
        self._end(way)

    def _end(self, way: Progressing) -> None:
        self._left.take(way)
        self._owner.finish(way)
        self._event(way, "released" if way.problem is None else "failed")

    def _event(self, way: Progressing, state: FeederState, done: int = 0, total: int = 0) -> None:
        self._on_event(FeederEvent(way.feeder.name, state, done, total))
