"""Jobs that worker processes can import."""

from __future__ import annotations

import ctypes
import os
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dp_powerflow.errors import MissingExtraError, PowerFlowError

CANARY = "canary_5d1e"


def children() -> list[int]:
    """Processes that this one has started."""
    import psutil  # type: ignore[import-untyped]  # comes with Dask

    return [child.pid for child in psutil.Process().children()]


@dataclass(frozen=True)
class Squares:
    """Squares of the tasks; notes in `folder` which process received it and which started it."""

    folder: Path
    secret: str = CANARY

    def start(self, threads: int | None) -> Callable[[int], int]:
        self._note(f"start-{threads}")
        return lambda task: task * task

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._note("received")

    def _note(self, what: str) -> None:
        with (self.folder / what).open("a") as file:
            file.write(f"{os.getpid()}\n")


@dataclass(frozen=True)
class Failing:
    """Task 1 fails, in one of several ways."""

    how: str
    secret: str = CANARY

    def start(self, threads: int | None) -> Callable[[int], int]:
        return self._work

    def _work(self, task: int) -> int:
        if task != 1:
            return task
        if self.how == "known":
            raise PowerFlowError("no solution")
        if self.how == "extra":
            raise MissingExtraError("s3fs", "storage")
        if self.how == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        raise ValueError(f"cannot convert {self.secret}")


@dataclass(frozen=True)
class Waiting:
    """An item names a feeder, a key and perhaps a file, for which it waits; the answer is the feeder."""

    name: str
    key: bytes
    secret: str = CANARY

    def start(self, threads: int | None) -> Callable[[tuple[str, bytes, Path | None]], str]:
        return self._work

    def _work(self, item: tuple[str, bytes, Path | None]) -> str:
        feeder, _, free = item
        if free is not None:
            free.with_name(f"{free.name}.{os.getpid()}").touch()
            for _ in range(6000):
                if free.exists():
                    break
                time.sleep(0.01)
        return feeder


@dataclass(frozen=True)
class HoldingTheLock:
    """Tells a descriptor that it has begun, then holds the lock of the interpreter as long as it lives."""

    descriptor: int

    def start(self, threads: int | None) -> Callable[[int], int]:
        def work(item: int) -> int:
            os.write(self.descriptor, b".")
            return int(ctypes.PyDLL(None).sleep(1000))

        return work
