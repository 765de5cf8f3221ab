"""The library that counts system calls on files and strikes at the n-th; see `shim.c`."""

from __future__ import annotations

import ctypes
import enum
import mmap
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

SOURCE = Path(__file__).with_name("shim.c")
PLAN = "FAULTS_PLAN"
_LOGGED, _NAME = 32768, 88


Kind = enum.IntEnum(
    "Kind", "CREATE OPEN WRITE TRUNCATE SYNC RENAME LINK UNLINK MKDIR RMDIR CHMOD LOCK TOUCH SEND", start=0
)
"""What a system call does to a file; the order is that of `shim.c`."""
FILES = tuple(kind for kind in Kind if kind is not Kind.SEND)
Action = enum.IntEnum("Action", "COUNT KILL KILL_HALF FAIL FAIL_ONCE SHORT", start=0)
"""What happens at the n-th call; the order is that of `shim.c`."""
Victim = enum.IntEnum("Victim", "SELF GROUP", start=0)
"""Who is killed: the process of the call, or its whole group."""


@dataclass(frozen=True)
class Event:
    """A call that was counted: what it did, which process made it, and to which file below the folder."""

    kind: Kind
    pid: int
    name: str


@dataclass(frozen=True)
class Strike:
    """What to do at which call.

    Attributes
    ----------
    at : number of the call, from 0.
    error : errno of calls that fail.
    kinds : calls that are counted; others go through.
    """

    action: Action = Action.COUNT
    at: int = 0
    error: int = 0
    kinds: Sequence[Kind] = FILES
    victim: Victim = Victim.SELF


class _Event(ctypes.Structure):
    _fields_ = (("kind", ctypes.c_int32), ("pid", ctypes.c_int32), ("name", ctypes.c_char * _NAME))


_NUMBERS = ("armed", "action", "at", "error", "kinds", "victim", "clock", "length")


class _Plan(ctypes.Structure):
    _fields_ = (
        *((name, ctypes.c_int64) for name in _NUMBERS),
        ("folder", ctypes.c_char * 512),
        ("count", ctypes.c_int64),
        ("struck", ctypes.c_int64),
        ("log", _Event * _LOGGED),
    )


class Shim:
    """The plan that a process and all that it starts share; the process was started by `preloaded`."""

    def __init__(self) -> None:
        with Path(os.environ[PLAN]).open("r+b") as file:
            self._memory = mmap.mmap(file.fileno(), ctypes.sizeof(_Plan))
        self._plan = _Plan.from_buffer(self._memory)

    def arm(self, folder: Path, strike: Strike) -> None:
        """Count from 0, and do what is to be done at the n-th call below a folder."""
        plan, path = self._plan, os.fsencode(folder)
        plan.armed = 0
        plan.action, plan.at, plan.error = strike.action, strike.at, strike.error
        plan.kinds = sum(1 << kind for kind in strike.kinds)
        plan.victim, plan.folder, plan.length = strike.victim, path, len(path)
        plan.count = plan.struck = 0
        plan.armed = 1

    def disarm(self) -> bool:
        """Do nothing from now on; whether anything was done."""
        self._plan.armed = 0
        return bool(self._plan.struck)

    def set_clock(self, seconds: int) -> None:
        """How far the wall clock of all processes is off."""
        self._plan.clock = seconds

    def events(self) -> list[Event]:
        """The calls counted since `arm`."""
        found = self._plan.log[: min(self._plan.count, _LOGGED)]
        return [Event(Kind(item.kind), item.pid, item.name.decode(errors="replace")) for item in found]


def why_not() -> str | None:
    """Why no process can be started with the library here; None if one can."""
    if sys.platform != "linux":
        return "system calls are counted on Linux only"
    return None if shutil.which("cc") else "there is no C compiler: apt install gcc"


def preloaded(folder: Path) -> dict[str, str]:
    """Compile the library into a folder; the environment of a process that is to be struck."""
    library, plan = folder / "shim.so", folder / "plan"
    command = ["cc", "-O2", "-shared", "-fPIC", "-o", str(library), str(SOURCE), "-ldl"]
    subprocess.run(command, check=True)
    with plan.open("wb") as file:
        file.truncate(ctypes.sizeof(_Plan))
    single = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")
    return {**os.environ, **single, "LD_PRELOAD": str(library), PLAN: str(plan)}
