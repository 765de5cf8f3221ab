"""Dask clusters: one that is there already, or one of this machine for the time of a run.

What a task returns comes back through the scheduler, so it is small and not secret; the data that a task
makes it writes itself.
"""

from __future__ import annotations

import asyncio
import functools
import json
import logging
import os
import secrets
import sys
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from typing import Any, ClassVar

from dp_powerflow._parallel import fitness
from dp_powerflow._parallel.dask_crew import EXTRA, DaskCrew, described
from dp_powerflow._parallel.fitness import NOTHING, Needs, refuse_unfit_workers
from dp_powerflow._parallel.processes import Crew, Failure, Job, OnTold, Result, Sealed, unwrapped
from dp_powerflow.errors import ConfigError, DpPowerflowError, require

# The loop of Dask, a thread of this process that lasts as long as the cluster, starts it.
_DASK_COMMAND = """\
import sys
from dp_powerflow._parallel.processes import end_with
end_with(int(sys.argv.pop(1)))
from distributed.cli.dask_spec import main
main()
"""
ROUNDS_WITHOUT_RESULT = 3
"""Times that the workers may be lost with nothing done in between."""


@dataclass(frozen=True)
class DaskScheduler:
    """A Dask cluster that is there already, such as 'tls://10.0.0.5:8786'."""

    address: str
    splits: ClassVar[bool] = True

    def check(self, needs: Needs = NOTHING) -> None:
        """Whether it answers, has workers, and they are fit for private data and for the same bits."""
        with self._client() as client:
            refuse_unfit_workers(client, needs)

    def run(self, job: Job[Result], tasks: Sequence[int], on_result: Callable[[Result], None]) -> None:
        with self._client() as client:
            refuse_unfit_workers(client, first=False)
            run_on(client, job, tasks, on_result)

    @contextmanager
    def crew(self, on_told: OnTold, begun_per_worker: int) -> Iterator[Crew]:
        """The workers of the cluster, whenever they come."""
        with self._client() as client:
            refuse_unfit_workers(client, first=False)
            with closing(DaskCrew(client, on_told, wait_for_worker)) as crew:
                yield crew

    @contextmanager
    def _client(self) -> Iterator[Any]:
        distributed = require("distributed", EXTRA)
        try:
            _refuse_no_address(self.address)
            client = distributed.Client(self.address, timeout=fitness.CONNECT_SECONDS, set_as_default=False)
        except (OSError, ValueError, TypeError, AssertionError):  # Dask asserts that an address has a form
            raise ConfigError(
                f"no Dask scheduler answers at {self.address}; check the address, and for tls:// the "
                "certificates in the configuration of Dask"
            ) from None
        with client:
            yield client


def _refuse_no_address(address: str) -> None:
    """ValueError for what is no address: Dask would begin a client for it, and complain when Python ends."""
    addressing = require("distributed.comm.addressing", EXTRA)
    scheme, place = addressing.parse_address(address)
    if scheme == "inproc":  # of this process
        if require("distributed.comm.inproc", EXTRA).global_manager.get_listener_for(place) is None:
            raise ValueError("no cluster of this process has this address")
        return
    require("distributed.comm.registry", EXTRA).get_backend(scheme)
    if scheme in ("tcp", "tls", "ws", "wss"):
        addressing.parse_host_port(place)


@dataclass(frozen=True)
class LocalDask:
    """A Dask cluster of this machine for the time of the run: one process per worker, no dashboard.

    Unlike those of `distributed.LocalCluster`, its workers do not import the script that is run, so it needs
    no guard for `__main__`.
    """

    workers: int
    splits: ClassVar[bool] = True

    def check(self, needs: Needs = NOTHING) -> None:
        """Whether Dask is installed; its workers see what this process sees."""
        require("distributed", EXTRA)

    def run(self, job: Job[Result], tasks: Sequence[int], on_result: Callable[[Result], None]) -> None:
        with self._client() as client:
            run_on(client, job, tasks, on_result)

    @contextmanager
    def crew(self, on_told: OnTold, begun_per_worker: int) -> Iterator[Crew]:
        """Workers of a cluster for the time of the context."""
        with self._client() as client, closing(DaskCrew(client, on_told, wait_for_worker)) as crew:
            yield crew

    @contextmanager
    def _client(self) -> Iterator[Any]:
        distributed = require("distributed", EXTRA)
        own = {"nthreads": 1, "host": "127.0.0.1", "silence_logs": logging.ERROR, "dashboard": False}
        # Without a limit of memory nothing is spilled to the disk.
        options = {"worker_class": "distributed.Nanny", "worker_kwargs": {**own, "memory_limit": 0}}
        worker = {"cls": _own_worker(), "options": options}
        # Dask starts a web server in any case: here on a free port that only this machine reaches.
        web = {"dashboard": False, "dashboard_address": "127.0.0.1:0"}
        with _imports_of_this_process():
            cluster = distributed.SpecCluster(
                workers=dict.fromkeys(range(self.workers), worker),
                scheduler={"cls": distributed.Scheduler, "options": {"host": "127.0.0.1", "port": 0, **web}},
                silence_logs=logging.ERROR,
                name="dp-powerflow",
            )
        with cluster, distributed.Client(cluster, set_as_default=False) as client:
            with suppress(TimeoutError):  # one that is late takes part when it comes
                client.wait_for_workers(self.workers, timeout=fitness.CONNECT_SECONDS)
            yield client


@functools.cache
def _own_worker() -> Any:
    """A worker of Dask as a process that ends with this one, and to which no terminal sends its signals."""
    subprocess = require("distributed.deploy.subprocess", EXTRA)

    class OwnWorker(subprocess.SubprocessWorker):  # type: ignore[misc, name-defined]
        async def _start(self) -> None:
            spec = json.dumps({"cls": self.worker_class, "opts": {**self.worker_kwargs}})
            self.process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-c", _DASK_COMMAND, str(os.getpid()), self.scheduler, "--spec", spec),
                start_new_session=True,
            )

    return OwnWorker


@contextmanager
def _imports_of_this_process() -> Iterator[None]:
    """Processes that Dask starts meanwhile import from the places that this one does."""
    before = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = os.pathsep.join(map(os.path.abspath, sys.path))
    try:
        yield
    finally:
        if before is None:
            del os.environ["PYTHONPATH"]
        else:
            os.environ["PYTHONPATH"] = before


def wait_for_worker(client: Any) -> None:
    """Wait until there is one, or end in a sentence."""
    try:
        client.wait_for_workers(1, timeout=fitness.CONNECT_SECONDS)
    except TimeoutError:
        raise _lost("the cluster has no workers") from None


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
    wait_for_worker(client)
    try:
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
            on_result(unwrapped(result))
            done.add(futures[future])
    finally:
        client.cancel([sealed, *futures], force=True)
    return done


def _attempt(sealed: Sealed, task: int) -> Any:
    """One task on a worker of Dask, which shows and logs what a task raises: so nothing is raised."""
    try:
        return sealed.attempt(task)
    except Exception as error:  # whatever it is, its text may quote private data
        where = described(error)
    return Failure(DpPowerflowError(f"task {task} failed on a worker with {where}; this is a bug, report it"))


def _lost(what: str) -> DpPowerflowError:
    return DpPowerflowError(f"{what}; see to the cluster, then run the same command again to resume")
