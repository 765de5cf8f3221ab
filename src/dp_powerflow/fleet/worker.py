"""What a worker of a fleet does: hold the conversation of a feeder's release, step by step.

A worker opens, checks, twins, solves, writes and hashes. It has the key and what the private state keeps of
its feeder; ledger, meters and the directory of the state stay with the data owner. Conversations that were
begun stay in the worker until they end. One that is not there, since its worker is gone, is held again from
its first step, with the answers that were given.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from dp_powerflow._parallel import NOTHING, Needs, Result, Tell, ThreadedJob, Threads
from dp_powerflow._threads import cores
from dp_powerflow.config import Config
from dp_powerflow.errors import DpPowerflowError, PrivacyError
from dp_powerflow.loads.history import MeterFacts
from dp_powerflow.pipeline.conversation import Ask, Conversation, Made, Maker
from dp_powerflow.pipeline.ready import make_ready
from dp_powerflow.privacy.random import StreamKey
from dp_powerflow.privacy.state import CarriedState, Files

MOST_BEGUN = 256
"""Conversations that a worker keeps; the oldest are forgotten."""


@dataclass(frozen=True)
class Refused:
    """An answer: what was asked for is refused, in a sentence."""

    sentence: str


@dataclass(frozen=True, eq=False, repr=False)
class Step:
    """PRIVATE. Go on with one feeder.

    Attributes
    ----------
    config : of its release.
    files : what the private state keeps of it.
    places : PUBLIC. Number of a load point on this feeder → its node; None where all feeders share them.
    answers : to all that was asked before.
    wide : whether it may use all cores of the machine.
    only_looks : whether it is examined and goes no further; nothing is prepared where the corpus will be.
    """

    config: Config
    files: Files
    places: Mapping[int, str] | None = None
    answers: tuple[Any, ...] = ()
    wide: bool = False
    only_looks: bool = False


@dataclass(frozen=True, eq=False, repr=False)
class Stage:
    """PRIVATE. How far a feeder has come.

    Attributes
    ----------
    said : what is asked now, or what was made; None if it failed.
    files : to be kept in the private state.
    problem : why it failed, in a sentence.
    seconds : that this step has taken.
    """

    said: Ask | Made | None
    files: Files
    problem: str | None = None
    seconds: float = 0.0


@dataclass(frozen=True, eq=False, repr=False)
class FeederJob:
    """PRIVATE. What all feeders of a fleet have in common.

    Attributes
    ----------
    key : secret of the private state.
    root : where the state is, for messages; no worker looks there.
    meters : PUBLIC facts of the meters.
    files : what the state keeps for all feeders: the load model, once it is fitted.
    run : random name of the run. A job with the load model goes on with what one without it has begun.
    """

    key: StreamKey
    root: Path
    meters: MeterFacts
    files: Files = field(default_factory=dict)
    run: str = ""

    def start(self, threads: int | None) -> Callable[[Step, Tell], Stage]:
        """A worker with so many threads, None for all cores."""
        return _Worker(self, threads or cores())


@dataclass(eq=False, repr=False)
class _Hands:
    """What a worker makes the parts of a feeder with; it may have more threads from one step to the next."""

    threads: int
    tell: Tell

    def check(self, needs: Needs = NOTHING) -> None:
        """Nothing is needed."""

    def run(
        self, job: ThreadedJob[Result], tasks: Sequence[int], on_result: Callable[[Result], None]
    ) -> None:
        """Do every task on the threads of this worker."""
        Threads(self.threads if job.threadsafe else 1).run(job, tasks, on_result)

    def progress(self, done: int, total: int) -> None:
        """Tell how far it is."""
        self.tell((done, total))


@dataclass(eq=False, repr=False)
class _Begun:
    """PRIVATE. A conversation, how many answers it has had, and what makes its parts."""

    conversation: Conversation
    state: CarriedState
    hands: _Hands
    answers: int = -1  # it has not said anything yet

    def go_on(self, answers: tuple[Any, ...]) -> Ask | Made:
        """Give the answers that it has not had; what it asks next, or what it made."""
        said: Ask | Made | None = None
        try:
            if self.answers < 0:
                said, self.answers = next(self.conversation), 0
            for answer in answers[self.answers :]:
                self.answers += 1
                if isinstance(answer, Refused):
                    said = self.conversation.throw(PrivacyError(answer.sentence))
                else:
                    said = self.conversation.send(answer)
        except StopIteration as end:
            said = end.value
        assert said is not None
        return said


_runs: dict[str, OrderedDict[str, _Begun]] = {}


def _begun_in(run: str) -> OrderedDict[str, _Begun]:
    """PRIVATE. Conversations of a run in this process, by release; those of other runs are forgotten."""
    found = _runs.get(run) if run else None
    _runs.clear()
    begun = OrderedDict[str, _Begun]() if found is None else found
    if run:
        _runs[run] = begun
    return begun


class _Worker:
    """PRIVATE. Holds the conversations of one worker."""

    def __init__(self, job: FeederJob, threads: int) -> None:
        self._job, self._threads = job, threads
        self._begun = _begun_in(job.run)

    def __call__(self, step: Step, tell: Tell) -> Stage:
        begun = time.monotonic()
        stage = self._go_on(step, tell)
        return replace(stage, seconds=time.monotonic() - begun)

    def _go_on(self, step: Step, tell: Tell) -> Stage:
        release_id = step.config.release.id
        begun = self._begun.pop(release_id, None)
        if begun is None or begun.answers != len(step.answers) - 1:
            begun = self._begin(step)
        begun.state.files.update({**self._job.files, **step.files})  # a model may have been fitted meanwhile
        begun.hands.threads = max(self._threads, cores()) if step.wide else self._threads
        begun.hands.tell = tell
        try:
            said = begun.go_on(step.answers)
        except (DpPowerflowError, OSError) as error:
            return Stage(None, begun.state.taken(), str(error))
        if not (isinstance(said, Made) or step.only_looks):
            self._begun[release_id] = begun
            if len(self._begun) > MOST_BEGUN:
                self._begun.popitem(last=False)
        return Stage(said, begun.state.taken())

    def _begin(self, step: Step) -> _Begun:
        meters = meters_of_step(self._job.meters, step)
        files = {**self._job.files, **step.files}
        state = CarriedState(self._job.root, self._job.key, files)
        hands = _Hands(self._threads, lambda _: None)
        return _Begun(_conversation(step, state, meters, hands), state, hands)


def meters_of_step(meters: MeterFacts, step: Step) -> MeterFacts:
    """PUBLIC facts of the meters, with the nodes of this feeder alone."""
    if step.places is None:
        return meters
    nodes = (step.places.get(k) for k in range(len(meters.node_of)))
    return replace(meters, node_of=tuple(nodes))


def _conversation(step: Step, state: CarriedState, meters: MeterFacts, hands: _Hands) -> Conversation:
    """Read and check a feeder, then make its release."""
    ready = make_ready(step.config, state, history=meters)
    maker = Maker(ready, hands, lambda _: None, hands.progress)
    return (yield from maker.steps(only_looks=step.only_looks))
