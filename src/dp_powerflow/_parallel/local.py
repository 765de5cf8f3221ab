"""Runners of this machine: threads and processes."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from dp_powerflow._parallel.processes import Job, Pool, Rest, Result, Sealed, finished, handed_out

MOST_THREADS = 8
"""Threads of one process: what holds the interpreter's lock, a few percent of a part, leaves room for so
many."""
WORTH_PROCESSES = 64
"""Items per worker from which processes pay for their start, seconds each."""


class Runner(Protocol):
    """Where the items of a job are done."""

    def check(self, output: str | Path | None = None) -> None:
        """Fail now if the work could not be done later; nothing has been spent yet. This machine can.

        Parameters
        ----------
        output : path or URL that workers write to; None if they write nothing.
        """
        return

    def map(self, job: Job[Any, Result], items: Sequence[Any], on_done: Callable[[Result], None]) -> None:
        """Do every item, in any order; the first failure ends it. Results are reported as they come."""


class Kept(Protocol):
    """Workers that stay for several maps."""

    def map(
        self,
        job: Job[Any, Result],
        items: Iterable[Any],
        on_done: Callable[[Result], None],
        on_lost: Callable[[Any], Result] | None = None,
    ) -> None:
        """As `Runner.map`; items are taken as workers are free, or somewhat ahead.

        Parameters
        ----------
        on_lost : the result of an item whose workers ended unexpectedly; None ends the run instead.
        """


class Engine(Runner, Protocol):
    """A runner that can keep its workers."""

    def kept(self, items: int, most_items: int) -> AbstractContextManager[Kept]:
        """Workers for so many items.

        Parameters
        ----------
        most_items : after which a process is replaced; workers of Dask are not.
        """


@dataclass(frozen=True)
class Processes(Engine):
    """Worker processes of this machine.

    Attributes
    ----------
    workers : with one, or with hardly any items, a map uses this process and all cores.
    """

    workers: int

    def map(self, job: Job[Any, Result], items: Sequence[Any], on_done: Callable[[Result], None]) -> None:
        """Do every item."""
        if self.workers > 1 and len(items) > self.workers:
            run_on_pool(self.workers, job, items, on_done)
            return
        work = job.start(None)
        for item in items:
            on_done(finished(work(item)))

    @contextmanager
    def kept(self, items: int, most_items: int) -> Iterator[Kept]:
        """Processes, which start when there is an item for them; one has all cores."""
        with closing(Pool(min(self.workers, items), most_items=most_items)) as pool:
            yield pool


@dataclass(frozen=True)
class Local(Processes):
    """This machine: threads of this process, or processes if there is much to do for many workers.

    Attributes
    ----------
    workers : items at once. With one, or with a single item, the solver has all cores.
    """

    def map(self, job: Job[Any, Result], items: Sequence[Any], on_done: Callable[[Result], None]) -> None:
        """Do every item."""
        threads = min(self.workers, len(items))
        if self.workers > MOST_THREADS and len(items) >= self.workers * WORTH_PROCESSES:
            run_on_pool(self.workers, job, items, on_done)
        elif threads > 1:
            _run_in_threads(Sealed(job, self.workers // threads), threads, items, on_done)
        else:
            Processes(1).map(job, items, on_done)


@dataclass(frozen=True)
class Threads(Runner):
    """Threads of this process, for items that leave the interpreter: they read files or run compiled code."""

    workers: int

    def map(self, job: Job[Any, Result], items: Sequence[Any], on_done: Callable[[Result], None]) -> None:
        """Do every item."""
        _run_in_threads(Sealed(job), max(1, min(self.workers, len(items))), items, on_done)


def _run_in_threads(
    sealed: Sealed, threads: int, items: Sequence[Any], on_done: Callable[[Any], None]
) -> None:
    """Do every item on threads that compute; as many others wait for disk and network meanwhile."""
    computing, waiting = ThreadPoolExecutor(threads), ThreadPoolExecutor(threads)
    room = threading.Semaphore(threads)  # so that what waits does not fill the memory

    def finish(rest: Rest[Any]) -> Any:
        try:
            return rest.finish()
        finally:
            room.release()

    def begin(item: Any) -> Any:
        begun = sealed.begin(item)
        if not isinstance(begun, Rest):
            return begun
        room.acquire()
        return waiting.submit(finish, begun)

    try:
        for begun in handed_out(computing, begin, items, 2 * threads):
            on_done(begun.result() if isinstance(begun, Future) else begun)
    finally:
        computing.shutdown(cancel_futures=True)
        waiting.shutdown()


def run_on_pool(
    workers: int, job: Job[Any, Result], items: Sequence[Any], on_done: Callable[[Result], None]
) -> None:
    """Do every item on so many new processes of this machine, each with one thread.

    Raises
    ------
    DpPowerflowError : an item failed, or a process ended unexpectedly.
    WorkerDefectError : an item met a defect.
    """
    with closing(Pool(min(workers, len(items)), threads=1)) as pool:
        pool.map(job, items, on_done)
