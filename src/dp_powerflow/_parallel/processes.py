"""Worker processes of this machine, and a crew of them.

They are started by name, not as copies of the program: a script without a guard for `__main__` works.
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
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, field, replace
from multiprocessing.connection import Connection, Pipe, wait
from multiprocessing.spawn import get_executable
from queue import SimpleQueue
from typing import Any, Generic, NoReturn, Protocol, TypeVar

from dp_powerflow._ending import NO_MEMORY
from dp_powerflow._parallel.fitness import NOTHING, Needs
from dp_powerflow._threads import cores
from dp_powerflow.errors import DpPowerflowError

DEFECTS = (ArithmeticError, AttributeError, LookupError, MemoryError, RuntimeError, TypeError, ValueError)
"""What a defect of the program, or of a library, raises; a run of many things goes on with the next one."""

Tell = Callable[[object], None]
Work = Callable[[Any, Tell], Any]
"""Answers one request, and may tell things meanwhile."""
OnTold = Callable[[int, Any], None]
"""Gets what was told, with the number of the request."""


class CrewJob(Protocol):
    """What the requests have in common; PRIVATE. It is pickled to workers."""

    def start(self, threads: int | None) -> Work:
        """Prepare a worker of so many threads, None for all cores; the function that answers a request.

        One thread at a time calls the function. It may keep things from one request to the next.
        """


@dataclass(frozen=True)
class Answer:
    """What became of one request; exactly one of `value`, `problem`, `defect` and `lost` is meant.

    Attributes
    ----------
    number : of the request, as given to `submit`.
    where : the worker that answered, for `near`; says nothing else.
    value : PRIVATE. What was answered.
    problem : a sentence for the data owner, instead of a value.
    defect : PRIVATE. What is known of a defect of the program, instead of a value.
    lost : the worker ended while it did this, or what it needed was lost; ask again, or give up.
    """

    number: int
    where: str
    value: Any = None
    problem: str | None = None
    defect: str | None = None
    lost: bool = False

    def __repr__(self) -> str:
        return f"Answer({self.number}, PRIVATE)"


class Crew(Protocol):
    """Workers of one run."""

    @property
    def at_once(self) -> int:
        """Requests worth having under way: what the workers there are can do at once.

        Some more keep workers from waiting for the next request, and leave a choice: a worker without
        anything else to do takes a request that is near another one.
        """

    def give(self, job: CrewJob) -> None:
        """Say what the requests have in common; before the first one, and whenever it changes."""

    def submit(self, number: int, request: Any, *, near: str | None = None) -> None:
        """Ask for one thing.

        Parameters
        ----------
        near : the worker that answered about this piece of work before (`Answer.where`). It is preferred, but
            any worker may get it. None begins a new piece of work.
        """

    def answers(self) -> Iterator[Answer]:
        """Answers as they come, until nothing is under way; meanwhile `submit` may be called."""


def attempted(number: int, where: str, do: Callable[[], Any], defect: Callable[[Exception], str]) -> Answer:
    """Answer one request on a worker, where what is raised has a way to go; `defect` describes a defect."""
    try:
        return Answer(number, where, do())
    except (DpPowerflowError, OSError) as error:
        return Answer(number, where, problem=str(error))
    except MemoryError:
        return Answer(number, where, problem=NO_MEMORY)
    except Exception as error:
        return Answer(number, where, defect=defect(error))


READY, TOLD, ANSWER = "ready", "told", "answer"
JOB, REQUEST = "job", "request"
SIGNALS = {signal.SIGINT, signal.SIGHUP, signal.SIGTERM}
"""What is kept from a worker that starts: it is not ready to answer them well."""
_PR_SET_PDEATHSIG = 1


def serve(connection: Connection, parent: int) -> NoReturn:
    """Answer requests until the other side is gone, however that ended.

    Parameters
    ----------
    parent : id of the process that started this one.
    """
    end_with(parent)
    os.set_inheritable(connection.fileno(), False)
    received: SimpleQueue[tuple[str, Any, bytes]] = SimpleQueue()
    threading.Thread(target=_receive, args=(connection, received.put), daemon=True).start()
    Worker(connection).serve(received)


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


class Worker:
    """PRIVATE. What answers the requests of one process."""

    def __init__(self, connection: Connection) -> None:
        self._connection, self._sending = connection, threading.Lock()
        self._start: Callable[[], Work] | None = None
        self._work: Work | None = None

    def serve(self, received: SimpleQueue[tuple[str, Any, bytes]]) -> NoReturn:
        """Answer one request after the other."""
        self._send((READY, 0, None))
        while True:
            kind, fact, content = received.get()
            if kind == JOB:
                self._take_job(content, fact)
            else:
                self._answer(fact, content)

    def _take_job(self, content: bytes, threads: int | None) -> None:
        self._work = None  # gives back what the job before it kept
        # With the first request. From the process that started this one, by a pipe of these two.
        self._start = lambda: pickle.loads(content).start(threads)  # nosec B301

    def _answer(self, number: int, content: bytes) -> None:
        def do() -> Any:
            if self._work is None:
                assert self._start is not None
                self._work, self._start = self._start(), None
            request = pickle.loads(content)  # from there too # nosec B301
            return self._work(request, lambda told: self._send((TOLD, number, told)))

        answer = attempted(number, "", do, lambda _: traceback.format_exc())
        try:
            self._send((ANSWER, number, answer))
        except Exception:  # it cannot be pickled
            self._send((ANSWER, number, Answer(number, "", defect=traceback.format_exc())))

    def _send(self, message: tuple[str, int, Any]) -> None:
        content = pickle.dumps(message, pickle.HIGHEST_PROTOCOL)
        try:
            with self._sending:
                self._connection.send_bytes(content)
        except OSError:
            os._exit(0)  # the other side is gone


STARTS = 3
"""Worker processes in a row that may end before they take anything."""
_LINEAR_ALGEBRA = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
# The path of imports comes first: this package may be found there only.
_COMMAND = """\
import sys
from multiprocessing.connection import Connection
connection = Connection(int(sys.argv[1]))
sys.path[:] = connection.recv()
from dp_powerflow._parallel.processes import serve
serve(connection, int(sys.argv[2]))
"""


@dataclass(frozen=True, eq=False, repr=False)
class _Given:
    """PRIVATE. A job as it is sent."""

    content: bytes


@dataclass(frozen=True, eq=False, repr=False)
class _Asked:
    """PRIVATE. A request as it is sent."""

    number: int
    content: bytes
    near: str | None
    job: _Given


@dataclass(eq=False, repr=False)
class WorkerProcess:
    """One process, which ends with this one, however that ends.

    Attributes
    ----------
    name : what it is called in answers.
    threads : of its solver; None for all cores, and for as many in linear algebra.
    asked : what it does, if anything.
    begun : pieces of work that it began.
    ready : whether it has come up.
    """

    name: str
    threads: int | None
    asked: _Asked | None = None
    begun: int = 0
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
            *("-P", "-c", _COMMAND, str(other.fileno()), str(os.getpid()), "dp-powerflow worker"),
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

    def ask(self, asked: _Asked) -> None:
        """Send a request, and its job if it has another one."""
        self.asked = asked
        with suppress(OSError):  # as above
            if self._job is not asked.job:
                self.connection.send((JOB, self.threads))
                self.connection.send_bytes(asked.job.content)
                self._job = asked.job
            self.connection.send((REQUEST, asked.number))
            self.connection.send_bytes(asked.content)

    def stop(self) -> None:
        """End it, whatever it does."""
        self.connection.close()
        self._process.kill()
        self._process.wait()


class ProcessCrew:
    """Worker processes that start when there is work for them, and are replaced when they end.

    Parameters
    ----------
    workers : processes at most. One has all cores, others share them.
    begun_per_worker : pieces of work after which a process is replaced by a new one.
    threads : of the solver of each process instead.
    """

    def __init__(
        self, workers: int, on_told: OnTold, begun_per_worker: int, *, threads: int | None = None
    ) -> None:
        self._most, self._on_told, self._begun = workers, on_told, begun_per_worker
        self._threads = threads or (None if workers == 1 else max(1, cores() // workers))
        self._job: _Given | None = None
        self._waiting: list[_Asked] = []
        self._workers: dict[str, WorkerProcess] = {}
        self._started = 0
        self._failed_starts = 0

    @property
    def at_once(self) -> int:
        return self._most

    @property
    def pids(self) -> tuple[int, ...]:
        """Of the processes there are now."""
        return tuple(worker.pid for worker in self._workers.values())

    def give(self, job: CrewJob) -> None:
        self._job = _Given(pickle.dumps(job, pickle.HIGHEST_PROTOCOL))

    def submit(self, number: int, request: Any, *, near: str | None = None) -> None:
        assert self._job is not None, "a crew needs a job before its first request"
        content = pickle.dumps(request, pickle.HIGHEST_PROTOCOL)
        self._waiting.append(_Asked(number, content, near, self._job))
        if len(self._workers) < self._most or self._idle():
            self._hand_out()

    def answers(self) -> Iterator[Answer]:
        while self._waiting or any(worker.asked is not None for worker in self._workers.values()):
            self._hand_out()
            by_connection = {worker.connection: worker for worker in self._workers.values()}
            for connection in wait(list(by_connection)):
                worker = by_connection[connection]  # type: ignore[index]
                if worker.name in self._workers:  # not ended by a `submit` meanwhile
                    yield from self._heard(worker)

    def close(self) -> None:
        """End all processes, whatever they do."""
        while self._workers:
            self._workers.popitem()[1].stop()

    def _heard(self, worker: WorkerProcess) -> Iterator[Answer]:
        """Take one message of a worker, or its end."""
        try:
            # By a pipe that only this process and its own worker hold.
            kind, number, content = pickle.loads(worker.connection.recv_bytes())  # nosec B301
        except (EOFError, OSError):
            yield from self._ended(worker)
            return
        if kind == READY:
            worker.ready, self._failed_starts = True, 0
        elif kind == TOLD:
            self._on_told(number, content)
        elif kind == ANSWER:
            worker.asked = None
            yield replace(content, where=worker.name)

    def _ended(self, worker: WorkerProcess) -> Iterator[Answer]:
        del self._workers[worker.name]
        worker.stop()
        if not worker.ready:
            self._failed_starts += 1
            if self._failed_starts == STARTS:
                raise DpPowerflowError(
                    "worker processes end as soon as they start; see what they say above, free memory, or "
                    "allow more processes, then run the same command again to resume"
                )
            if worker.asked is not None:
                self._waiting.insert(0, worker.asked)
        elif worker.asked is not None:
            yield Answer(worker.asked.number, worker.name, lost=True)

    def _hand_out(self) -> None:
        """Give every worker that is idle the request that suits it best; start workers for new work."""
        for worker in self._idle():
            self._ask(worker, [asked for asked in self._waiting if asked.near == worker.name])
        for worker in self._idle():
            if worker.begun < self._begun:
                self._ask(worker, self._new_work())
        while self._new_work() and self._make_room():
            self._started += 1
            worker = WorkerProcess(f"process-{self._started}", self._threads)
            self._workers[worker.name] = worker
            self._ask(worker, self._new_work())
        for worker in self._idle():  # what another one has begun; the last, for that one takes the first
            if worker.begun < self._begun:
                self._ask(worker, self._waiting[-1:])

    def _idle(self) -> list[WorkerProcess]:
        return [worker for worker in self._workers.values() if worker.asked is None]

    def _new_work(self) -> list[_Asked]:
        """Requests for which no worker can have begun anything."""
        return [asked for asked in self._waiting if asked.near not in self._workers]

    def _make_room(self) -> bool:
        """Whether one more worker may start; ends an idle one that has begun enough."""
        if len(self._workers) < self._most:
            return True
        wanted = {asked.near for asked in self._waiting}
        for worker in self._idle():
            if worker.begun >= self._begun and worker.name not in wanted:
                self._workers.pop(worker.name).stop()
                return True
        return False

    def _ask(self, worker: WorkerProcess, choice: list[_Asked]) -> None:
        if choice:
            asked = choice[0]
            self._waiting.remove(asked)
            worker.begun += asked.near != worker.name
            worker.ask(asked)


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
            return Failure(error)


def finished(begun: Any) -> Any:
    """The result of a task that was begun; finishes the rest of it now."""
    return begun.finish() if isinstance(begun, Rest) else begun


def unwrapped(result: Any) -> Any:
    """A result that has travelled; raises the failure that came in its place."""
    if isinstance(result, Failure):
        raise result.error
    return result
