"""Dask clusters: one that is there already, or one of this machine for the time of a run.

Job, items and results travel as data beside the task graph: the scheduler and its dashboard see random names
and the word PRIVATE.
"""

from __future__ import annotations

import asyncio
import functools
import json
import logging
import os
import pickle
import secrets
import sys
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from dp_powerflow._files import noted, remove_unlocked
from dp_powerflow._parallel.local import NOTHING, Engine, Kept, Needs
from dp_powerflow._parallel.processes import Failure, Job, Result, Sealed, unwrapped
from dp_powerflow._spending import NOTHING_SPENT, RESUME
from dp_powerflow.errors import ConfigError, DpPowerflowError, Lines, printable, require

EXTRA = "cluster"
CONNECT_SECONDS = 30
"""How long to wait for a scheduler, and for a first worker, also when all of them were lost."""
TRIES = 3
"""Times to send something while workers are being lost, and to do again what was lost with them."""
AHEAD = 2
"""Items under way for each thread of the cluster."""
# The loop of Dask, a thread of this process that lasts as long as the cluster, starts it.
_DASK_COMMAND = """\
import sys
from dp_powerflow._parallel.processes import end_with
end_with(int(sys.argv.pop(1)))
from distributed.cli.dask_spec import main
main()
"""


class Parcel:
    """PRIVATE. Something on its way, read where it is needed; it says nothing but that."""

    def __init__(self, content: bytes) -> None:
        self._content = content

    @classmethod
    def of(cls, thing: object) -> Parcel:
        return cls(pickle.dumps(thing, pickle.HIGHEST_PROTOCOL))

    def opened(self) -> Any:
        return pickle.loads(self._content)  # made by `of` in this run # nosec B301

    def __repr__(self) -> str:
        return "Parcel(PRIVATE)"

    def __reduce__(self) -> tuple[type[Parcel], tuple[bytes]]:
        return type(self), (self._content,)


@dataclass(frozen=True)
class DaskScheduler(Engine):
    """A Dask cluster that is there already, such as 'tls://10.0.0.5:8786'."""

    address: str

    def check(self, needs: Needs = NOTHING) -> None:
        """Whether it answers, has workers, and they are fit for private data and for the same bits."""
        with self._client() as client:
            refuse_unfit_workers(client, needs)

    @contextmanager
    def kept(self, ahead: str = "", items: int = 0, most_items: int = 0) -> Iterator[Kept]:
        """The workers of the cluster, whenever they come."""
        with self._client() as client:
            refuse_unfit_workers(client, first=False)
            yield _Client(client)

    @contextmanager
    def _client(self) -> Iterator[Any]:
        distributed = require("distributed", EXTRA)
        try:
            _refuse_no_address(self.address)
            client = distributed.Client(self.address, timeout=CONNECT_SECONDS, set_as_default=False)
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
class LocalDask(Engine):
    """A Dask cluster of this machine for the time of the run: one process per worker, no dashboard.

    Unlike those of `distributed.LocalCluster`, its workers do not import the script that is run, so it needs
    no guard for `__main__`.
    """

    workers: int

    def check(self, needs: Needs = NOTHING) -> None:
        """Whether Dask is installed; its workers see what this process sees."""
        require("distributed", EXTRA)

    @contextmanager
    def kept(self, ahead: str = "", items: int = 0, most_items: int = 0) -> Iterator[Kept]:
        """Workers of a cluster for the time of the context."""
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
                client.wait_for_workers(self.workers, timeout=CONNECT_SECONDS)
            yield _Client(client)


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


# --------------------------------------------------------------------------------------------- the items


@dataclass(frozen=True)
class _Client:
    """The workers of a client."""

    client: Any

    def map(
        self,
        job: Job[Any, Result],
        items: Iterable[Any],
        on_done: Callable[[Result], None],
        on_lost: Callable[[Any], Result] | None = None,
    ) -> None:
        run_on(self.client, job, items, on_done, on_lost)


