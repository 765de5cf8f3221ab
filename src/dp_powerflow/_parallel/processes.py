"""Worker processes of this machine, and a crew of them.

They are started by name, not as copies of the program: a script without a guard for `__main__` works.
"""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field, replace
from multiprocessing.connection import Pipe, wait
from multiprocessing.spawn import get_executable
from typing import Any

from dp_powerflow._parallel.crew import Answer, CrewJob, OnTold
from dp_powerflow._parallel.worker import ANSWER, JOB, READY, REQUEST, SIGNALS, TOLD
from dp_powerflow._threads import cores
from dp_powerflow.errors import DpPowerflowError

STARTS = 3
"""Worker processes in a row that may end before they take anything."""
_LINEAR_ALGEBRA = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
# The path of imports comes first: this package may be found there only.
_COMMAND = """\
import sys
from multiprocessing.connection import Connection
connection = Connection(int(sys.argv[1]))
sys.path[:] = connection.recv()
from dp_powerflow._parallel.worker import serve
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
