"""Jobs of crews that workers can import."""

from __future__ import annotations

import ctypes
import os
import signal
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dp_powerflow._parallel import Tell, Work
from dp_powerflow.errors import PowerFlowError

SECRET = "canary_c4e1"


@dataclass(frozen=True)
class Counting:
    """Every worker counts the requests that it answers, and says who it is.

    A request is a word that says what to do, and perhaps a file.
    """

    secret: str = SECRET
    name: str = "first"
    key: bytes = b""

    def start(self, threads: int | None) -> Work:
        held: list[object] = []

        def work(request: tuple[str, Any], tell: Tell) -> dict[str, Any]:
            what, fact = request
            held.append(request)
            if what == "tell":
                tell(("began", fact))
            else:
                _do(what, fact, self.secret)
            return {
                **{"fact": fact, "pid": os.getpid(), "held": len(held), "threads": threads},
                **{"job": self.name, "blas": os.environ.get("OPENBLAS_NUM_THREADS")},
            }

        return work


def _do(what: str, fact: Any, secret: str) -> None:
    if what == "known":
        raise PowerFlowError("no solution")
    if what == "missing file":
        Path(fact).read_bytes()
    if what == "defect":
        raise ValueError(f"cannot convert {secret}")
    if what == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if what == "kill once" and not Path(fact).exists():
        Path(fact).touch()
        os.kill(os.getpid(), signal.SIGKILL)
    if what == "wait":  # until the file is there
        Path(f"{fact}.{os.getpid()}").touch()
        for _ in range(6000):
            if Path(fact).exists():
                return
            time.sleep(0.01)


@dataclass(frozen=True)
class Unready:
    """Cannot be prepared."""

    def start(self, threads: int | None) -> Work:
        raise PowerFlowError("cannot start")


def children() -> list[int]:
    """Processes that this one has started."""
    import psutil  # type: ignore[import-untyped]  # comes with Dask

    return [child.pid for child in psutil.Process().children()]


@dataclass(frozen=True)
class HoldingTheLock:
    """Tells that it has begun, then holds the lock of the interpreter as long as it lives."""

    def start(self, threads: int | None) -> Work:
        def work(request: None, tell: Tell) -> None:
            tell("began")
            ctypes.PyDLL(None).sleep(1000)

        return work
