"""A Dask cluster that is there already.

Job, items and results travel as data outside the task graph: the scheduler and its dashboard see random names
and the word PRIVATE.
"""

from __future__ import annotations

import importlib.metadata
import os
import pickle
import platform
import secrets
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from dp_powerflow._files import noted, remove_unlocked
from dp_powerflow._parallel.local import Engine, Failure, Job, Kept, Result, Sealed, unwrapped
from dp_powerflow._spending import NOTHING_SPENT, RESUME
from dp_powerflow.errors import ConfigError, DpPowerflowError, Lines, printable, require

EXTRA = "cluster"
CONNECT_SECONDS = 30
"""How long to wait for a scheduler, and for a first worker, also when all of them were lost."""
TRIES = 3
"""Times to send something while workers are being lost, and to do again what was lost with them."""
AHEAD = 2
"""Items under way for each thread of the cluster."""


class Parcel:
    """PRIVATE. Something on its way, read where it is needed; it says nothing but that."""

    def __init__(self, thing: object) -> None:
        self._content = pickle.dumps(thing, pickle.HIGHEST_PROTOCOL)

    def opened(self) -> Any:
        return pickle.loads(self._content)  # made in this run # nosec B301

    def __repr__(self) -> str:
        return "Parcel(PRIVATE)"


@dataclass(frozen=True)
class DaskScheduler(Engine):
    """A Dask cluster that is there already, such as 'tls://10.0.0.5:8786'."""

    address: str

    def map(self, job: Job[Any, Result], items: Sequence[Any], on_done: Callable[[Result], None]) -> None:
        """Do every item."""
        with self.kept() as workers:
            workers.map(job, items, on_done)

    def check(self, output: str | Path | None = None) -> None:
        """Whether it answers, has workers, and they are fit for private data and for the same bits."""
        with self._client() as client:
            refuse_unfit_workers(client, output)

    @contextmanager
    def kept(self, items: int = 0, most_items: int = 0) -> Iterator[Kept]:
        """The workers of the cluster, whenever they come."""
        with self._client() as client:
            refuse_unfit_workers(client, first=False)
            yield Workers(client)

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
    scheme, place = require("distributed.comm.addressing", EXTRA).parse_address(address)
    require("distributed.comm.registry", EXTRA).get_backend(scheme).get_address_host(place)


# --------------------------------------------------------------------------------------------- the items


@dataclass(frozen=True)
class Workers:
    """PRIVATE. The workers of a `distributed.Client`."""

    client: Any

    def map(
        self,
        job: Job[Any, Result],
        items: Iterable[Any],
        on_done: Callable[[Result], None],
        on_lost: Callable[[Any], Result] | None = None,
    ) -> None:
        """Do every item; parameters as of `Kept.map`. What was lost with a worker is sent to another one."""
        distributed, client = require("distributed", EXTRA), self.client
        sealed, sent = Sealed(job), list[Any]()  # the job, where the cluster holds it now
        left, under_way = iter(items), dict[Any, tuple[Any, int, Any]]()
        completed = distributed.as_completed([], loop=client.loop)

        def submit(item: Any, losses: int = 0) -> None:
            if not sent or sent[0].status != "finished":
                sent[:] = [_send(client, sealed, broadcast=True)]
            there = _send(client, Parcel(item))
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
        return Parcel(sealed.attempt(item.opened()))
    except Exception as error:  # whatever it is, its text may quote private data
        words = f"a task failed on a worker with {described(error)}; this is a bug, report it"
        return Parcel(Failure(DpPowerflowError(words)))


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

DECIDE_THE_BITS = ("python", "dp-powerflow", "numpy", "scipy", "numba", "pyarrow", "randomgen")
"""Packages that workers need in the client's version: the same release has the same bytes anywhere."""
_PROBE = ".dp-powerflow-probe-"
_NAMED = 3  # workers that a message lists
Facts = Mapping[str, Any]
"""What a process says of itself."""