def run_on(
    client: Any,
    job: Job[Any, Result],
    items: Iterable[Any],
    on_done: Callable[[Result], None],
    on_lost: Callable[[Any], Result] | None = None,
) -> None:
    """Do every item on the cluster of a `distributed.Client`; parameters as of `Kept.map`.

    What was lost with a worker is sent again, to whoever comes in its place.
    """
    distributed = require("distributed", EXTRA)
    sealed, sent = Sealed(job), list[Any]()  # the job, where the cluster holds it now
    left, under_way = iter(items), dict[Any, tuple[Any, int, Any]]()
    completed = distributed.as_completed([], loop=client.loop)

    def submit(item: Any, losses: int = 0) -> None:
        if not sent or sent[0].status != "finished":
            sent[:] = [_send(client, sealed, broadcast=True)]
        there = _send(client, Parcel.of(item))
        key = f"task-{secrets.token_hex(8)}"
        future = client.submit(_attempt, sent[0], there, key=key, pure=False)
        under_way[future] = item, losses, there
        completed.add(future)

    try:
        _wait_for_worker(client)
        for item in islice(left, AHEAD * max(1, sum(client.nthreads().values()))):
            submit(item)
        for future in completed:
            item, losses, there = under_way.pop(future)
            answer = _result_of(distributed, future)
            there.release()
            future.release()
            if answer is None and losses + 1 < TRIES:
                submit(item, losses + 1)
                continue
            for following in islice(left, 1):
                submit(following)
            if answer is not None:
                on_done(unwrapped(answer.opened()))
            elif on_lost is not None:
                on_done(on_lost(item))
            else:
                raise _lost("a task ended several workers, perhaps for want of memory")
    finally:
        client.cancel([*sent, *under_way, *(there for _, _, there in under_way.values())], force=True)


def _result_of(distributed: Any, future: Any) -> Parcel | None:
    """What a worker answered; None if it was lost."""
    if future.cancelled():
        return None
    try:
        result: Parcel = future.result()
    except (distributed.KilledWorker, distributed.CancelledError, OSError):
        return None
    return result


def _send(client: Any, thing: object, *, broadcast: bool = False) -> Any:
    distributed = require("distributed", EXTRA)
    for _ in range(TRIES):
        _wait_for_worker(client)
        try:
            # Not hashed: a key made from the content would be a function of the secret.
            return client.scatter(thing, broadcast=broadcast, hash=False)
        except (OSError, TimeoutError, distributed.CancelledError):
            continue  # a worker was lost while it was sent
    raise _lost("the workers of the cluster were lost again and again")


def _attempt(sealed: Sealed, item: Parcel) -> Parcel:
    """One item on a worker of Dask, which shows and logs what a task raises: so nothing is raised."""
    try:
        return Parcel.of(sealed.attempt(item.opened()))
    except Exception as error:  # whatever it is, its text may quote private data
        words = f"a task failed on a worker with {described(error)}; this is a bug, report it"
        return Parcel.of(Failure(DpPowerflowError(words)))


def described(error: Exception) -> str:
    """Kind and line of a defect; its text may quote private data."""
    frame = traceback.extract_tb(error.__traceback__)[-1]
    return f"{type(error).__name__} in {Path(frame.filename).name}, line {frame.lineno}"


def _wait_for_worker(client: Any) -> None:
    try:
        client.wait_for_workers(1, timeout=CONNECT_SECONDS)
    except TimeoutError:
        raise _lost("the cluster has no workers") from None


def _lost(what: str) -> DpPowerflowError:
    return DpPowerflowError(f"{what}; see to the cluster, then run the same command again to resume")


# -------------------------------------------------------------------------------------- are workers fit?

DECIDE_THE_BITS = ("dp-powerflow", "numpy", "scipy", "numba", "pyarrow", "randomgen")
"""Packages that workers need in the client's version: the same release has the same bytes anywhere."""
_PROBE = ".dp-powerflow-probe-"
_NAMED = 3  # workers, or files, that a message lists
Facts = Mapping[str, Any]
"""What a process says of itself."""


def refuse_unfit_workers(client: Any, needs: Needs = NOTHING, *, first: bool = True) -> None:
    """Refuse workers that would fail later, make other bytes, or write private data to their disk.

    Parameters
    ----------
    first : whether this is asked before a run; in the middle of one something may have been spent.

    Raises
    ------
    ConfigError : every problem of every worker, with what to do.
    """
    try:
        client.wait_for_workers(1, timeout=CONNECT_SECONDS)
    except TimeoutError:
        raise ConfigError("the Dask cluster has no workers; start some") from None
    with _probe_beside(needs.output) as (probe, url):
        sizes = {str(path.absolute()): path.stat().st_size for path in needs.files}
        ask = _facts_of(DECIDE_THE_BITS, probe, url, sizes)
        own, found = ask(), client.run(ask, on_error="return")
    problems: dict[str, list[str]] = {}
    for address, facts in sorted(found.items()):
        if not isinstance(facts, dict):  # an exception, whose text may quote private values
            problems.setdefault(f"does not answer ({type(facts).__name__}); restart it", []).append(address)
            continue
        for problem in _problems(own, facts, needs):
            problems.setdefault(problem, []).append(f"'{facts['name']}' at {address}")
    if problems:
        lines = "".join(f"\n- {printable(f'{_some(who)}: {problem}')}" for problem, who in problems.items())
        said = NOTHING_SPENT if first else RESUME
        raise ConfigError(Lines(f"workers of the cluster are not fit for this run; {said}:{lines}"))


