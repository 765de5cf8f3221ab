"""Engines of this machine: threads and processes."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Executor, Future, ThreadPoolExecutor, wait
from contextlib import AbstractContextManager, closing
from contextvars import copy_context
from dataclasses import dataclass
from itertools import islice
from typing import Any, ClassVar, TypeVar

from dp_powerflow._parallel.fitness import NOTHING, Needs
from dp_powerflow._parallel.processes import (
    Answer,
    Crew,
    Job,
    OnTold,
    ProcessCrew,
    Rest,
    Result,
    Sealed,
    ThreadedJob,
    Work,
    finished,
    unwrapped,
)
from dp_powerflow.errors import DpPowerflowError

MOST_THREADS = 8
"""Threads of one process: what holds the interpreter's lock, a few percent of a part, leaves room for so
many."""
WORTH_PROCESSES = 64
"""Tasks per worker from which more processes pay for their start, seconds each."""
_TASKS_PER_THREAD = 4
"""Tasks that a process of several threads gets at a time, for each thread: its threads wait for each other
at the end."""

Item = TypeVar("Item")


class WorkerDefectError(RuntimeError):
    """PRIVATE. A defect in a worker process; the message is its traceback."""


@dataclass(frozen=True)
class Local:
    """This machine: threads of this process, and more processes where the work is worth their start.

    Attributes
    ----------
    workers : tasks at once. With one, or with a single task, the solver has all cores.
    """

    workers: int
    splits: ClassVar[bool] = False

    def check(self, needs: Needs = NOTHING) -> None:
        """Nothing is needed."""

    def run(
        self, job: ThreadedJob[Result], tasks: Sequence[int], on_result: Callable[[Result], None]
    ) -> None:
        processes, threads = self.shape(len(tasks), threadsafe=job.threadsafe)
        if processes > 1:
            run_on_pool(processes, job, tasks, on_result, threads=threads)
        elif threads > 1:
            _run_in_threads(Sealed(job, max(1, self.workers // threads)), threads, tasks, on_result)
        else:
            _run_here(job, tasks, on_result)

    def crew(self, on_told: OnTold, begun_per_worker: int) -> AbstractContextManager[Crew]:
        """Processes, started as there is work for them; one has all cores."""
        return closing(ProcessCrew(self.workers, on_told, begun_per_worker))

    def shape(self, tasks: int, *, threadsafe: bool) -> tuple[int, int]:
        """Processes, and threads of each, for so many tasks; (1, 1) is this process alone.

        A process that starts costs seconds. Tasks that cannot share one get processes when there are more
        tasks than workers; others when more workers than `MOST_THREADS` have `WORTH_PROCESSES` tasks each.
        """
        if not threadsafe:
            return (self.workers, 1) if tasks > self.workers > 1 else (1, 1)
        processes = -(-self.workers // MOST_THREADS)
        if processes > 1 and tasks >= self.workers * WORTH_PROCESSES:
            return processes, -(-self.workers // processes)
        return 1, max(1, min(self.workers, tasks))


@dataclass(frozen=True)
class Processes:
    """A pool of processes of this machine; with one, or with hardly any tasks, this process and all cores."""

    workers: int
    splits: ClassVar[bool] = False

    def check(self, needs: Needs = NOTHING) -> None:
        """Nothing is needed."""

    def run(self, job: Job[Result], tasks: Sequence[int], on_result: Callable[[Result], None]) -> None:
        if self.workers <= 1 or len(tasks) <= self.workers:
            _run_here(job, tasks, on_result)
        else:
            run_on_pool(self.workers, job, tasks, on_result)

    def crew(self, on_told: OnTold, begun_per_worker: int) -> AbstractContextManager[Crew]:
        """Processes, started as there is work for them; one has all cores."""
        return closing(ProcessCrew(self.workers, on_told, begun_per_worker))


@dataclass(frozen=True)
class Threads:
    """Threads of this process, for tasks that leave the interpreter: they read files or run compiled code."""

    workers: int
    splits: ClassVar[bool] = False

    def check(self, needs: Needs = NOTHING) -> None:
        """Nothing is needed."""

    def run(self, job: Job[Result], tasks: Sequence[int], on_result: Callable[[Result], None]) -> None:
        _run_in_threads(Sealed(job), max(1, min(self.workers, len(tasks))), tasks, on_result)


def _run_here(job: Job[Result], tasks: Sequence[int], on_result: Callable[[Result], None]) -> None:
    work = job.start(None)
    for task in tasks:
        on_result(finished(work(task)))


def _run_in_threads(
    sealed: Sealed, threads: int, tasks: Sequence[int], on_result: Callable[[Any], None]
) -> None:
    """Do every task on threads that compute; as many others wait for disk and network meanwhile."""
    computing, waiting = ThreadPoolExecutor(threads), ThreadPoolExecutor(threads)
    room = threading.Semaphore(threads)  # so that what waits does not fill the memory

    def finish(rest: Rest[Any]) -> Any:
        try:
            return rest.finish()
        finally:
            room.release()

    def begin(task: int) -> Any:
        begun = sealed.begin(task)
        if not isinstance(begun, Rest):
            return begun
        room.acquire()
        return waiting.submit(finish, begun)

    try:
        for begun in _done(computing, begin, tasks, threads):
            on_result(begun.result() if isinstance(begun, Future) else begun)
    finally:
        computing.shutdown(cancel_futures=True)
        waiting.shutdown()


def _done(pool: Executor, do: Callable[[Any], Any], tasks: Iterable[Any], at_once: int) -> Iterator[Any]:
    """Hand out the first tasks; gives results as they come, and hands out others as they are taken."""
    left = iter(tasks)
    first = {pool.submit(copy_context().run, do, task) for task in islice(left, 2 * at_once)}

    def results(waiting: set[Future[Any]]) -> Iterator[Any]:
        while waiting:
            finished, waiting = wait(waiting, return_when=FIRST_COMPLETED)
            waiting |= {pool.submit(copy_context().run, do, task) for task in islice(left, len(finished))}
            while finished:
                yield finished.pop().result()

    return results(first)


def run_on_pool(
    workers: int,
    job: Job[Result],
    tasks: Sequence[int],
    on_result: Callable[[Result], None],
    *,
    threads: int = 1,
) -> None:
    """Do every task on so many new processes of this machine, each with one thread for linear algebra.

    Parameters
    ----------
    threads : tasks that one process does at once.

    Raises
    ------
    DpPowerflowError : a task failed, or a process ended unexpectedly.
    WorkerDefectError : a task met a defect.
    """
    if not tasks:
        return
    width = 1 if threads == 1 else _TASKS_PER_THREAD * threads
    some = [tasks[first : first + width] for first in range(0, len(tasks), width)]
    left = iter(enumerate(some))
    crew = ProcessCrew(min(workers, len(some)), lambda *_: None, len(some), threads=1)
    with closing(crew):
        crew.give(_SomeTasks(Sealed(job), threads))
        for number, together in islice(left, 2 * crew.at_once):
            crew.submit(number, together)
        for answer in crew.answers():
            for number, together in islice(left, 1):
                crew.submit(number, together)
            for result in value_of(answer):
                on_result(unwrapped(result))


@dataclass(frozen=True, eq=False, repr=False)
class _SomeTasks:
    """PRIVATE. A job whose tasks are done some at a time, by threads of one process."""

    sealed: Sealed
    threads: int

    def start(self, threads: int | None) -> Work:
        if self.threads == 1:
            return lambda tasks, tell: list(map(self.sealed.attempt, tasks))
        pool = ThreadPoolExecutor(self.threads)
        return lambda tasks, tell: list(pool.map(self.sealed.attempt, tasks))


def value_of(answer: Answer) -> Any:
    """What was answered; raises what came instead."""
    if answer.lost:
        raise DpPowerflowError(
            "a worker process ended unexpectedly, perhaps for want of memory; run the same command again "
            "to resume"
        )
    if answer.problem is not None:
        raise DpPowerflowError(answer.problem)
    if answer.defect is not None:
        raise WorkerDefectError(answer.defect)
    return answer.value