def refuse_unfit_workers(client: Any, output: str | Path | None = None, *, first: bool = True) -> None:
    """Refuse workers that would fail later, make other bytes, or write private data to their disk.

    Parameters
    ----------
    output : path or URL that they write to; None if they write nothing.
    first : whether this is asked before a run; in the middle of one something may have been spent.

    Raises
    ------
    ConfigError : every problem of every worker, with what to do.
    """
    try:
        client.wait_for_workers(1, timeout=CONNECT_SECONDS)
    except TimeoutError:
        raise ConfigError("the Dask cluster has no workers; start some") from None
    with _probe_beside(output) as probe:
        own, found = facts(probe), client.run(facts, probe, on_error="return")
    problems: dict[str, list[str]] = {}
    for address, said in sorted(found.items()):
        if not isinstance(said, dict):  # an exception, whose text may quote private values
            kind = type(said).__name__
            words = f"cannot say what it has ({kind}); install this dp-powerflow there and restart it"
            problems.setdefault(words, []).append(address)
            continue
        for problem in _problems(own, said, output):
            problems.setdefault(problem, []).append(f"'{said['name']}' at {address}")
    if problems:
        lines = "".join(f"\n- {printable(f'{_some(who)}: {problem}')}" for problem, who in problems.items())
        spent = NOTHING_SPENT if first else RESUME
        raise ConfigError(Lines(f"workers of the cluster are not fit for this run; {spent}:{lines}"))


def _problems(own: Facts, its: Facts, output: str | Path | None) -> Iterator[str]:
    """Sentences on what one worker lacks."""
    wanted, has = own["versions"], its["versions"]
    unlike = sorted(name for name in wanted if has.get(name) != wanted[name])
    differ = ", ".join(f"{name} {wanted[name]} (it has {has.get(name) or 'none'})" for name in unlike)
    table = (
        (unlike, f"needs the versions of this machine: {differ}"),
        (
            its["machine"] != own["machine"],
            f"has a processor of kind {its['machine']}, this machine {own['machine']}: other bits",
        ),
        (
            its["spills"],
            "may spill private data to its disk; start it with --memory-limit 0, or set "
            "distributed.worker.memory.target and .spill to false",
        ),
        (
            its["output"] != own["output"],
            f"cannot use the output {output} ({its['output']}); choose a directory that this machine "
            "and all workers share under one name, or a URL that all may write",
        ),
    )
    return (sentence for lacks, sentence in table if lacks)


def _some(workers: Sequence[str]) -> str:
    """Names of some workers."""
    named, others = ", ".join(workers[:_NAMED]), len(workers) - _NAMED
    noun = "worker" if len(workers) == 1 else "workers"
    return f"{noun} {named} and {others} more" if others > 0 else f"{noun} {named}"


@contextmanager
def _probe_beside(output: str | Path | None) -> Iterator[tuple[str, str] | None]:
    """A small file next to the output for as long as workers look for it; None for a URL of a store."""
    way, _, place = str(output or "").partition("://")
    if output is None or (place and way != "file"):
        yield None
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
            yield str(probe), content
    except PermissionError:
        raise ConfigError(
            f"{folder} cannot be written; choose another output", code="output-unwritable"
        ) from None


def facts(probe: tuple[str, str] | None, dask_worker: Any = None) -> dict[str, Any]:
    """What a process has: versions, processor, what it sees. It raises nothing, for Dask logs what it raises.

    Parameters
    ----------
    probe : a file next to the output, and its content.
    """
    memory = None if dask_worker is None else dask_worker.memory_manager
    spills = False
    if memory is not None and memory.memory_limit:
        spills = any((memory.memory_target_fraction, memory.memory_spill_fraction))
    return {
        "name": "" if dask_worker is None else str(dask_worker.name),
        "versions": {name: _version(name) for name in DECIDE_THE_BITS},
        "machine": platform.machine(),
        "spills": spills,
        "output": _seen_at_output(probe),
    }


def _version(package: str) -> str | None:
    if package == "python":
        return platform.python_version()
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _seen_at_output(probe: tuple[str, str] | None) -> str:
    """What is found where the output will be, in words that workers and client share."""
    if probe is None:
        return "seen"
    path, content = Path(probe[0]), probe[1]
    try:
        writable = path.read_text() == content and os.access(path.parent, os.W_OK)
    except FileNotFoundError:
        return "not found"
    except Exception as error:  # a worker raises nothing
        return type(error).__name__
    return "seen" if writable else "it may not write there"
