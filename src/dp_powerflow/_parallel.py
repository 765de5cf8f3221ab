"""Engines for the numbered tasks of one job: threads, processes, a Dask cluster; or a single server process.

The only module that makes pools or processes, or imports Dask. A job is private. It travels to every worker
once, outside the task graph: keys, graph and dashboard hold numbers of tasks and the word PRIVATE. What a
task returns comes back through the scheduler, so it is small and not secret; the data that a task makes it
writes itself.
"""

from __future__ import annotations

import logging
import os
import secrets
import signal
import threading
import traceback
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from concurrent.futures import (
    FIRST_COMPLETED,
    Executor,
    Future,
    ProcessPoolExecutor,
    ThreadPoolExecutor,
    wait,
)
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import islice
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

from dp_powerflow._threads import cores
from dp_powerflow.errors import ConfigError, DpPowerflowError, require

EXTRA = "cluster"
CONNECT_SECONDS = 30
"""How long to wait for a scheduler, and for a first worker, also when all of them were lost."""
ROUNDS_WITHOUT_RESULT = 3
"""Times that the workers may be lost with nothing done in between."""
DECIDE_THE_BITS = ("dp-powerflow", "numpy", "scipy", "numba", "pyarrow", "randomgen")
"""Packages that workers need in the client's version: the same release has the same bytes anywhere."""
MOST_THREADS = 8
"""Threads of one process: what holds the interpreter's lock, a few percent of a part, leaves room for so
many."""
WORTH_PROCESSES = 64
"""Tasks per worker from which more processes pay for their start, seconds each."""
_TASKS_PER_THREAD = 4
"""Tasks that a process of several threads gets at a time, for each thread: its threads wait for each other
at the end."""
_THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")

Item = TypeVar("Item")
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


class Engine(Protocol):
    """Where tasks are done."""

    def check(self) -> None:
        """Fail now if the tasks could not be done later."""

    def run(
        self, job: ThreadedJob[Result], tasks: Sequence[int], on_result: Callable[[Result], None]
    ) -> None:
        """Do every task, in any order; the first failure ends it. Results are reported as they come."""


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
            return _finished(self.begin(task))
        except DpPowerflowError as error:
            # Only those made from their message can be pickled.
            rebuilt = error if type(error).__init__ is Exception.__init__ else DpPowerflowError(str(error))
            return Failure(rebuilt)


@dataclass(frozen=True)
class Local:
    """This machine: threads of this process, and more processes where the work is worth their start.

    Attributes
    ----------
    workers : tasks at once. With one, or with a single task, the solver has all cores.
    """

    workers: int

    def check(self) -> None:
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

    def check(self) -> None:
        """Nothing is needed."""

    def run(self, job: Job[Result], tasks: Sequence[int], on_result: Callable[[Result], None]) -> None:
        if self.workers <= 1 or len(tasks) <= self.workers:
            _run_here(job, tasks, on_result)
        else:
            run_on_pool(self.workers, job, tasks, on_result)


@dataclass(frozen=True)
class Threads:
    """Threads of this process, for tasks that leave the interpreter: they read files or run compiled code."""

    workers: int

    def check(self) -> None:
        """Nothing is needed."""

    def run(self, job: Job[Result], tasks: Sequence[int], on_result: Callable[[Result], None]) -> None:
        _run_in_threads(Sealed(job), max(1, min(self.workers, len(tasks))), tasks, on_result)


def _run_here(job: Job[Result], tasks: Sequence[int], on_result: Callable[[Result], None]) -> None:
    work = job.start(None)
    for task in tasks:
        on_result(_finished(work(task)))


def _finished(begun: Any) -> Any:
    return begun.finish() if isinstance(begun, Rest) else begun


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
    first = {pool.submit(do, task) for task in islice(left, 2 * at_once)}

    def results(waiting: set[Future[Any]]) -> Iterator[Any]:
        while waiting:
            finished, waiting = wait(waiting, return_when=FIRST_COMPLETED)
            waiting |= {pool.submit(do, task) for task in islice(left, len(finished))}
            while finished:
                yield finished.pop().result()

    return results(first)


