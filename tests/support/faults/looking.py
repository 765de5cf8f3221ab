"""Forked runs, and a folder after them: files by hash, modes, entries of its ledger, and what must hold."""

from __future__ import annotations

import enum
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
    with tempfile.TemporaryDirectory() as folder:
        answer = Path(folder) / "answer"
        ended = in_child(lambda: answer.write_bytes(pickle.dumps(look())), Path(folder) / "log")
        if ended.code != 0:
            raise AssertionError(ended.text)
        found: Found = pickle.loads(answer.read_bytes())
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


STATE = "state"
_MOVING = (f"{STATE}/{LEDGER_FILE}", f"{STATE}/{ANCHOR_FILE}")
"""Entries carry the time, so these bytes differ between runs; their entries are compared instead."""

_NUMBERED = re.compile(r"(paid|figures-network-twin)-[0-9]+")


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
        """But for the anchor: a ledger of one entry may lack it, any other one could not be opened.

        Receipts and figures are named by numbers of entries and accounts, which come in any order.
        """
        return {_NUMBERED.sub(r"\1-#", name) for name in {*self.files, *self.modes} - {_MOVING[1]}}

    @property
    def spends(self) -> Counter[str]:
        """Charges by account."""
        return Counter(entry[1] for entry in self.entries if entry[0] == "spend")

    def below(self, name: str) -> dict[str, str]:
        """The files of one folder, or one file."""
        return {
            path: digest for path, digest in self.files.items() if path == name or path.startswith(f"{name}/")
        }


def snapshot(folder: Path, store: Store | None = None) -> Snapshot:
    """The folder and the store as they are; the ledger is opened in a child, on a copy of the state.

    Whoever opens a ledger undoes what a killed process began: that is left to who resumes.
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


@dataclass(frozen=True)
class Wrong:
    """What must not be: what kind of thing (`KINDS`), and in words."""

    kind: str
    words: str


LOST, DOUBLE, BITS, LEFT, TRACEBACK = "lost", "double spends", "other bits", "leftovers", "tracebacks"
ALIVE, HALF, WORDS, MODES = "processes alive", "half written", "untrue words", "other modes"
KINDS = (LOST, DOUBLE, BITS, LEFT, TRACEBACK, ALIVE, HALF, WORDS, MODES)


@dataclass(frozen=True)
class Reference:
    """What two runs that nobody disturbed made of the same folder.

    Attributes
    ----------
    before, after : the folder before and after a run.
    stable : files that both runs wrote with the same bytes.
    """

    before: Snapshot
    after: Snapshot
    stable: frozenset[str]

    @classmethod
    def of(cls, before: Snapshot, first: Snapshot, second: Snapshot, order: Order) -> Reference:
        same = {name for name, digest in first.files.items() if second.files.get(name) == digest}
        if order is not Order.SAME:
            same = {name for name in same if _NUMBERED.search(name) is None}
        other: list[object] = [*sorted(first.names ^ second.names), *(_unordered(first) ^ _unordered(second))]
        if other:
            raise AssertionError(f"two undisturbed runs differ, so nothing compares with them: {other[:5]}")
        return cls(before, first, frozenset(same))

    def between(self, found: Snapshot, whole: tuple[str, ...]) -> list[Wrong]:
        """What must not be after a kill or a failure.

        Parameters
        ----------
        whole : names below the folder that are as they were or as they will be, in full.
        """
        wrong = self._charges(found)
        for name in whole:
            if any(other.startswith(f"{name}.partial-") for other in found.files):
                continue  # a store has no renaming: what is in the making lies where it will be
            seen, allowed = found.below(name), (self.before.below(name), self.after.below(name))
            if seen not in allowed:
                wrong.append(Wrong(HALF, f"{name} is neither as before nor whole"))
        public = sorted(name for name, mode in found.modes.items() if mode & 0o077)
        if public:
            wrong.append(Wrong(MODES, f"others can read {public[:3]}"))
        return wrong

    def at_end(self, found: Snapshot, order: Order) -> list[Wrong]:
        """What must not be after the run that nobody disturbed."""
        after, wrong = self.after, self._charges(found)
        if not order.agree(found, after):
            wrong.append(Wrong(LOST, "the ledger has other entries than after an undisturbed run"))
        other = sorted(name for name in self.stable if found.files.get(name, "") != after.files[name])
        if other:
            wrong.append(Wrong(BITS, f"other bits: {other[:3]}"))
        if found.names - after.names:
            wrong.append(Wrong(LEFT, f"left over: {sorted(found.names - after.names)[:3]}"))
        if after.names - found.names:
            wrong.append(Wrong(LOST, f"not there: {sorted(after.names - found.names)[:3]}"))
        modes = sorted(name for name, mode in after.modes.items() if found.modes.get(name, mode) != mode)
        if modes:
            wrong.append(Wrong(MODES, f"other modes: {modes[:3]}"))
        return wrong

    def _charges(self, found: Snapshot) -> list[Wrong]:
        expected = self.after.spends
        more = {account: n for account, n in found.spends.items() if n > expected[account]}
        return [Wrong(DOUBLE, f"{account} was charged {n} times") for account, n in more.items()]


class Order(enum.Enum):
    """How the entries of a ledger compare with those of an undisturbed run."""

    SAME = enum.auto()
    ANY = enum.auto()
    """Workers race: accounts are numbered as they come."""
    REPEATED = enum.auto()
    """A command enters again what it has entered before."""

    def agree(self, found: Snapshot, after: Snapshot) -> bool:
        """Whether nothing is lost, and nothing is there that should not be."""
        if self is Order.ANY:
            return _unordered(found) == _unordered(after)
        entries = found.entries[: len(after.entries)] if self is Order.REPEATED else found.entries
        return entries == after.entries


def _unordered(found: Snapshot) -> set[tuple[object, ...]]:
    """Events by the kind of account and the release, and how often each came."""
    counted = Counter((event, account.rstrip("0123456789"), of) for event, account, of, _ in found.entries)
    return {(*what, n) for what, n in counted.items()}
