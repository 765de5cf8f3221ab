"""Forked runs: a child of a warm process does one thing, is killed or not, and is looked at afterwards."""

from __future__ import annotations

import os
import pickle
import signal
import sys
import time
import traceback
import warnings
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

Found = TypeVar("Found")
PATIENCE_SECONDS = 120.0
"""Processes that are left by a kill have so long to notice it; they need less than a second."""


@dataclass(frozen=True)
class Ended:
    """How a child ended.

    Attributes
    ----------
    code : exit code; None for a child that was killed.
    text : what it wrote to stdout and stderr.
    survivors : processes of its session that were still there long after.
    """

    code: int | None
    text: str
    survivors: int = 0

    @property
    def killed(self) -> bool:
        return self.code is None

    @property
    def errors(self) -> list[str]:
        """The sentences that a command ends with."""
        return [line for line in self.text.splitlines() if line.startswith("error: ")]

    @property
    def traceback(self) -> bool:
        return "Traceback (most recent call last)" in self.text


def in_child(do: Callable[[], object], log: Path) -> Ended:
    """Do something in a child of its own session, whose words go to a file; how it ended."""
    pid = os.fork()
    if pid == 0:
        _be_child(do, log)
    status = os.waitpid(pid, 0)[1]
    survivors = _survivors(pid)
    for process in survivors:
        with suppress(ProcessLookupError):
            os.kill(process, signal.SIGKILL)
    code = None if os.WIFSIGNALED(status) else os.waitstatus_to_exitcode(status)
    return Ended(code, log.read_text(errors="replace"), len(survivors))


def _be_child(do: Callable[[], object], log: Path) -> None:
    os.setsid()
    written = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    for descriptor in (1, 2):
        os.dup2(written, descriptor)
    warnings.simplefilter("ignore")
    code = 0
    try:
        do()
    except SystemExit as error:
        code = error.code if isinstance(error.code, int) else int(error.code is not None)
    except BaseException:  # whatever it is, it is written down and seen by who forked
        traceback.print_exc()
        code = 70
    with suppress(Exception):
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(code)


def looked_at(look: Callable[[], Found]) -> Found:
    """What a child found: it may open ledgers, which a process remembers."""
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(reader)
        with os.fdopen(writer, "wb") as file:
            try:
                answer: Any = ("found", look())
            except BaseException:  # told to who asked
                answer = ("failed", traceback.format_exc())
            pickle.dump(answer, file)
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader, "rb") as file:
        content = file.read()
    os.waitpid(pid, 0)
    what, value = pickle.loads(content)
    if what == "failed":
        raise AssertionError(value)
    found: Found = value
    return found


def _survivors(session: int) -> list[int]:
    """Processes of a session that do not end, however long one waits."""
    end = time.monotonic() + PATIENCE_SECONDS
    while found := _of_session(session):
        if time.monotonic() > end:
            return found
        time.sleep(0.02)
    return []


def _of_session(session: int) -> list[int]:
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            state, _, _, of = path.read_text().rpartition(")")[2].split()[:4]
            if int(of) == session and state != "Z":
                found.append(int(path.parent.name))
    return found