@dataclass(frozen=True)
class DaskScheduler:
    """A Dask cluster that is there already, such as 'tls://10.0.0.5:8786'."""

    address: str

    def check(self) -> None:
        """Whether it answers, has workers, and they are fit for private data and for the same bits."""
        with self._client() as client:
            refuse_unfit_workers(client)

    def run(self, job: Job[Result], tasks: Sequence[int], on_result: Callable[[Result], None]) -> None:
        with self._client() as client:
            refuse_unfit_workers(client)
            run_on(client, job, tasks, on_result)

    @contextmanager
    def _client(self) -> Iterator[Any]:
        distributed = require("distributed", EXTRA)
        try:
            client = distributed.Client(self.address, timeout=CONNECT_SECONDS, set_as_default=False)
        except (OSError, ValueError, TypeError):
            raise ConfigError(
                f"no Dask scheduler answers at {self.address}; check the address, and for tls:// the "
                "certificates in the configuration of Dask"
            ) from None
        with client:
            yield client


@dataclass(frozen=True)
class LocalDask:
    """A Dask cluster of this machine for the time of the run: one process per worker, no dashboard."""

    workers: int

    def check(self) -> None:
        """Whether Dask is installed."""
        require("distributed", EXTRA)

    def run(self, job: Job[Result], tasks: Sequence[int], on_result: Callable[[Result], None]) -> None:
        distributed = require("distributed", EXTRA)
        cluster = distributed.LocalCluster(
            n_workers=self.workers,
            threads_per_worker=1,
            processes=True,
            memory_limit=0,  # without a limit nothing is spilled to the disk
            # Dask starts a web server in any case: here on a free port that only this machine reaches.
            scheduler_kwargs={"dashboard": False, "dashboard_address": "127.0.0.1:0"},
            silence_logs=logging.ERROR,
            host="127.0.0.1",
        )
        with cluster, distributed.Client(cluster, set_as_default=False) as client:
            run_on(client, job, tasks, on_result)


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
    """
    if not tasks:
        return
    width = 1 if threads == 1 else _TASKS_PER_THREAD * threads
    some = [tasks[first : first + width] for first in range(0, len(tasks), width)]
    processes = min(workers, len(some))
    pool = ProcessPoolExecutor(processes, get_context("spawn"), _start, (Sealed(job), threads))
    try:
        with _one_thread_each():
            results = _done(pool, _attempt_here, some, processes)
        for together in results:
            for result in together:
                on_result(_unwrapped(result))
    except BrokenProcessPool:
        raise DpPowerflowError(
            "a worker process ended unexpectedly, perhaps for want of memory; run the same command again "
            "to resume"
        ) from None
    finally:
        pool.shutdown(cancel_futures=True)


def engine_of(workers: int | None, scheduler: str | None) -> Engine:
    """The engine that the command line asks for: `scheduler` is an address, 'local' or None for no Dask."""
    if scheduler is None:
        return Local(workers or cores())
    if scheduler == "local":
        return LocalDask(workers or cores())
    if workers is not None:
        raise ConfigError(
            "a cluster has workers of its own; leave out --workers, or start a cluster with --scheduler local"
        )
    return DaskScheduler(scheduler)


def run_on(client: Any, job: Job[Result], tasks: Sequence[int], on_result: Callable[[Result], None]) -> None:
    """Do every task on the cluster of a `distributed.Client`.

    Dask repeats the tasks of a lost worker on another one. If all that held the job are lost, it is sent
    again to whoever comes in their place.
    """
    left, rounds = list(tasks), 0
    while left:
        done = _one_round(client, job, left, on_result)
        left = [task for task in left if task not in done]
        rounds = 0 if done else rounds + 1
        if rounds == ROUNDS_WITHOUT_RESULT:
            raise _lost("the workers of the cluster were lost again and again")


def _one_round(
    client: Any, job: Job[Result], tasks: Sequence[int], on_result: Callable[[Result], None]
) -> Collection[int]:
    """Send the job and the tasks; those that were done before the job was lost, if it was."""
    distributed = require("distributed", EXTRA)
    done: set[int] = set()
    try:
        client.wait_for_workers(1, timeout=CONNECT_SECONDS)
        # Not hashed: a key made from the job would be a function of the secret.
        sealed = client.scatter(Sealed(job), broadcast=True, hash=False)
    except TimeoutError:
        raise _lost("the cluster has no workers") from None
    except OSError:
        return done  # a worker was lost while the job was sent
    run = secrets.token_hex(8)
    futures = {client.submit(_attempt, sealed, t, key=f"task-{t}-{run}", pure=False): t for t in tasks}
    try:
        for future in distributed.as_completed(list(futures), loop=client.loop):
            if future.cancelled():
                continue
            try:
                result = future.result()
            except distributed.KilledWorker:
                raise _lost(
                    f"task {futures[future]} ended several workers, perhaps for want of memory"
                ) from None
            except distributed.CancelledError:
                continue
            on_result(_unwrapped(result))
            done.add(futures[future])
    finally:
        client.cancel([sealed, *futures], force=True)
    return done


def refuse_unfit_workers(client: Any) -> None:
    """Refuse workers with other versions, and such as may write private data to their disk.

    Raises
    ------
    ConfigError : says which versions differ, or how to start the workers.
    """
    try:
        client.wait_for_workers(1, timeout=CONNECT_SECONDS)
    except TimeoutError:
        raise ConfigError("the Dask cluster has no workers; start some") from None
    facts = _facts_of(DECIDE_THE_BITS)
    own, _ = facts()
    for versions, spills in client.run(facts).values():
        unlike = sorted(name for name in own if versions.get(name) != own[name])
        if unlike:
            wanted = ", ".join(f"{name} {own[name]}" for name in unlike)
            raise ConfigError(f"workers of the cluster need the versions of this machine: {wanted}")
        if spills:
            raise ConfigError(
                "workers of the cluster may spill private data to their disk; start them with "
                "--memory-limit 0, or set distributed.worker.memory.target and .spill to false"
            )


def _facts_of(packages: Sequence[str]) -> Callable[..., tuple[dict[str, str | None], bool]]:
    """Asks a process for its versions and whether it spills.

    The function travels by value, with its imports: a worker may not have this package.
    """

    def facts(dask_worker: Any = None) -> tuple[dict[str, str | None], bool]:
        import importlib.metadata
        import sys

        found: dict[str, str | None] = {"python": ".".join(map(str, sys.version_info[:3]))}
        for package in packages:
            try:
                found[package] = importlib.metadata.version(package)
            except importlib.metadata.PackageNotFoundError:
                found[package] = None
        if dask_worker is None:
            return found, False
        memory = dask_worker.memory_manager
        fractions = (memory.memory_target_fraction, memory.memory_spill_fraction)
        return found, bool(memory.memory_limit) and any(fractions)

    return facts


def _attempt(sealed: Sealed, task: int) -> Any:
    """One task on a worker of Dask, which shows and logs what a task raises: so nothing is raised."""
    try:
        return sealed.attempt(task)
    except Exception as error:  # whatever it is, its text may quote private data
        frame = traceback.extract_tb(error.__traceback__)[-1]
        where = f"{type(error).__name__} in {Path(frame.filename).name}, line {frame.lineno}"
    return Failure(DpPowerflowError(f"task {task} failed on a worker with {where}; this is a bug, report it"))


def _unwrapped(result: Any) -> Any:
    if isinstance(result, Failure):
        raise result.error
    return result


def _lost(what: str) -> DpPowerflowError:
    return DpPowerflowError(f"{what}; see to the cluster, then run the same command again to resume")


_here: tuple[Sealed, ThreadPoolExecutor | None] | None = None


def _start(sealed: Sealed, threads: int) -> None:
    """Prepare a process of the pool for so many tasks at once."""
    global _here
    _here = sealed, None if threads == 1 else ThreadPoolExecutor(threads)


def _attempt_here(tasks: Sequence[int]) -> list[Any]:
    assert _here is not None
    sealed, threads = _here
    return list(map(sealed.attempt, tasks) if threads is None else threads.map(sealed.attempt, tasks))


@contextmanager
def _one_thread_each() -> Iterator[None]:
    """Processes that start meanwhile have one thread for linear algebra, unless the user says otherwise."""
    unset = [name for name in _THREADS if name not in os.environ]
    os.environ.update(dict.fromkeys(unset, "1"))
    try:
        yield
    finally:
        for name in unset:
            os.environ.pop(name, None)


DEFECTS = (ArithmeticError, AttributeError, LookupError, MemoryError, RuntimeError, TypeError, ValueError)
"""What a defect of the program, or of a library, raises; a run of many things goes on with the next one."""

Request = TypeVar("Request")
Serve = Callable[[Request, Callable[[object], None]], Result]
"""Answers a request, and may tell things meanwhile through the callback. It is pickled to the process."""


class ServerDefectError(RuntimeError):
    """PRIVATE. A defect in a server process; the message is its traceback."""


class ServerProcess(Generic[Request, Result]):
    """A process of its own that answers one request after the other.

    It starts with the first request and is replaced after so many of them, and whenever it ends. It may have
    worker processes itself, and it ends with this process, however that ends.

    Parameters
    ----------
    serve : what answers the requests.
    requests : how many of them one process answers.
    lost : says why a process may have ended, and what to do.
    """

    def __init__(self, serve: Serve[Request, Result], requests: int, lost: str) -> None:
        self._serve, self._requests, self._lost = serve, requests, lost
        self._left = 0
        self._process: Any = None
        self._connection: Connection | None = None

    def ask(self, request: Request, on_told: Callable[[Any], None]) -> Result:
        """The answer to one request; `on_told` gets what is told meanwhile.

        Raises
        ------
        DpPowerflowError : the request failed, or the process ended.
        ServerDefectError : the request met a defect.
        """
        if self._left == 0 or self._process is None:
            self._start()
        self._left -= 1
        connection = self._connection
        assert connection is not None
        try:
            connection.send(request)
            while (message := connection.recv())[0] == "told":
                on_told(message[1])
        except (EOFError, OSError):
            self.stop()
            raise DpPowerflowError(self._lost) from None
        kind, content = message
        if kind == "failed":
            raise DpPowerflowError(content)
        if kind == "defect":
            raise ServerDefectError(content)
        answer: Result = content
        return answer

    def stop(self) -> None:
        """End the process, whatever it does."""
        if self._process is not None:
            self._process.terminate()
            self._process.join()
            self._process = None
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _start(self) -> None:
        self.stop()
        context = get_context("spawn")
        own, other = context.Pipe()
        # Not a daemon: it may have worker processes itself.
        self._process = context.Process(target=_answer_all, args=(other,), daemon=False)
        self._process.start()
        other.close()
        self._connection, self._left = own, self._requests
        own.send(self._serve)


def _answer_all(connection: Connection) -> None:
    """Answer requests until the other side is gone, which also ends this process if the other was killed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the other side is interrupted, and ends this one
    with suppress(EOFError, BrokenPipeError, ConnectionResetError):
        serve = connection.recv()
        while True:
            connection.send(_answer(serve, connection.recv(), connection))


def _answer(serve: Serve[Any, Any], request: Any, connection: Connection) -> tuple[str, Any]:
    try:
        return "done", serve(request, lambda told: connection.send(("told", told)))
    except (DpPowerflowError, OSError) as error:
        return "failed", str(error)
    except DEFECTS:
        return "defect", traceback.format_exc()
