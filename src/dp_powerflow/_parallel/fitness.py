"""Whether the workers of a cluster can do what a run needs; asked before anything is spent."""

from __future__ import annotations

import secrets
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dp_powerflow._files import noted, remove_unlocked
from dp_powerflow._spending import NOTHING_SPENT, RESUME
from dp_powerflow.errors import ConfigError, Lines, printable

CONNECT_SECONDS = 30
"""How long to wait for a scheduler, and for a first worker, also when all of them were lost."""
DECIDE_THE_BITS = ("dp-powerflow", "numpy", "scipy", "numba", "pyarrow", "randomgen")
"""Packages that workers need in the client's version: the same release has the same bytes anywhere."""
PROCESSOR = ("avx2", "fma")
"""What the kernels use; without, the bits are the same and a run takes many times as long."""
_PROBE = ".dp-powerflow-probe-"
_NAMED = 3  # workers, or files, that a message lists
_FILE = "file"  # the way of a URL that is a path


@dataclass(frozen=True)
class Needs:
    """What every worker of a run must have.

    Attributes
    ----------
    output : path or URL that workers write to; None if they write nothing.
    files : what they read. PRIVATE: names of feeders.
    memory_bytes : of one worker, at most.
    """

    output: str | Path | None = None
    files: Sequence[Path] = ()
    memory_bytes: int = 0


NOTHING = Needs()
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
        ask = _facts_of(DECIDE_THE_BITS, PROCESSOR, probe, url, sizes)
        own, found = ask(), client.run(ask, on_error="return")
    hosts = Counter(facts["host"] for facts in found.values() if isinstance(facts, dict))
    problems: dict[str, list[str]] = {}
    for address, facts in sorted(found.items()):
        if not isinstance(facts, dict):  # an exception, whose text may quote private values
            problems.setdefault(f"does not answer ({type(facts).__name__}); restart it", []).append(address)
            continue
        who = f"'{facts['name']}' at {address}"
        for problem in _problems(own, facts, needs, hosts[facts["host"]]):
            problems.setdefault(problem, []).append(who)
    if problems:
        lines = "".join(f"\n- {printable(f'{_some(who)}: {problem}')}" for problem, who in problems.items())
        said = NOTHING_SPENT if first else RESUME
        raise ConfigError(Lines(f"workers of the cluster are not fit for this run; {said}:{lines}"))


def _problems(own: Facts, facts: Facts, needs: Needs, neighbours: int) -> Iterator[str]:
    """Sentences on what one worker lacks; `neighbours` workers share the memory of its host."""
    wanted, has = own["versions"], facts["versions"]
    unlike = sorted(name for name in wanted if has.get(name) != wanted[name])
    if unlike:
        differ = ", ".join(f"{name} {wanted[name]} (it has {has.get(name) or 'none'})" for name in unlike)
        yield f"needs the versions of this machine: {differ}"
    if facts["machine"] != own["machine"]:
        yield f"has a processor of kind {facts['machine']}, this machine {own['machine']}: other bits"
    elif facts["lacks"]:
        yield f"has a processor without {' and '.join(facts['lacks'])}; leave it out"
    if facts["spills"]:
        yield (
            "may spill private data to its disk; start it with --memory-limit 0, or set "
            "distributed.worker.memory.target and .spill to false"
        )
    memory, limit = needs.memory_bytes, facts["limit"]
    if limit and memory > limit:
        yield f"is limited to {_gib(limit)} of memory and needs {_gib(memory)}; raise its limit"
    elif memory * neighbours > facts["free"]:
        yield (
            f"has a host with {_gib(facts['free'])} of free memory, and each of its {neighbours} needs "
            f"{_gib(memory)}; start fewer, or on a larger host"
        )
    yield from _unseen(own, facts, needs)


def _unseen(own: Facts, facts: Facts, needs: Needs) -> Iterator[str]:
    if facts["output"] != own["output"]:
        yield (
            f"cannot use the output {needs.output} ({facts['output']}); choose a directory that this machine "
            "and all workers share under one name, or a URL that all may write"
        )
    if facts["unseen"]:
        count, first = len(facts["unseen"]), ", ".join(facts["unseen"][:_NAMED])
        yield (
            f"does not see {count} of {len(needs.files)} feeder files as they are here, such as {first}; put "
            "them where this machine and all workers find them under one name"
        )


def _some(workers: Sequence[str]) -> str:
    """Names of some workers."""
    named, others = ", ".join(workers[:_NAMED]), len(workers) - _NAMED
    noun = "worker" if len(workers) == 1 else "workers"
    return f"{noun} {named} and {others} more" if others > 0 else f"{noun} {named}"


def _gib(count: float) -> str:
    return f"{count / 2**30:.1f} GiB"


@contextmanager
def _probe_beside(output: str | Path | None) -> Iterator[tuple[tuple[str, str] | None, str | None]]:
    """A small file beside the output for as long as workers look for it, or the URL to look at."""
    way, _, place = str(output or "").partition("://")
    if output is None or (place and way != _FILE):
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
        raise ConfigError(f"{folder} cannot be written; choose another output") from None


def _facts_of(
    packages: Sequence[str],
    features: Sequence[str],
    probe: tuple[str, str] | None,
    url: str | None,
    sizes: Mapping[str, int],
) -> Callable[..., dict[str, Any]]:
    """Asks a process for its versions, processor and memory, and for what it sees.

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

    def lacking() -> list[str]:
        try:
            from llvmlite.binding import get_host_cpu_features  # type: ignore[import-untyped]

            has = get_host_cpu_features()
        except (ImportError, RuntimeError):
            return []  # the versions say so, or nobody knows
        return [feature for feature in features if not has.get(feature, False)]

    def free_memory() -> int:
        import psutil  # type: ignore[import-untyped]
        from distributed.system import MEMORY_LIMIT

        return min(int(psutil.virtual_memory().available), int(MEMORY_LIMIT))

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
        import socket

        limit, spills = 0, False
        if dask_worker is not None:
            memory = dask_worker.memory_manager
            limit = int(memory.memory_limit or 0)
            spills = limit > 0 and any((memory.memory_target_fraction, memory.memory_spill_fraction))
        return {
            "name": "" if dask_worker is None else str(dask_worker.name),
            "host": socket.gethostname(),
            "versions": versions(),
            "machine": platform.machine(),
            "lacks": lacking() if platform.machine() in ("x86_64", "AMD64") else [],
            "spills": bool(spills),
            "limit": limit,
            "free": free_memory(),
            "output": output(),
            "unseen": unseen(),
        }

    return facts
