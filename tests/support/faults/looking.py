"""Forked runs, and a folder after them: files by hash, modes, and entries of its ledger."""

from __future__ import annotations

import hashlib
import os
import pickle
import re
import shutil
import signal
import sqlite3
import stat
import sys
import tempfile
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from dp_powerflow.privacy.ledger.book import Ledger
from dp_powerflow.privacy.state import ANCHOR_FILE, KEY_FILE, LEDGER_FILE
from support.stores import Store

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
    def last(self) -> str:
        """The end of the last line that it wrote."""
        return ["nothing", *self.text.strip().splitlines()][-1][-300:]


def in_child(do: Callable[[], object], log: Path) -> Ended:
    """Do something in a child of its own session, whose words go to a file; how it ended."""
    pid = os.fork()
    if pid == 0:
        _be_child(do, log)
    status = os.waitpid(pid, 0)[1]
    survivors, end = _of_session(pid), time.monotonic() + PATIENCE_SECONDS
    while survivors and time.monotonic() < end:
        time.sleep(0.02)
        survivors = _of_session(pid)
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


def _of_session(session: int) -> list[int]:
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            state, _, _, of = path.read_text().rpartition(")")[2].split()[:4]
            if int(of) == session and state != "Z":
                found.append(int(path.parent.name))
    return found


def looked_at(look: Callable[[], Found]) -> Found:
    """What a child found: it may open ledgers, which a process remembers."""
    with tempfile.TemporaryDirectory() as folder:
        answer = Path(folder) / "answer"
        ended = in_child(lambda: answer.write_bytes(pickle.dumps(look())), Path(folder) / "log")
        if ended.code != 0:
            raise AssertionError(ended.text)
        found: Found = pickle.loads(answer.read_bytes())
        return found


STATE = "state"
_MOVING = (f"{STATE}/{LEDGER_FILE}", f"{STATE}/{ANCHOR_FILE}")
"""Entries carry the time, so these bytes differ between runs; their entries are compared instead."""
NUMBERED = re.compile(r"(paid|figures-network-twin)-[0-9]+")
"""Receipts and figures are named by numbers of entries and accounts, which come in any order."""


@dataclass(frozen=True)
class Snapshot:
    """A folder as it is.

    Attributes
    ----------
    files : SHA-256 by relative name, but for ledger and anchor.
    modes : of files and folders below the private state.
    entries : of the ledger in their order, without time and keyed hash.
    """

    files: dict[str, str]
    modes: dict[str, int]
    entries: tuple[tuple[str, ...], ...]

    @property
    def names(self) -> set[str]:
        """But for the anchor: a ledger of one entry may lack it, any other one could not be opened."""
        return {NUMBERED.sub(r"\1-#", name) for name in {*self.files, *self.modes} - {_MOVING[1]}}

    @property
    def spends(self) -> Counter[str]:
        """Charges by account."""
        return Counter(entry[1] for entry in self.entries if entry[0] == "spend")

    @property
    def unordered(self) -> set[tuple[object, ...]]:
        """Events by the kind of account and the release, and how often each came."""
        counted = Counter((event, account.rstrip("0123456789"), of) for event, account, of, _ in self.entries)
        return {(*what, n) for what, n in counted.items()}

    def below(self, name: str) -> dict[str, str]:
        """The files of one folder, or one file."""
        return {path: of for path, of in self.files.items() if path == name or path.startswith(f"{name}/")}


def snapshot(folder: Path, store: Store | None = None) -> Snapshot:
    """The folder and the store as they are; the ledger is opened in a child, on a copy of the state.

    Opening a ledger undoes what a killed process began: that is left to the run that resumes.
    """
    files, modes = {}, {}
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder).as_posix()
        if name == STATE or name.startswith(f"{STATE}/"):
            modes[name] = stat.S_IMODE(path.lstat().st_mode)
        if path.is_file() and name not in _MOVING:
            files[name] = hashlib.sha256(path.read_bytes()).hexdigest()
    if store is not None:
        files |= looked_at(store.files)
    return Snapshot(files, modes, looked_at(lambda: _entries(folder / STATE)))


def _entries(state: Path) -> tuple[tuple[str, ...], ...]:
    if not ((state / KEY_FILE).exists() and (state / LEDGER_FILE).exists()):
        return ()
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(shutil.copytree(state, Path(folder) / STATE))
        Ledger.inspect(copy).summary()  # the chain, the anchor and the sums
        with sqlite3.connect(copy / LEDGER_FILE) as connection:
            rows = connection.execute("SELECT event, account, release_id, body FROM entry ORDER BY seq")
            return tuple(rows.fetchall())
