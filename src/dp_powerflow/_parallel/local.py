"""Runners of this machine: threads and processes, and the protocols of all runners.

Worker processes are started by name, not as copies of the program: a script without a guard for `__main__`
works.
"""

from __future__ import annotations

import ctypes
import os
import pickle
import signal
import subprocess
import sys
import threading
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Executor, Future, ThreadPoolExecutor, wait
from contextlib import AbstractContextManager, closing, contextmanager, suppress
from contextvars import copy_context
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from multiprocessing.connection import Connection, Pipe
from multiprocessing.spawn import get_executable
from pathlib import Path
from queue import SimpleQueue
from typing import Any, Generic, NoReturn, Protocol, TypeVar

from dp_powerflow._ending import NO_MEMORY
from dp_powerflow._threads import cores
from dp_powerflow.errors import DpPowerflowError

Item_contra = TypeVar("Item_contra", contravariant=True)
Result = TypeVar("Result")
Result_co = TypeVar("Result_co", covariant=True)


@dataclass(frozen=True)
class Rest(Generic[Result_co]):
    """What is left of an item that has computed, and now waits for a disk or a network.

    Attributes
    ----------
    finish : does it, in any thread, and gives the result of the item.
    """

    finish: Callable[[], Result_co]


class Job(Protocol[Item_contra, Result_co]):
    """What the items have in common; PRIVATE. It is pickled to workers."""

    def start(self, threads: int | None) -> Callable[[Item_contra], Result_co | Rest[Result_co]]:
        """Prepare a worker with this number of threads, None for all cores; returns what does one item."""


@dataclass(frozen=True)
class Failure:
    """The result of an item that failed for a reason fit for the user."""

    error: DpPowerflowError


class WorkerDefectError(RuntimeError):
    """PRIVATE. A defect in a worker process; the message is its traceback."""


class Sealed:
    """A job on its way to workers, and there: PRIVATE, and it says nothing but that.

    Parameters
    ----------
    threads : of each worker's solver; None for all cores.
    """

    def __init__(self, job: Job[Any, Any], threads: int | None = 1) -> None:
        self._job, self._threads = job, threads
        self._own, self._starting = threading.local(), threading.Lock()

    def __repr__(self) -> str:
        return "Sealed(PRIVATE)"

    def __reduce__(self) -> tuple[type[Sealed], tuple[Job[Any, Any], int | None]]:
        return Sealed, (self._job, self._threads)

    def begin(self, item: Any) -> Any:
        """Do one item, or all but the `Rest` of it.

        Every thread has its own worker. They are prepared one after the other.
        """
        if not hasattr(self._own, "work"):
            with self._starting:
                self._own.work = self._job.start(self._threads)
        return self._own.work(item)

    def attempt(self, item: Any) -> Any:
        """Do one item where what it raises has a way to go: a failure fit for the user is returned."""
        try:
            return finished(self.begin(item))
        except DpPowerflowError as error:
            return Failure(error)
        except MemoryError:
            return Failure(DpPowerflowError(NO_MEMORY))


def finished(begun: Any) -> Any:
    """The result of an item that was begun; finishes the rest of it now."""
    return begun.finish() if isinstance(begun, Rest) else begun


def unwrapped(result: Any) -> Any:
    """A result that has travelled; raises the failure that came in its place."""
    if isinstance(result, Failure):
        raise result.error
    return result


# --------------------------------------------------------------------------------------- in the process

READY, RESULT, DEFECT = "ready", "result", "defect"
SIGNALS = {signal.SIGINT, signal.SIGHUP, signal.SIGTERM}
"""What is kept from a worker that starts: it is not ready to answer them well."""
_PR_SET_PDEATHSIG = 1


def serve(connection: Connection, parent: int, threads: int | None) -> NoReturn:
    """Do items until the other side is gone, however that ended.

    Parameters
    ----------
    parent : id of the process that started this one.
    threads : of its solver; None for all cores.
    """
    end_with(parent)
    os.set_inheritable(connection.fileno(), False)
    received: SimpleQueue[tuple[bytes | None, bytes]] = SimpleQueue()
    threading.Thread(target=_receive, args=(connection, received.put), daemon=True).start()
    _send(connection, READY, None)
    sealed: Sealed | None = None
    while True:
        job, item = received.get()
        try:
            # From the process that started this one, by a pipe of these two.
            if job is not None:
                sealed = None  # gives back what the job before it kept
                sealed = Sealed(pickle.loads(job), threads)  # nosec B301
            assert sealed is not None
            _send(connection, RESULT, sealed.attempt(pickle.loads(item)))  # nosec B301
        except Exception:  # also what cannot be pickled
            _send(connection, DEFECT, traceback.format_exc())


