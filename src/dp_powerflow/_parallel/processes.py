"""Worker processes of this machine.

They are started by name, not as copies of the program: a script without a guard for `__main__` works.
"""

from __future__ import annotations

import ctypes
import importlib
import os
import pickle
import signal
import subprocess
import sys
import threading
import traceback
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, Pipe, wait
from multiprocessing.spawn import get_executable
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
        """Prepare a worker of so many threads, None for all cores; the function that does one item."""


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

        Every thread has a worker of its own. They are prepared one after the other.
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
JOB, ITEM = "job", "item"
SIGNALS = {signal.SIGINT, signal.SIGHUP, signal.SIGTERM}
"""What is kept from a worker that starts: it is not ready to answer them well."""
_PR_SET_PDEATHSIG = 1


def serve(connection: Connection, parent: int, ahead: str = "") -> NoReturn:
    """Do items until the other side is gone, however that ended.

    Parameters
    ----------
    parent : id of the process that started this one.
    ahead : module to be imported before there is anything to do.
    """
    end_with(parent)
    os.set_inheritable(connection.fileno(), False)
    received: SimpleQueue[tuple[str, Any, bytes]] = SimpleQueue()
    threading.Thread(target=_receive, args=(connection, received.put), daemon=True).start()
    _send(connection, READY, None)
    if ahead:
        importlib.import_module(ahead)
    sealed: Sealed | None = None
    while True:
        kind, fact, content = received.get()
        try:
            # From the process that started this one, by a pipe of these two.
            if kind == JOB:
                sealed = None  # gives back what the job before it kept
                sealed = Sealed(pickle.loads(content), fact)  # nosec B301
                continue
            assert sealed is not None
            _send(connection, RESULT, sealed.attempt(pickle.loads(content)))  # nosec B301
        except Exception:  # also what cannot be pickled
            _send(connection, DEFECT, traceback.format_exc())