def _problems(own: Facts, facts: Facts, needs: Needs) -> Iterator[str]:
    """Sentences on what one worker lacks."""
    wanted, has = own["versions"], facts["versions"]
    unlike = sorted(name for name in wanted if has.get(name) != wanted[name])
    if unlike:
        differ = ", ".join(f"{name} {wanted[name]} (it has {has.get(name) or 'none'})" for name in unlike)
        yield f"needs the versions of this machine: {differ}"
    if facts["machine"] != own["machine"]:
        yield f"has a processor of kind {facts['machine']}, this machine {own['machine']}: other bits"
    if facts["spills"]:
        yield (
            "may spill private data to its disk; start it with --memory-limit 0, or set "
            "distributed.worker.memory.target and .spill to false"
        )
    if facts["output"] != own["output"]:
        yield (
            f"cannot use the output {needs.output} ({facts['output']}); choose a directory that this machine "
            "and all workers share under one name, or a URL that all may write"
        )
    if facts["unseen"]:
        count, some = len(facts["unseen"]), ", ".join(facts["unseen"][:_NAMED])
        yield (
            f"does not see {count} of {len(needs.files)} feeder files as they are here, such as {some}; put "
            "them where this machine and all workers find them under one name"
        )


def _some(workers: Sequence[str]) -> str:
    """Names of some workers."""
    named, others = ", ".join(workers[:_NAMED]), len(workers) - _NAMED
    noun = "worker" if len(workers) == 1 else "workers"
    return f"{noun} {named} and {others} more" if others > 0 else f"{noun} {named}"


@contextmanager
def _probe_beside(output: str | Path | None) -> Iterator[tuple[tuple[str, str] | None, str | None]]:
    """A small file beside the output for as long as workers look for it, or the URL to look at."""
    way, _, place = str(output or "").partition("://")
    if output is None or (place and way != "file"):
        yield None, None if output is None else str(output)
        return
    folder = Path(place or output).absolute().parent
    while not folder.is_dir():
        folder = folder.parent
    probe, content = folder / f"{_PROBE}{secrets.token_hex(8)}", secrets.token_hex(16)
    try:
        for left in folder.glob(f"{_PROBE}*"):
            with suppress(OSError):
                remove_unlocked(left)
        with noted(probe, content):
            yield (str(probe), content), None
    except PermissionError:
        raise ConfigError(
            f"{folder} cannot be written; choose another output", code="output-unwritable"
        ) from None


def _facts_of(
    packages: Sequence[str], probe: tuple[str, str] | None, url: str | None, sizes: Mapping[str, int]
) -> Callable[..., dict[str, Any]]:
    """Asks a process for its versions and processor, and for what it sees.

    The function travels by value, with its imports: a worker may not have this package. It travels outside
    the task graph and raises nothing, for Dask logs what it raises.
    """

    def versions() -> dict[str, str | None]:
        import importlib.metadata
        import sys

        found: dict[str, str | None] = {"python": ".".join(map(str, sys.version_info[:3]))}
        for package in packages:
            try:
                found[package] = importlib.metadata.version(package)
            except importlib.metadata.PackageNotFoundError:
                found[package] = None
        return found

    def output() -> str:
        """What is found where the output will be, in words that workers and client share."""
        import os

        try:
            if probe is not None:
                path, content = probe
                with open(path) as file:
                    seen = file.read() == content
                writable = os.access(os.path.dirname(path), os.W_OK)
                return "seen" if seen and writable else "it may not write there"
            if url is not None:
                import fsspec  # type: ignore[import-untyped]

                storage, path = fsspec.core.url_to_fs(url)
                storage.ls(storage._parent(path))
        except FileNotFoundError:
            return "not found"
        except Exception as error:  # its text may quote a credential
            return type(error).__name__
        return "seen"

    def unseen() -> list[str]:
        import os

        found = []
        for path, size in sizes.items():
            try:
                if os.stat(path).st_size != size or not os.access(path, os.R_OK):
                    found.append(path)
            except OSError:
                found.append(path)
        return found

    def facts(dask_worker: Any = None) -> dict[str, Any]:
        import platform

        spills = False
        if dask_worker is not None:
            memory = dask_worker.memory_manager
            fractions = memory.memory_target_fraction, memory.memory_spill_fraction
            spills = bool(memory.memory_limit) and any(fractions)
        return {
            "name": "" if dask_worker is None else str(dask_worker.name),
            "versions": versions(),
            "machine": platform.machine(),
            "spills": spills,
            "output": output(),
            "unseen": unseen(),
        }

    return facts