def end_with(parent: int) -> None:
    """Leave signals of the terminal to the parent, and end with it even where no thread gets its turn.

    To be exact, it ends with the thread that started it: the starter of a worker waits for it in the same
    thread. A parent that has ended already is found out by its id, which is another one then.
    """
    for terminal in (signal.SIGINT, signal.SIGHUP):
        signal.signal(terminal, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(0)


def _receive(connection: Connection, put: Callable[[tuple[bytes | None, bytes]], None]) -> None:
    """Take what comes, so that the end of the other side is noticed at any time."""
    while True:
        try:
            put(connection.recv())
        except (EOFError, OSError):
            os._exit(0)


def _send(connection: Connection, kind: str, value: Any) -> None:
    content = pickle.dumps((kind, value), pickle.HIGHEST_PROTOCOL)
    try:
        connection.send_bytes(content)
    except OSError:
        os._exit(0)  # the other side is gone


# ------------------------------------------------------------------------------ in the one that starts it

STARTS = 3
"""Worker processes in a row that may end before they take anything."""
MOST_LOSSES = 2
"""Workers that one item may end before it counts as lost."""
_LINEAR_ALGEBRA = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
# The path of imports comes first: this package may be found there only.
_COMMAND = """\
import sys
from multiprocessing.connection import Connection
connection = Connection(int(sys.argv[1]))
sys.path[:] = connection.recv()
from dp_powerflow._parallel.local import serve
serve(connection, int(sys.argv[2]), int(sys.argv[3]) or None)
"""


@dataclass(eq=False, repr=False)
class WorkerProcess:
    """One process, which ends with this one, however that ends.

    Attributes
    ----------
    threads : of its solver; None for all cores, and for as many in linear algebra.
    done : items that it was given.
    ready : whether it has come up.
    """

    threads: int | None
    done: int = 0
    ready: bool = False
    _job: bytes = field(default=b"", init=False)

    def __post_init__(self) -> None:
        self.connection, other = Pipe()
        environment = dict(os.environ)
        if self.threads is not None:  # unless the user says otherwise
            environment = dict.fromkeys(_LINEAR_ALGEBRA, "1") | environment
        executable = get_executable()
        facts = (other.fileno(), os.getpid(), self.threads or 0, "dp-powerflow worker")
        command = [os.fsdecode(executable) if executable else sys.executable, "-P", "-c", _COMMAND]
        command += map(str, facts)
        # Signals are for this process; a child that starts is not ready to ignore them.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
        try:
            # This Python and a module of this package: nothing of it is input.
            self._process = subprocess.Popen(  # nosec B603
                command, stdin=subprocess.DEVNULL, env=environment, pass_fds=[other.fileno()]
            )
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
            other.close()
        with suppress(OSError):  # it has ended already, as the first item will show
            self.connection.send(sys.path)

    def do(self, item: Any, job: bytes) -> tuple[str, Any]:
        """Send an item, and its job if it has another one; kind and value of what comes back.

        Raises
        ------
        EOFError, OSError : the process has ended.
        """
        self.done += 1
        content = pickle.dumps(item, pickle.HIGHEST_PROTOCOL)
        self.connection.send((None if self._job is job else job, content))
        self._job = job
        while True:
            # By a pipe that only this process and its own worker hold.
            kind, value = pickle.loads(self.connection.recv_bytes())  # nosec B301
            if kind != READY:
                return kind, value
            self.ready = True

    def kill(self) -> None:
        """End it, whatever it does; the thread that waits for it finds out and stops it."""
        self._process.kill()

    def stop(self) -> None:
        """End it and free what it took."""
        self.kill()
        self._process.wait()
        self.connection.close()


class Pool:
    """Worker processes that are kept from one `map` to the next, and replaced when they end.

    Every process has a thread of this one that waits for it.

    Parameters
    ----------
    workers : processes. One has all cores, others share them.
    threads : of the solver of each process instead.
    most_items : after which a process is replaced by a new one; None for never.
    """

    def __init__(self, workers: int, *, threads: int | None = None, most_items: int | None = None) -> None:
        self._workers, self._most_items = workers, most_items
        self._threads = threads or (None if workers == 1 else max(1, cores() // workers))
        self._failed_starts, self._closed = 0, False
        self._idle: list[WorkerProcess] = []
        self._busy: set[WorkerProcess] = set()
        self._waiting = ThreadPoolExecutor(max(1, workers))

    def map(
        self,
        job: Job[Any, Result],
        items: Iterable[Any],
        on_done: Callable[[Result], None],
        on_lost: Callable[[Any], Result] | None = None,
    ) -> None:
        """Do every item; parameters as of `Kept.map`."""
        given = pickle.dumps(job, pickle.HIGHEST_PROTOCOL)
        for result in handed_out(self._waiting, partial(self._do, given, on_lost), items, self._workers):
            on_done(result)

    def close(self) -> None:
        """End all processes, whatever they do."""
        self._closed = True
        for worker in tuple(self._busy):
            worker.kill()
        self._waiting.shutdown(cancel_futures=True)
        while self._idle:
            self._idle.pop().stop()

    def _taken(self) -> WorkerProcess:
        """A process that is idle, or a new one."""
        try:
            worker = self._idle.pop()
        except IndexError:
            worker = WorkerProcess(self._threads)
        self._busy.add(worker)
        if self._closed:
            worker.kill()
        return worker

    def _do(self, job: bytes, on_lost: Callable[[Any], Any] | None, item: Any) -> Any:
        """Let some process do an item, another one if that ends; give the item up after a few."""
        losses = 0
        while not self._closed:
            worker = self._taken()
            try:
                kind, value = worker.do(item, job)
            except (EOFError, OSError):
                worker.stop()
                losses += worker.ready  # otherwise it has not begun
                self._refuse_to_go_on(worker, losses, on_lost)
                if on_lost is not None and losses == MOST_LOSSES:
                    return on_lost(item)
                continue
            finally:
                self._busy.discard(worker)
            self._failed_starts = 0
            if self._most_items is not None and worker.done >= self._most_items:
                worker.stop()
            else:
                self._idle.append(worker)
            if kind == DEFECT:
                raise WorkerDefectError(value)
            return unwrapped(value)
        return None  # no caller waits for it any more

    def _refuse_to_go_on(self, worker: WorkerProcess, losses: int, on_lost: object) -> None:
        """Where processes cannot start, or one has ended and no result stands for a lost item."""
        if self._closed:
            return
        self._failed_starts = 0 if worker.ready else self._failed_starts + 1
        if self._failed_starts >= STARTS:
            raise DpPowerflowError(
                "worker processes end as soon as they start; see what they say above, free memory, or allow "
                "more processes, then run the same command again to resume"
            ) from None
        if losses and on_lost is None:
            raise DpPowerflowError(
                "a worker process ended unexpectedly, perhaps for want of memory; run the same command again "
                "to resume"
            ) from None


def handed_out(pool: Executor, do: Callable[[Any], Any], items: Iterable[Any], ahead: int) -> Iterator[Any]:
    """Hand out the first items; gives results as they come, and hands out others as they are taken."""
    left = iter(items)
    first = {pool.submit(copy_context().run, do, item) for item in islice(left, ahead)}

    def results(waiting: set[Future[Any]]) -> Iterator[Any]:
        while waiting:
            finished, waiting = wait(waiting, return_when=FIRST_COMPLETED)
            waiting |= {pool.submit(copy_context().run, do, item) for item in islice(left, len(finished))}
            while finished:
                yield finished.pop().result()

    return results(first)


# ---------------------------------------------------------------------------------------------- runners

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
        """Workers for a number of items.

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
            work = job.start(None)
            for item in items:
                on_done(finished(work(item)))


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
    """Do every item on new processes of this machine, each with one thread.

    Raises
    ------
    DpPowerflowError : an item failed, or a process ended unexpectedly.
    WorkerDefectError : an item met a defect.
    """
    with closing(Pool(min(workers, len(items)), threads=1)) as pool:
        pool.map(job, items, on_done)