def end_with(parent: int) -> None:
    """Leave signals of the terminal to the parent, and end with it even where no thread gets its turn.

    To be exact, it ends with the thread that started it: whoever starts a worker waits for it in the same
    thread. A parent that has ended already is found out by its id, which is another one then.
    """
    for terminal in (signal.SIGINT, signal.SIGHUP):
        signal.signal(terminal, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(0)


def _receive(connection: Connection, put: Callable[[tuple[str, Any, bytes]], None]) -> None:
    """Take what comes, so that the end of the other side is noticed at any time."""
    while True:
        try:
            kind, fact = connection.recv()
            put((kind, fact, connection.recv_bytes()))
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
from dp_powerflow._parallel.processes import serve
serve(connection, int(sys.argv[2]), sys.argv[3])
"""


@dataclass(frozen=True, eq=False, repr=False)
class _Given:
    """PRIVATE. A job as it is sent."""

    content: bytes


@dataclass(eq=False, repr=False)
class Asked:
    """PRIVATE. An item as it is sent, and how many workers were lost with it."""

    item: Any
    losses: int = 0


@dataclass(eq=False, repr=False)
class WorkerProcess:
    """One process, which ends with this one, however that ends.

    Attributes
    ----------
    threads : of its solver; None for all cores, and for as many in linear algebra.
    ahead : module that it imports before there is anything to do.
    asked : what it does, if anything.
    done : items that it was given.
    ready : whether it has come up.
    """

    threads: int | None
    ahead: str = ""
    asked: Asked | None = None
    done: int = 0
    ready: bool = False
    _job: _Given | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        self.connection, other = Pipe()
        environment = dict(os.environ)
        if self.threads is not None:  # unless the user says otherwise
            environment = dict.fromkeys(_LINEAR_ALGEBRA, "1") | environment
        executable = get_executable()
        command = [
            os.fsdecode(executable) if executable else sys.executable,
            *("-P", "-c", _COMMAND, str(other.fileno()), str(os.getpid()), self.ahead, "dp-powerflow worker"),
        ]
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
        with suppress(OSError):  # it has ended already, as whoever listens will notice
            self.connection.send(sys.path)

    @property
    def pid(self) -> int:
        return self._process.pid

    def ask(self, asked: Asked, job: _Given) -> None:
        """Send an item, and its job if it has another one."""
        self.asked, self.done = asked, self.done + 1
        content = pickle.dumps(asked.item, pickle.HIGHEST_PROTOCOL)
        with suppress(OSError):  # as above
            if self._job is not job:
                self.connection.send((JOB, self.threads))
                self.connection.send_bytes(job.content)
                self._job = job
            self.connection.send((ITEM, None))
            self.connection.send_bytes(content)

    def stop(self) -> None:
        """End it, whatever it does."""
        self.connection.close()
        self._process.kill()
        self._process.wait()


class Pool:
    """Worker processes that are kept from one `map` to the next, and replaced when they end.

    Parameters
    ----------
    workers : processes. One has all cores, others share them.
    threads : of the solver of each process instead.
    ahead : module that they import before there is anything to do: then they start at once.
    most_items : after which a process is replaced by a new one; None for never.
    """

    def __init__(
        self, workers: int, *, threads: int | None = None, ahead: str = "", most_items: int | None = None
    ) -> None:
        self._most, self._ahead, self._most_items = workers, ahead, most_items
        self._threads = threads or (None if workers == 1 else max(1, cores() // workers))
        self._failed_starts = 0
        self._workers: list[WorkerProcess] = []
        if ahead:
            self._workers += [self._new() for _ in range(workers)]

    @property
    def pids(self) -> tuple[int, ...]:
        """Of the processes there are now."""
        return tuple(worker.pid for worker in self._workers)

    def map(
        self,
        job: Job[Any, Result],
        items: Iterable[Any],
        on_done: Callable[[Result], None],
        on_lost: Callable[[Any], Result] | None = None,
    ) -> None:
        """Do every item; parameters as of `Runner.map`. An item is taken when a worker is free for it."""
        given = _Given(pickle.dumps(job, pickle.HIGHEST_PROTOCOL))
        left, again = map(Asked, items), list[Asked]()

        def following() -> Asked | None:
            return again.pop() if again else next(left, None)

        self._hand_out(following, given)
        while any(worker.asked is not None for worker in self._workers):
            by_connection = {worker.connection: worker for worker in self._workers}
            for connection in wait(list(by_connection)):
                worker = by_connection[connection]  # type: ignore[index]
                asked = worker.asked
                for kind, value in self._heard(worker):
                    if kind == DEFECT:
                        raise WorkerDefectError(value)
                    if kind == RESULT:
                        worker.asked = None
                        self._hand_out(following, given)  # first: it works while the result is taken
                        on_done(unwrapped(value))
                    elif asked is not None:  # lost
                        result = self._lost(asked, again, on_lost)
                        self._hand_out(following, given)
                        for item in result:
                            on_done(item)

    def close(self) -> None:
        """End all processes, whatever they do."""
        while self._workers:
            self._workers.pop().stop()

    def _new(self) -> WorkerProcess:
        return WorkerProcess(self._threads, self._ahead)

    def _heard(self, worker: WorkerProcess) -> Iterator[tuple[str, Any]]:
        """Take one message of a worker, or its end, which is no kind of message."""
        try:
            # By a pipe that only this process and its own worker hold.
            kind, value = pickle.loads(worker.connection.recv_bytes())  # nosec B301
        except (EOFError, OSError):
            self._workers.remove(worker)
            worker.stop()
            if not worker.ready:
                self._failed_starts += 1
                if self._failed_starts == STARTS:
                    raise DpPowerflowError(
                        "worker processes end as soon as they start; see what they say above, free memory, "
                        "or allow more processes, then run the same command again to resume"
                    ) from None
                if worker.asked is not None:
                    worker.asked.losses -= 1  # it has not begun
            yield "", None
            return
        if kind == READY:
            worker.ready, self._failed_starts = True, 0
        else:
            yield kind, value

    def _lost(self, asked: Asked, again: list[Asked], on_lost: Callable[[Any], Any] | None) -> list[Any]:
        """Do an item again whose worker ended, or give it up."""
        asked.losses += 1
        if asked.losses <= 0 or (on_lost is not None and asked.losses < MOST_LOSSES):
            again.append(asked)
            return []
        if on_lost is None:
            raise DpPowerflowError(
                "a worker process ended unexpectedly, perhaps for want of memory; run the same command again "
                "to resume"
            )
        return [on_lost(asked.item)]

    def _hand_out(self, following: Callable[[], Asked | None], job: _Given) -> None:
        """Give every worker that is idle something to do; start one where there is room and something."""
        while True:
            free = [worker for worker in self._workers if worker.asked is None]
            idle = max(free, key=lambda worker: worker.ready, default=None)
            if idle is None and len(self._workers) >= self._most:
                return
            asked = following()
            if asked is None:
                return
            if idle is not None and self._most_items is not None and idle.done >= self._most_items:
                self._workers.remove(idle)
                idle.stop()
                idle = None
            if idle is None:
                idle = self._new()
                self._workers.append(idle)
            idle.ask(asked, job)
