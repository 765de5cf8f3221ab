"""What engines have in common: a job, its tasks, and how it travels.

A job is private. It travels to every worker once, outside the task graph: keys, graph and dashboard hold
numbers of tasks and the word PRIVATE.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

from dp_powerflow._parallel.crew import Crew, OnTold
from dp_powerflow._parallel.fitness import NOTHING, Needs
from dp_powerflow.errors import DpPowerflowError

Result = TypeVar("Result")
Result_co = TypeVar("Result_co", covariant=True)


@dataclass(frozen=True)
class Rest(Generic[Result_co]):
    """What is left of a task that has computed, and now waits for a disk or a network.

    Attributes
    ----------
    finish : does it, in any thread, and gives the result of the task.
    """

    finish: Callable[[], Result_co]


class Job(Protocol[Result_co]):
    """What the tasks have in common; PRIVATE. It is pickled to workers."""

    def start(self, threads: int | None) -> Callable[[int], Result_co | Rest[Result_co]]:
        """Prepare a worker of so many threads, None for all cores; the function that does one task."""


class ThreadedJob(Job[Result_co], Protocol[Result_co]):
    """A job that says whether its tasks may share a process."""

    @property
    def threadsafe(self) -> bool:
        """Whether threads of one process may do its tasks at once, each with a worker of its own."""


class Runner(Protocol):
    """Where tasks are done."""

    def check(self, needs: Needs = NOTHING) -> None:
        """Fail now if the work could not be done later; nothing has been spent yet."""

    def run(
        self, job: ThreadedJob[Result], tasks: Sequence[int], on_result: Callable[[Result], None]
    ) -> None:
        """Do every task, in any order; the first failure ends it. Results are reported as they come."""


class Engine(Runner, Protocol):
    """Where tasks are done, and where pieces of work are.

    Attributes
    ----------
    splits : whether a large piece of work is better done as tasks of many workers than by one of a crew,
        which cannot have more than its own cores.
    """

    @property
    def splits(self) -> bool: ...

    def crew(self, on_told: OnTold, begun_per_worker: int) -> AbstractContextManager[Crew]:
        """Workers that keep what they have begun; they end with the context.

        Parameters
        ----------
        on_told : gets what workers tell, while answers are waited for.
        begun_per_worker : pieces of work after which a process is replaced. Workers of Dask are not.
        """


@dataclass(frozen=True)
class Failure:
    """What a task returns that failed for a reason fit for the user; an exception may not survive the way."""

    error: DpPowerflowError


class Sealed:
    """A job on its way to workers, and there: PRIVATE, and it says nothing but that.

    Parameters
    ----------
    threads : of each worker's solver; None for all cores.
    """

    def __init__(self, job: Job[Any], threads: int | None = 1) -> None:
        self._job, self._threads = job, threads
        self._own, self._starting = threading.local(), threading.Lock()

    def __repr__(self) -> str:
        return "Sealed(PRIVATE)"

    def __reduce__(self) -> tuple[type[Sealed], tuple[Job[Any], int | None]]:
        return Sealed, (self._job, self._threads)

    def begin(self, task: int) -> Any:
        """Do one task, or all but the `Rest` of it.

        Every thread has a worker of its own. They are prepared one after the other.
        """
        if not hasattr(self._own, "work"):
            with self._starting:
                self._own.work = self._job.start(self._threads)
        return self._own.work(task)

    def attempt(self, task: int) -> Any:
        """Do one task where what it raises has a way to go: a failure fit for the user is returned."""
        try:
            return finished(self.begin(task))
        except DpPowerflowError as error:
            # Only those made from their message can be pickled.
            rebuilt = error if type(error).__init__ is Exception.__init__ else DpPowerflowError(str(error))
            return Failure(rebuilt)


def finished(begun: Any) -> Any:
    """The result of a task that was begun; finishes the rest of it now."""
    return begun.finish() if isinstance(begun, Rest) else begun


def unwrapped(result: Any) -> Any:
    """A result that has travelled; raises the failure that came in its place."""
    if isinstance(result, Failure):
        raise result.error
    return result
