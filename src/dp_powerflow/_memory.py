"""Whether there is memory enough to begin; asked before the libraries that need it are loaded.

Below some limit libraries do not fail in order: LLVM ends the process, OpenBLAS tries again for ever, a file
that is whole looks damaged. So a command that solves is refused where that could happen.

Measured with `VmHWM` and `VmPeak` of small releases, 300 days on IEEE 13 (2 cores, Python 3.11, numba 0.68):

    inspect   211 MiB resident,   670 MiB of addresses
    plan      270 MiB resident, 1,041 MiB of addresses
    certify   314 MiB resident,   987 MiB of addresses
    release   360 MiB resident, 2,254 MiB of addresses; with one core 2,073 MiB, with 8 workers 2,425 MiB

Of the addresses of a release, most are only reserved: with a limit of 1,600 MiB it succeeds, with 1,300 MiB
LLVM ends it. Larger feeders need more, which nobody knows before they are read; then `MemoryError` becomes a
sentence too.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from dp_powerflow._threads import cores
from dp_powerflow.errors import ConfigError

NO_MEMORY = "there is not enough memory; free some, allow more, or use fewer --workers"
MIB = 2**20
RESIDENT = 360 * MIB
"""What a small release takes."""
ADDRESSES, ADDRESSES_PER_CORE = 1450 * MIB, 100 * MIB
"""What it must be allowed to reserve, and for every thread of a library or of ours."""
_VERSION_2 = ("memory.max", "memory.current", "")
_VERSION_1 = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_")
"""Of groups of processes: limit, what is used, and what the names of sums over groups below begin with."""
_PROC, _CGROUPS = Path("/proc"), Path("/sys/fs/cgroup")


def check_memory() -> None:
    """Refuse to begin where a small release would not fit.

    Raises
    ------
    ConfigError : says how much is needed and how much there is.
    """
    needed = ADDRESSES + ADDRESSES_PER_CORE * cores()
    allowed = _address_limit()
    if allowed is not None and allowed < needed:
        raise ConfigError(
            f"this needs about {_mib(needed)} of address space, and a process here may have {_mib(allowed)} "
            "(ulimit -v); allow more; nothing was spent"
        )
    free = min(_free(), default=None)
    if free is not None and free < RESIDENT:
        raise ConfigError(
            f"this needs about {_mib(RESIDENT)} of memory, and there are {_mib(free)} left for it; end other "
            "programs, or raise the limit of this container or job; nothing was spent"
        )


def _address_limit() -> int | None:
    """Bytes of addresses that a process may have; None if there is no limit."""
    try:
        import resource  # not on Windows
    except ImportError:
        return None
    soft, _ = resource.getrlimit(resource.RLIMIT_AS)
    return None if soft == resource.RLIM_INFINITY else soft


def _free() -> Iterator[int]:
    """Bytes that this machine, and every group of processes that this one belongs to, has left."""
    fields = _fields(_PROC / "meminfo", 1024)
    if "MemAvailable" not in fields:
        return  # not Linux
    swap = fields.get("SwapFree", 0)
    yield fields["MemAvailable"] + swap
    for line in _text(_PROC / "self" / "cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            yield from _free_of_groups(_CGROUPS, path, _VERSION_2, swap)
        elif "memory" in controllers.split(","):
            yield from _free_of_groups(_CGROUPS / "memory", path, _VERSION_1, swap)


def _free_of_groups(root: Path, path: str, names: tuple[str, str, str], swap: int) -> Iterator[int]:
    """Bytes that a group, and those above it, have left: what only caches files can be had back."""
    limit, used, of_all = names
    group = root / path.lstrip("/")
    for folder in (group, *group.parents):
        if not folder.is_relative_to(root):
            return
        allowed, taken = _text(folder / limit).strip(), _text(folder / used).strip()
        if allowed.isdigit() and taken.isdigit():
            stated = _fields(folder / "memory.stat", 1)
            back = sum(stated.get(f"{of_all}{cached}", 0) for cached in ("inactive_file", "active_file"))
            swap = min(swap, _free_swap(folder, swap))  # what those above it allow is not more
            yield int(allowed) - int(taken) + back + swap


def _free_swap(group: Path, most: int) -> int:
    """Bytes of swap that a group of version 2 has left; `most` where it says nothing."""
    allowed, taken = (_text(group / f"memory.swap.{name}").strip() for name in ("max", "current"))
    return max(0, int(allowed) - int(taken)) if allowed.isdigit() and taken.isdigit() else most


def _fields(path: Path, unit: int) -> dict[str, int]:
    """Names and numbers of a file of the system, a pair on each line."""
    pairs = (line.replace(":", " ").split()[:2] for line in _text(path).splitlines())
    return {pair[0]: int(pair[1]) * unit for pair in pairs if len(pair) == 2 and pair[1].isdigit()}


def _text(path: Path) -> str:
    """A file of the system; empty if there is none."""
    try:
        return path.read_text(encoding="ascii", errors="replace")
    except OSError:
        return ""


def _mib(size: int) -> str:
    return f"{max(0, size) / MIB:,.0f} MiB"
